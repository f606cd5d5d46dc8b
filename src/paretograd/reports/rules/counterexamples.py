"""The counter-examples in ``data/counterexamples.json``: small integers, and by how much they violate a property.

`benchmarks/counterexamples.py` finds them. Separating vectors and multipliers are integers, too: that ``J z >= 0``, or
that a hull stays away from 0, is then exact, and only the rule's direction is computed in floating point.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from paretograd.errors import DataError
from paretograd.reports.rules.steps import Step, direction, make_rule

PATH = Path(__file__).parents[2] / "data" / "counterexamples.json"

#: Every counter-example violates its property by at least this much, relative to the lengths involved.
LEAST_MARGIN = 0.02
#: Rounding of directions, relative to the longest gradient, even next to stationary points.
_ROUNDING = 1e-6

#: The t of J + t E at which directions are compared with that of J. The Gramians differ by a few t. Much closer to
#: dependent gradients, rules count gradients as dependent, because rounded ones cannot tell.
NEAR = (2.0**-8, 2.0**-12, 2.0**-16)
#: A jump stays: at the last t it is at least this share of what it is at the first. What falls as slowly as t^(1/6),
#: such as a geometric mean of three slopes, falls to 0.4.
_STAYS = 0.9
#: The t at which the constant c that a Jacobian J + t E leaves is measured, and the factor by which it falls from each
#: to the next.
VANISHING = (2.0**-6, 2.0**-12, 2.0**-18)
_FALLS = 4.0
#: Halvings of an interval within which a direction jumps: a continuous one changes by 2^-40 at the end.
_HALVINGS = 40

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Moment:
    """Gradients and losses of a step, as small integers.

    Attributes:
        jacobian: the Jacobian J. If there are several batches, that of the last one.
        losses: values of the losses; empty for ones.
        batches: Jacobians of the batches before the last one; empty for that of the last one.
        learned: numbers that the rule has learned, one for each loss; empty for those at the start.
    """

    jacobian: Matrix
    losses: tuple[int, ...] = ()
    batches: tuple[Matrix, ...] = ()
    learned: tuple[int, ...] = ()

    def seen(self) -> Step:
        """Return the numbers as tensors."""
        return Step(
            _matrix(self.jacobian),
            _vector(self.losses or (1,) * len(self.jacobian)),
            tuple(map(_matrix, self.batches)),
            _vector(self.learned) if self.learned else None,
        )

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read an entry of the file."""
        return cls(**{key: tuple(value) if key != "jacobian" else value for key, value in found.items()})


