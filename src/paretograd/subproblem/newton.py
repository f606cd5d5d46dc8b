"""Newton's method on ``min over p of s(x0 + L p) + |p|^2 / (2 beta)``, for an s that can only be evaluated.

A step solves ``(L' S L + I / beta) dp = -(L' grad s + p / beta)`` with S the Hessian of s, so that
``p + dp = beta L' lambda`` for ``lambda = -(grad s + S L dp)``. Two things make it exact at any scale of the gradients:

1. The answer is this lambda, and ``dp`` the error that is left. Where the entries of x are large, their rounding alone
   moves ``grad s`` by more than the error of the direction: the linear model sees through it.
2. Where Newton's method fails, s is replaced by ``t s(x / t)``, which is the less curved the larger t is, and t comes
   down from a value at which the problem is easy. Where x / t no longer resolves how s bends, it stops, above t = 1
   perhaps: s looks piecewise linear to float64 there, and what t still changes in the direction counts as residual.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array

#: Residuals up to this are rounding, per unknown: no further step is tried.
_GOAL = 1e-16
#: Up to this residual a problem counts as solved: t need not come down in steps.
_SOLVED = 2e-14
#: t falls by this factor from stage to stage.
_FACTOR = 8.0


class Jet(NamedTuple):
    """Value, gradient and Hessian of s at a point."""

    value: float
    slope: Array
    curvature: Array


class Function(NamedTuple):
    """``t s(x / t)`` for a function s that can be evaluated.

    Attributes:
        s: its values.
        derivatives: value, gradient and Hessian; None where s has none.
        t: 1 for s itself.
        centred: s is a risk measure, ``s(x) = s(x - c) - c``, and is evaluated where the least entry of x is zero.
    """

    s: Callable[[Array], float]
    derivatives: Callable[[Array], Jet | None]
    t: float = 1.0
    centred: bool = False

    def value(self, x: Array) -> float:
        least = float(x.min()) if self.centred else 0.0
        return self.t * self.s((x - least) / self.t) - least

    def jet(self, x: Array) -> Jet | None:
        least = float(x.min()) if self.centred else 0.0
        found = self.derivatives((x - least) / self.t)
        return None if found is None else Jet(self.t * found.value - least, found.slope, found.curvature / self.t)

    def rounding(self, x: Array, slope: Array) -> float:
        """That of the derivatives, relative to them, if s takes exponentials of numbers such as the entries of x."""
        weights, least = np.abs(slope), float(x.min()) if self.centred else 0.0
        total = float(weights.sum())
        size = float(weights @ np.abs(x - least)) / (self.t * total) if total > 0.0 else 0.0
        return float(np.finfo(np.float64).eps) * (4.0 + size)


class Problem(NamedTuple):
    """``min over p of s(x0 + L p) + |p|^2 / (2 beta)``."""

    L: Array
    x0: Array
    beta: float

    def x(self, p: Array) -> Array:
        return np.asarray(self.x0 + self.L @ p)


class Point(NamedTuple):
    """An answer.

    Attributes:
        p: the unknowns.
        multipliers: lambda, shape ``(m,)``.
        conjugate: ``s*(-lambda)``.
        residual: the error of p that is left, relative to the terms that p sums.
        steps: linear systems solved.
    """

    p: Array
    multipliers: Array
    conjugate: float
    residual: float
    steps: int


def minimise(s: Function, problem: Problem, start: Array, jet: Jet, is_risk: Callable[[], bool]) -> Point:
    """The best point that can be found.

    Args:
        s: the function.
        problem: the rest.
        start: p at which s has derivatives.
        jet: these.
        is_risk: whether ``s(x + c) = s(x) - c``; asked only where it helps.
    """
    point = _newton(s, problem, start, jet)
    solved = _SOLVED * len(problem.x0)
    rough = s.rounding(problem.x(point.p), point.multipliers) > solved
    if point.residual <= solved and not (rough and is_risk()):
        return point
    steps = point.steps
    if is_risk():
        s = s._replace(centred=True)
        centred = s.jet(problem.x(start))
        assert centred is not None
        point = _newton(s, problem, start, centred)
        steps += point.steps
    if point.residual > solved:
        again = _stages(s, problem, start)
        steps += again.steps
        point = again if again.residual < point.residual else point
    return point._replace(steps=steps)


def _stages(s: Function, problem: Problem, start: Array) -> Point:
    """t from the size of x down to one, or as far as s can be resolved."""
    size = problem.beta * float(np.square(problem.L).sum(axis=1).max(initial=0.0)) + float(np.abs(problem.x0).max())
    t, p, steps = max(1.0, size), start, 0
    best, previous = Point(start, np.zeros(len(problem.x0)), 0.0, math.inf, 0), start
    for stage in itertools.count():
        here = s._replace(t=t)
        jet = here.jet(problem.x(p))
        if jet is None:
            p = previous
            jet = here.jet(problem.x(p))
            if jet is None:
                break
        found = _newton(here, problem, p, jet)
        steps += found.steps
        unsolved = found.residual > 1e-6
        if t > 1.0:
            # p changes by a multiple of t as t comes down, so that less than a quarter of the last change is to come.
            change = float(np.abs(previous - found.p).max(initial=0.0)) / problem.beta if stage else math.inf
            moved = 0.25 * _relative(change, problem, found.multipliers, found.p)
            found = found._replace(residual=max(found.residual, moved), conjugate=found.conjugate / t)
        if found.residual < best.residual:
            best = found
        if t == 1.0 or unsolved:
            break
        following = max(1.0, t / _FACTOR)
        change = (t - following) / (t * (_FACTOR - 1.0)) if stage else 0.0
        previous, p, t = found.p, found.p + change * (found.p - previous), following
    return best._replace(steps=steps)


def _newton(s: Function, problem: Problem, p: Array, jet: Jet) -> Point:
    """Damped Newton steps, from a point and the derivatives there, until what is left is rounding."""
    L, x0, beta = problem
    best, stalled, steps = Point(p, -jet.slope, 0.0, math.inf, 0), 0, 0
    goal, last = _GOAL * (4 + len(x0)), math.inf
    while steps < 200:
        steps += 1
        gradient = L.T @ jet.slope + p / beta
        hessian = L.T @ jet.curvature @ L
        hessian.ravel()[:: len(p) + 1] += 1.0 / beta
        step = _solve(hessian, -gradient)
        if step is None:
            break
        x = problem.x(p)
        # s + |p|^2 / (2 beta) is strongly convex: p is off by at most beta times the gradient.
        multipliers = -jet.slope
        residual = _relative(float(np.abs(gradient).max(initial=0.0)), problem, multipliers, p)
        slow, last = residual > max(goal, 0.1 * last), residual  # the gradient says all as long as it falls
        if slow and _is_linear(s, L, x, jet, L @ step):
            linear = -(jet.slope + jet.curvature @ (L @ step))
            multipliers = np.where((linear <= 0.0) & (jet.slope <= 0.0), 0.0, linear)  # no slope changes its sign
            left = _error(hessian, gradient, beta, s.rounding(x, jet.slope)) / beta
            left += float(np.abs(L.T @ (multipliers - linear)).max(initial=0.0))
            residual = _relative(left, problem, multipliers, p + step)
        if residual < best.residual:
            conjugate = -float(multipliers @ x) - jet.value
            best, stalled = Point(beta * (L.T @ multipliers), multipliers, conjugate, residual, 0), 0
        else:
            stalled += 1
        if residual <= goal or (stalled >= 3 and best.residual < 1e-10) or stalled >= 20:
            break
        moved = _line_search(s, problem, p, step, jet, float(gradient @ step))
        if moved is None:
            break
        p, jet = moved
    return best._replace(steps=steps)


def _relative(left: float, problem: Problem, multipliers: Array, p: Array) -> float:
    """What is left of ``L' lambda - p / beta``, relative to its terms."""
    terms = float((np.abs(problem.L.T) @ np.abs(multipliers) + np.abs(p) / problem.beta).max(initial=0.0))
    return left / terms if terms > 0.0 else 0.0 if left == 0.0 else math.inf


