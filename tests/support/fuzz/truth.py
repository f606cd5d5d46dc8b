"""Which rules have an exact answer, and how far an answer may be from it.

`TRUTHS` maps the name of a row of the shared table to its exact answers on a `Problem`. There may be more than one, as
where the two longest projections of Greedy-DCP are equally long.

The error is measured against the longest gradient for rules whose direction is a sum of whole gradients, and against
the terms of the exact sum for those of the hull, which may follow a short gradient among long ones. `Input.allowed`
says how much is allowed, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .exact import Problem, Weights, root_of
from .inputs import Input
from .sums import Sum

#: Lengths that differ by less, relative to them or to the longest gradient, are ties for Greedy-DCP: both are right.
_TIE, _TIE_OF_GRADIENTS = 1e-5, 1e-7
#: Weights may be this many times their smallest possible size.
MOST_WEIGHT = 1e4


class Truth(NamedTuple):
    """The exact answers of a rule, and whether errors are relative to the terms of its own sum."""

    answers: Callable[[Problem], list[Weights | None]]
    by_terms: bool = False


def _one(answer: Callable[[Problem], Weights | None], *, by_terms: bool = False) -> Truth:
    return Truth(lambda problem: [answer(problem)], by_terms)


def _unit(problem: Problem, k: int) -> Weights:
    return [Fraction(int(i == k)) for i in range(problem.m)]


def _mean(problem: Problem) -> Weights:
    return [Fraction(1, problem.m)] * problem.m


def _upgrad(problem: Problem, preference: list[float] | None = None) -> Weights:
    shares = _mean(problem) if preference is None else [Fraction(x) for x in preference]
    total = [Fraction(0)] * problem.m
    for k, share in enumerate(shares):
        total = [x + share * y for x, y in zip(total, problem.project(_unit(problem, k)), strict=True)]
    return total


def _greedy(problem: Problem) -> list[Weights | None]:
    found = [problem.project(_unit(problem, k)) for k in range(problem.m)]
    lengths = [root_of(problem.square(w)) for w in found]
    least = max(lengths) * (1.0 - _TIE) - max(problem.norms) * _TIE_OF_GRADIENTS
    return [w for w, length in zip(found, lengths, strict=True) if length >= least]


def _cap(cap: Callable[[int], Fraction]) -> Truth:
    """For up to four rows: the faces of a capped simplex are 3^m, and take as many times longer."""
    return _one(lambda problem: problem.capped_min_norm(cap(problem.m)) if problem.m <= 4 else None, by_terms=True)


_MGDA = _one(lambda problem: problem.min_norm, by_terms=True)
_CVAR = _cap(lambda m: Fraction(2, m))
_DUALPROJ = _one(lambda problem: problem.project(_mean(problem)))

TRUTHS: dict[str, Truth] = {
    "mean": _one(_mean),
    "upgrad": _one(_upgrad),
    "upgrad(1,2,3)": _one(lambda problem: _upgrad(problem, [1.0, 2.0, 3.0])),
    "dualproj": _DUALPROJ,
    "dualproj(.5,.3,.2)": _one(lambda problem: problem.project([Fraction(x) for x in (0.5, 0.3, 0.2)])),
    "subproblem(non-conflicting)": _DUALPROJ,
    "greedy-dcp": Truth(_greedy),
    "pcgrad": _one(Problem.pcgrad),
    "pcgrad+": _one(Problem.pcgrad_plus),
    "cagrad(0)": _one(_mean),
    "cagrad(.5)": _one(lambda problem: problem.cagrad(Fraction(1, 2))),
    "cagrad(1)": _one(lambda problem: problem.cagrad(Fraction(1))),
    "cagrad(1.5)": _one(lambda problem: problem.cagrad(Fraction(3, 2))),
    "mgda": _MGDA,
    "power-mean(-inf)": _MGDA,
    "subproblem(worst case)": _MGDA,
    "capped-mgda(1)": _MGDA,
    "capped-mgda(.5)": _cap(lambda m: Fraction(1, 2)),
    "capped-mgda(eps=.5)": _CVAR,
    "capped-mgda(eps=.9)": _cap(lambda m: Fraction(10, 9 * m)),
    "subproblem(cvar)": _CVAR,
}


class Judgement(NamedTuple):
    """The least error over all right answers, and the size of the weights, both relative to what is allowed."""

    error: float
    weight: float


def judge(name: str, given: Input, found: Sum) -> Judgement | None:
    """Compare a direction with the exact ones; None if the rule has none, or takes too long to reach it.

    For a starred rule the directions are compared without their lengths, which depend on the choice of weights.
    """
    starred, plain = name.endswith("*"), name.removesuffix("*")
    if plain not in TRUTHS:
        return None
    truth, judged = TRUTHS[plain], []
    for which, problem in enumerate(given.problems):
        if truth not in problem.answers:
            problem.answers[truth] = truth.answers(problem)
        for weights in problem.answers[truth]:
            if weights is None:
                return None  # too slow, or not unique: nothing can be said
            judged.append(_compare(given, which, found, weights, truth.by_terms, starred))
            if plain == "pcgrad+":  # a limit of sweeps, each of which carries the error of the one before
                judged[-1] = judged[-1]._replace(error=judged[-1].error / 10.0)
    right = [one for one in judged if one.error <= 1.0]
    return min(right, key=lambda one: one.weight) if right else min(judged)


def _compare(given: Input, which: int, found: Sum, weights: Weights, by_terms: bool, starred: bool) -> Judgement:
    problem, allowed = given.problems[which], given.allowed(which)
    shift = found.exponent - given.enlargement - problem.exponent
    d, exact = np.ldexp(found.d, shift), np.array(problem.direction(weights))
    size = problem.size(weights)
    scale = size if by_terms else max(problem.norms)
    if not starred:
        weight = ratio(float(np.ldexp(found.terms, shift)), MOST_WEIGHT * size)
        return Judgement(ratio(float(np.linalg.norm(d - exact)), allowed * scale), weight)
    largest = float(np.abs(exact).max()) or 1.0
    length = largest * float(np.linalg.norm(exact / largest))  # squares of 1e-170 underflow
    if length <= 1e-3 * scale:
        return Judgement(0.0, 0.0)  # next to nothing: there is no direction to compare
    off = float(np.linalg.norm(found.d / (found.length or 1.0) - exact / length))
    return Judgement(ratio(off, allowed * scale / length), 0.0)


def ratio(off: float, allowed: float) -> float:
    """An error relative to what is allowed; no error is fine where none is."""
    return off / allowed if allowed else 0.0 if off == 0.0 else np.inf
