"""The counter-examples in ``data/counterexamples.json``: small integers, and by how much they violate a property.

`benchmarks/counterexamples.py` finds them. Separating vectors and multipliers are integers, too: that ``J z >= 0``, or
that a hull stays away from 0, is then exact, and only the rule's direction is computed in floating point.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.registry import get
from paretograd.errors import DataError

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

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Case:
    """A direction of a rule.

    Attributes:
        jacobian: the Jacobian J.
        step: E, if the case is J + t E for small t.
        rule: the rule if it is not that of the row: one with another seed.
        after: number of earlier calls with the same Jacobian, for a schedule.
        multiplier: y, for several Jacobians that together refute condition (A).
    """

    jacobian: Matrix
    step: Matrix | None = None
    rule: str | None = None
    after: int = 0
    multiplier: int = 1

    def at(self, t: float = 0.0) -> Tensor:
        """Return J + t E, shape ``(m, n)``, float64."""
        J = torch.tensor(self.jacobian, dtype=torch.float64, device="cpu")
        return J if self.step is None else J + t * torch.tensor(self.step, dtype=torch.float64, device="cpu")

    def direction(self, rule: str, J: Tensor) -> Tensor:
        """Return what a new instance of the rule makes of J, after the earlier calls.

        A direction that is only rounding is zero.
        """
        aggregator = get(self.rule or rule)
        for _ in range(self.after):
            aggregator(J)
        d = aggregator(J)
        return d if d.norm() > _ROUNDING * J.norm(dim=1).max() else torch.zeros_like(d)


@dataclass(frozen=True)
class Counterexample:
    """A refutation of one property of one rule.

    Attributes:
        rule: the rule's text, as `paretograd.get` reads it.
        refutes: key of the property.
        cases: one case; several for condition (A).
        z: a separating vector, for cone, hull and length; a vector with J z > 0 for continuity if gamma > 0.
        order: a permutation of the rows.
        factors: positive factors of the rows.
    """

    rule: str
    refutes: str
    cases: tuple[Case, ...]
    z: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()

    @property
    def margin(self) -> float:
        """Relative amount by which the property is violated; above 0 if it is refuted."""
        margin = _MARGINS[self.refutes](self)
        return -math.inf if math.isnan(margin) else margin  # a zero direction has no angle

    def direction(self, J: Tensor) -> Tensor:
        """Return the direction of the first case's rule."""
        return self.cases[0].direction(self.rule, J)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the file, without defaults."""
        cases = [_without_defaults(asdict(case), asdict(Case([]))) for case in self.cases]
        rest = {key: list(value) for key in ("z", "order", "factors") if (value := getattr(self, key))}
        return {"cases": cases} | rest

    @classmethod
    def from_json(cls, rule: str, refutes: str, found: Mapping[str, Any]) -> Counterexample:
        """Read an entry of the file."""
        rest = {key: tuple(value) for key, value in found.items() if key != "cases"}
        return cls(rule, refutes, tuple(Case(**case) for case in found["cases"]), **rest)


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
    d = example.direction(J)
    return -float(d @ z / (d.norm() * z.norm()))


def _hull(example: Counterexample) -> float:
    J, z = example.cases[0].at(), _vector(example.z)
    return float(((J @ z).min() - example.direction(J) @ z) / (J.norm(dim=1).max() * z.norm()))


def _long(example: Counterexample) -> float:
    J, z = example.cases[0].at(), _vector(example.z)
    gap = (J @ z).min()
    return float(1.0 - example.direction(J).norm() * z.norm() / gap) if gap > 0.0 else -math.inf


def _non_conflicting(example: Counterexample) -> float:
    J = example.cases[0].at()
    return -float(cosines(J, example.direction(J)).min())


def cosines(J: Tensor, d: Tensor) -> Tensor:
    """Return the cosines of d and the gradients, shape ``(m,)``; 0 for a zero vector."""
    lengths: Tensor = J.norm(dim=1) * d.norm()
    return (J @ d) / lengths.clamp(min=1e-300)


def constants(J: Tensor, d: Tensor) -> Tensor:
    """Return ``<d, g_k> / |d|^2`` for every k: the c of condition (A) for F = f_k, shape ``(m,)``."""
    return (J @ d) / (d @ d)


def _aligned(example: Counterexample) -> float:
    """Return a margin for Farkas' multipliers, or for J(t) whose constants vanish with t."""
    if example.cases[0].step is None:
        total, size = torch.zeros(len(example.cases[0].jacobian), dtype=torch.float64, device="cpu"), 0.0
        for case in example.cases:
            J = case.at()
            d = case.direction(example.rule, J)
            total += case.multiplier * (J @ d)
            size += case.multiplier * float(J.norm(dim=1).max() * d.norm())
        return -float(total.max()) / max(size, 1e-300)
    left = [float(constants(J, example.direction(J)).max()) for J in map(example.cases[0].at, VANISHING)]
    if min(left) <= 0.0 or any(map(math.isnan, left)):
        return -math.inf
    return 1.0 - max(_FALLS * after / before for before, after in pairwise(left))


def _degree(example: Counterexample) -> float:
    J = example.cases[0].at()
    d = [example.direction(factor * J) for factor in (1.0, 2.0, 4.0)]
    turn = 1.0 - float(torch.cosine_similarity(d[0], d[1], dim=0))
    first, second = (float(torch.log2(after.norm() / before.norm())) for before, after in pairwise(d))
    return max(turn, abs(first - second))


def _equivariant(example: Counterexample) -> float:
    J = example.cases[0].at()
    return _relative(example.direction(J), example.direction(J[list(example.order)]))


def _scale_invariant(example: Counterexample) -> float:
    J, factors = example.cases[0].at(), _vector(example.factors)
    if factors.min() <= 0.0:
        return -math.inf
    d, scaled = example.direction(J), example.direction(factors[:, None] * J)
    return float((d / d.norm() - scaled / scaled.norm()).norm())


def _continuous(example: Counterexample) -> float:
    case = example.cases[0]
    d = example.direction(case.at())
    near = [example.direction(case.at(t)) for t in NEAR]
    jumps = [float((found - d).norm()) for found in near]
    longest = max(float(found.norm()) for found in (d, *near))
    return min(jumps) / longest if jumps[-1] >= _STAYS * jumps[0] > 0.0 else -math.inf


def _continuous_inside(example: Counterexample) -> float:
    inside = bool((example.cases[0].at() @ _vector(example.z)).min() > 0.0)
    return _continuous(example) if inside else -math.inf


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / max(float(a.norm()), float(b.norm()), 1e-300))


def _vector(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


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