def _error(hessian: Array, gradient: Array, beta: float, rounding: float) -> float:
    """The length of the Newton step, as far as the Hessian can be trusted: its eigenvalues are at least 1 / beta."""
    values, vectors = np.linalg.eigh(hessian)
    trusted = np.maximum(values - rounding * np.abs(values).max(initial=0.0), 1.0 / beta)
    return float(np.linalg.norm((vectors.T @ gradient) / trusted))


def _is_linear(s: Function, L: Array, x: Array, jet: Jet, change: Array) -> bool:
    """Return True if the gradient of s is linear near x, over the next change and over the rounding of x."""
    least = 4.0 * float(np.finfo(np.float64).eps) * float(np.abs(x).max())
    change = np.where(np.abs(change) > least, change, np.where(np.arange(len(x)) % 2, -least, least))
    there = s.jet(x + change)
    if there is None:
        return False
    expected = jet.curvature @ change
    missed = np.abs(L.T @ (there.slope - jet.slope - expected)).max(initial=0.0)
    rounding = _GOAL * (np.abs(L.T) @ np.abs(jet.slope)).max(initial=0.0)
    return bool(missed <= 0.25 * np.abs(L.T @ expected).max(initial=0.0) + rounding)


def _solve(A: Array, b: Array) -> Array | None:
    """Solve ``A x = b`` for a positive definite A; where it is not, with the magnitudes of its eigenvalues."""
    sizes = np.abs(A.diagonal())
    scale = 1.0 / np.sqrt(np.maximum(sizes, 1e-30 * sizes.max(initial=1e-270)))
    S = A * scale
    S *= scale[:, None]
    if not (np.isfinite(S).all() and np.isfinite(b).all()):
        return None
    try:
        half = np.linalg.cholesky(S)
        y = np.linalg.solve(half.T, np.linalg.solve(half, b * scale))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(0.5 * (S + S.T))
        values = np.maximum(np.abs(values), 1e-15 * len(values) * np.abs(values).max())
        y = vectors @ ((vectors.T @ (b * scale)) / values)
    return np.asarray(y * scale)


def _line_search(
    s: Function, problem: Problem, p: Array, step: Array, jet: Jet, descent: float
) -> tuple[Array, Jet] | None:
    """The first step length of 1, 1/2, ... that makes progress; None if there is none.

    Progress is a lower value or, where values differ by rounding only, a slope along the step that has shrunk:
    along a line, a convex function falls until its slope is zero.
    """
    beta = problem.beta
    here = jet.value + 0.5 * float(p @ p) / beta
    t = 1.0
    for _ in range(60):
        trial = p + t * step
        x = problem.x(trial)
        value = s.value(x) + 0.5 * float(trial @ trial) / beta
        lower = value <= here + 1e-4 * t * descent
        if lower or value <= here + 1e-6 * (1.0 + abs(here)):
            found = s.jet(x)
            if found is not None and (lower or (found.slope @ problem.L + trial / beta) @ step <= -0.5 * descent):
                return trial, found
        t *= 0.5
    return None