@dataclass(frozen=True)
class Case(Moment):
    """A direction of a rule.

    Attributes:
        step: E, if the case is J + t E for small t; with several batches, all of them move.
        losses_step: e, if the losses are f + t e.
        earlier: the steps before.
        rule: the rule if it is not that of the row: one with another seed.
        after: number of earlier steps like this one, for a schedule.
        multiplier: y, for several Jacobians that together refute condition (A).
    """

    step: Matrix | None = None
    losses_step: tuple[int, ...] = ()
    earlier: tuple[Moment, ...] = ()
    rule: str | None = None
    after: int = 0
    multiplier: int = 1

    def at(self, t: float = 0.0) -> Tensor:
        """Return J + t E, shape ``(m, n)``, float64."""
        return self.steps(t)[-1].jacobian

    def steps(self, t: float = 0.0) -> list[Step]:
        """Return all steps, the last of them at J + t E and f + t e."""
        last = self.seen()
        if self.step is not None:
            E = _matrix(self.step)
            batches = tuple(J + t * E for J in last.batches)
            last = replace(last, jacobian=last.jacobian + t * E, batches=batches)
        if self.losses_step:
            last = replace(last, losses=last.losses + t * _vector(self.losses_step))
        return [*(one.seen() for one in self.earlier), *[last] * (self.after + 1)]

    def direction(self, rule: str, t: float = 0.0, change: Callable[[Step], Step] = lambda step: step) -> Tensor:
        """Return what a new instance of the rule makes of the last step, after the earlier ones.

        A direction that is only rounding is zero.

        Args:
            rule: the rule of the row.
            t: the factor of E.
            change: applied to every step.
        """
        steps = list(map(change, self.steps(t)))
        d = direction(make_rule(self.rule or rule, len(self.jacobian)), steps)
        return d if d.norm() > _ROUNDING * steps[-1].jacobian.norm(dim=1).max() else torch.zeros_like(d)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read an entry of the file."""
        fields: dict[str, Any] = {key: tuple(value) if key in _TUPLES else value for key, value in found.items()}
        return cls(**fields | {"earlier": tuple(map(Moment.from_json, found.get("earlier", ())))})


#: Fields of a case that are tuples.
_TUPLES = ("losses", "batches", "learned", "losses_step")


@dataclass(frozen=True)
class Counterexample:
    """A refutation of one property of one rule.

    Attributes:
        rule: the rule's text, as `paretograd.get` or `paretograd.scalarizer` reads it.
        refutes: key of the property.
        cases: one case; several for condition (A).
        z: a separating vector, for cone, hull and length; a vector with J z > 0 for continuity if gamma > 0.
        order: a permutation of the rows.
        factors: positive factors of the rows.
        exponent: the losses are multiplied by 2 and 4 to this power, for the degree.
        between: the direction jumps somewhere between J and J + E, not at J.
    """

    rule: str
    refutes: str
    cases: tuple[Case, ...]
    z: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    exponent: int = 1
    between: bool = False

    @property
    def margin(self) -> float:
        """Relative amount by which the property is violated; above 0 if it is refuted."""
        margin = _MARGINS[self.refutes](self)
        return -math.inf if math.isnan(margin) else margin  # a zero direction has no angle

    def direction(self, t: float = 0.0, change: Callable[[Step], Step] = lambda step: step) -> Tensor:
        """Return the direction of the first case."""
        return self.cases[0].direction(self.rule, t, change)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the file, without defaults."""
        cases = [_without_defaults(asdict(case), asdict(Case([]))) for case in self.cases]
        for case in cases:
            if "earlier" in case:
                case["earlier"] = [_without_defaults(one, asdict(Moment([]))) for one in case["earlier"]]
        rest = _without_defaults(asdict(self), asdict(Counterexample(self.rule, self.refutes, ())))
        return rest | {"cases": cases}

    @classmethod
    def from_json(cls, rule: str, refutes: str, found: Mapping[str, Any]) -> Counterexample:
        """Read an entry of the file."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
        }
        return cls(rule, refutes, **fields | {"cases": tuple(map(Case.from_json, found["cases"]))})


@cache
def counterexamples() -> dict[tuple[str, str], Counterexample]:
    """Return all stored counter-examples, by rule and key of the property."""
    try:
        stored = json.loads(PATH.read_text(encoding="utf-8"))
        return {
            (rule, key): Counterexample.from_json(rule, key, found)
            for rule, entries in stored.items()
            for key, found in entries.items()
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{PATH} cannot be read ({error!r}); reinstall paretograd") from error


def _without_defaults(found: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value != defaults[key]}


def _cone(example: Counterexample) -> float:
    J, z = example.cases[0].at(), _vector(example.z)
    if (J @ z).min() < 0.0:
        return -math.inf
    d = example.direction()
    return -float(d @ z / (d.norm() * z.norm()))


def _hull(example: Counterexample) -> float:
    J, z = example.cases[0].at(), _vector(example.z)
    return float(((J @ z).min() - example.direction() @ z) / (J.norm(dim=1).max() * z.norm()))


def _long(example: Counterexample) -> float:
    J, z = example.cases[0].at(), _vector(example.z)
    gap = (J @ z).min()
    return float(1.0 - example.direction().norm() * z.norm() / gap) if gap > 0.0 else -math.inf


def _non_conflicting(example: Counterexample) -> float:
    return -float(cosines(example.cases[0].at(), example.direction()).min())


def cosines(J: Tensor, d: Tensor) -> Tensor:
    """Return the cosines of d and the gradients, shape ``(m,)``; 0 for a zero vector."""
    lengths: Tensor = J.norm(dim=1) * d.norm()
    return (J @ d) / lengths.clamp(min=1e-300)


def constants(example: Counterexample, t: float) -> Tensor:
    """Return ``<d, g_k> / |d|^2`` for every k: the c of condition (A) for F = f_k, shape ``(m,)``."""
    d = example.direction(t)
    return (example.cases[0].at(t) @ d) / (d @ d)


def _aligned(example: Counterexample) -> float:
    """Return a margin for Farkas' multipliers, or for J(t) whose constants vanish with t.

    All cases have the same losses: a function F of them then has the same gradient phi in all.
    """
    if example.cases[0].step is None:
        if len({case.losses for case in example.cases}) > 1:
            return -math.inf
        total, size = torch.zeros(len(example.cases[0].jacobian), dtype=torch.float64, device="cpu"), 0.0
        for case in example.cases:
            J = case.at()
            d = case.direction(example.rule)
            total += case.multiplier * (J @ d)
            size += case.multiplier * float(J.norm(dim=1).max() * d.norm())
        return -float(total.max()) / max(size, 1e-300)
    left = [float(constants(example, t).max()) for t in VANISHING]
    if min(left) <= 0.0 or any(map(math.isnan, left)):
        return -math.inf
    return 1.0 - max(_FALLS * after / before for before, after in pairwise(left))


def _degree(example: Counterexample) -> float:
    d = [example.direction(change=scaling(example.exponent * power)) for power in (0, 1, 2)]
    if not all(bool(found.any()) for found in d):
        return -math.inf
    turn = 1.0 - float(torch.cosine_similarity(d[0], d[1], dim=0))
    first, second = (float(torch.log2(after.norm() / before.norm())) for before, after in pairwise(d))
    return max(turn, abs(first - second))


def scaling(power: int) -> Callable[[Step], Step]:
    """Return a change that multiplies all losses of a step by ``2 ** power``."""
    return lambda step: step.times(torch.full_like(step.losses, 2.0**power))


def _equivariant(example: Counterexample) -> float:
    return _relative(example.direction(), example.direction(change=lambda step: step.ordered(example.order)))


def _scale_invariant(example: Counterexample) -> float:
    factors = _vector(example.factors)
    if factors.min() <= 0.0:
        return -math.inf
    d, scaled = example.direction(), example.direction(change=lambda step: step.times(factors))
    return float((d / d.norm() - scaled / scaled.norm()).norm())


def _continuous(example: Counterexample) -> float:
    if example.between:
        return _jump(example)
    d = example.direction()
    near = [example.direction(t) for t in NEAR]
    jumps = [float((found - d).norm()) for found in near]
    longest = max(float(found.norm()) for found in (d, *near))
    return min(jumps) / longest if jumps[-1] >= _STAYS * jumps[0] > 0.0 else -math.inf


def _jump(example: Counterexample) -> float:
    """Return the change of d within a tiny interval of t in (0, 1) in which it changes most, found by bisection."""
    low, high = 0.0, 1.0
    below, above = example.direction(low), example.direction(high)
    longest = max(float(below.norm()), float(above.norm()), 1e-300)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        d = example.direction(middle)
        if (d - below).norm() > (d - above).norm():
            high, above = middle, d
        else:
            low, below = middle, d
    return float((above - below).norm()) / longest


def _continuous_inside(example: Counterexample) -> float:
    inside = bool((example.cases[0].at() @ _vector(example.z)).min() > 0.0)
    return _continuous(example) if inside else -math.inf


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / max(float(a.norm()), float(b.norm()), 1e-300))


def _vector(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _matrix(rows: Matrix) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


_MARGINS: dict[str, Callable[[Counterexample], float]] = {
    "in_cone": _cone,
    "in_hull": _hull,
    "long": _long,
    "non_conflicting": _non_conflicting,
    "aligned": _aligned,
    "degree": _degree,
    "equivariant": _equivariant,
    "scale_invariant": _scale_invariant,
    "continuous": _continuous,
    "continuous_inside": _continuous_inside,
}
