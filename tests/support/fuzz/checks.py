"""What is checked of a rule on one input. Each check says by how much its limit is exceeded, or nearly.

Properties that the guarantee promises are evaluated without rounding on the float64 weights that the rule returned. The
rounding of these weights' sum is allowed, a few units of ``eps * sum_k |w_k| |g_k|``. Where rows are known up to
rounding only (`Input.is_rounded`), a conflict of a cosine of 1e-5 and a direction off by `Input.accuracy` are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import paretograd as pg
from support.families import Family
from support.families.cancelling import SAFE_ANGLE, exact
from support.families.extreme import LEAST_NORM
from support.promises import CONFLICT, NEGLIGIBLE, SUMMED
from support.table import ROWS, Row

from .exact import Problem
from .inputs import Input
from .sums import Array, ExactRows, Sum
from .truth import judge, ratio

#: A few units of float64, for each row of a sum.
ROUNDING = 1e-15
#: A unit gradient closer to a span counts as lying in it, and a hull closer to 0 as stationary.
RESOLUTION = 2e-6

#: What a rule must not raise; warnings are errors here.
FAILURES = (ArithmeticError, ValueError, TypeError, RuntimeError, AssertionError, IndexError, Warning)

RULES: dict[str, Row] = {row.id: row for row in ROWS}


class Check(NamedTuple):
    """A property by name, and how far it is from its limit: above 1 is a violation."""

    name: str
    excess: float
    detail: str = ""

    @property
    def is_violation(self) -> bool:
        return not self.excess <= 1.0  # NaN is one, too


class Scene:
    """An input with what all rules need of it, computed once."""

    def __init__(self, given: Input) -> None:
        self.given = given
        self.J = torch.from_numpy(given.enlarged)
        # A row whose square underflows counts as zero, see `Input.live`.
        self.rows = ExactRows(np.where(given.live[:, None], given.enlarged, 0.0))
        self._orders: dict[tuple[int, ...], Tensor] = {}

    def gramian(self, order: tuple[int, ...] | None = None) -> Tensor:
        """Of the enlarged rows, in the order given."""
        key = tuple(range(self.given.m)) if order is None else order
        if key not in self._orders:
            self._orders[key] = pg.gramian(self.J[list(key)])
        return self._orders[key]

    @cached_property
    def stored(self) -> Problem:
        """The exact problem of the rows as stored."""
        given = self.given
        return given.problems[0] if given.ideals is None else Input(given.family, given.rows, given.single).problems[0]

    @cached_property
    def units(self) -> Array:
        """The rows divided by their norms; zero rows stay zero."""
        scaled = _ldexp(self.given.enlarged, -np.array(self.rows.exponents)[:, None])
        return np.where(self.rows.norms > 0.0, 1.0, 0.0)[:, None] * scaled / np.maximum(self.rows.norms, 0.25)[:, None]

    @cached_property
    def unit_gamma(self) -> float:
        """Distance from 0 of the hull of the unit gradients."""
        if not (self.rows.norms > 0.0).all():
            return 0.0
        problem = Problem(exact(torch.from_numpy(self.units)))
        return math.ldexp(problem.gamma, problem.exponent)


@cache
def scene_of(family: Family, m: int, n: int, seed: int) -> Scene:
    """The scene of a family's matrix, made once in a process: exact solutions take longer than the rules."""
    return Scene(Input.of(family, m, n, seed))


def examine(scene: Scene, name: str, *, depth: int, seed: int = 0) -> Iterator[Check]:
    """Check a rule on an input.

    Args:
        scene: the input.
        name: of the rule's row in the shared table.
        depth: 0 for the promises; 1 for the truth and the direct call, too; 2 for orders and powers of two as well.
        seed: of the orders and powers that are tried.
    """
    try:
        yield from _examine(scene, RULES[name], depth, seed)
    except FAILURES as error:
        yield Check("raises", math.inf, f"{type(error).__name__}: {error}"[:200])
    else:
        yield Check("raises", 0.0)


_made: dict[str, tuple[pg.Aggregator, bool]] = {}


def rule_of(row: Row) -> pg.Aggregator:
    """The rule of a row: made once in a process, or anew if it has a state."""
    if row.id not in _made:
        rule = row.make()
        _made[row.id] = rule, bool(rule.state_dict())
    rule, has_state = _made[row.id]
    return row.make() if has_state else rule


def _examine(scene: Scene, row: Row, depth: int, seed: int) -> Iterator[Check]:
    given, rule = scene.given, rule_of(row)
    promise = rule.guarantee
    solution = rule.solve(scene.gramian())
    w = solution.weights.numpy()
    finite = bool(np.isfinite(w).all())
    yield Check("finite", 0.0 if finite else math.inf, str(w.tolist()))
    if not finite:
        return
    found = scene.rows.sum(w)
    if solution.status is pg.Status.INACCURATE and _is_power(row) and given.family == "scaled_150":
        return  # docs/input.md states this limit
    yield _status(scene, solution, w, depth)
    yield from _promises(scene, promise, w, found)
    yield from _length(scene, row.id, found)
    if depth >= 1:
        judged = judge(row.id, given, found) if given.has_truth else None
        if judged is not None:
            yield Check("truth", judged.error)
            yield Check("weights", judged.weight)
        yield from _called(scene, row, promise, found)
    if depth >= 2:
        yield from _orders(scene, row, promise, found, seed)
        yield from _powers(scene, row, promise, found, seed)


def _is_power(row: Row) -> bool:
    """Return True for rules of the power equation, and pools that hold one."""
    return row.id.startswith(("power-mean", "fairgrad", "pivrg", "nash-mtl", "subproblem(power", "mas-r"))


def _status(scene: Scene, solution: pg.Solution, w: Array, depth: int) -> Check:
    if solution.status is pg.Status.INACCURATE:
        # Said where the Gramian does not know the angle between rows better, or by so little that no step changes.
        allowed = max(1e-8, scene.given.blur)
        return Check("status", solution.residual / allowed, f"INACCURATE, residual {solution.residual:.1e}")
    if depth >= 1 and solution.status is pg.Status.STATIONARY:
        return Check("status", scene.unit_gamma / RESOLUTION, f"STATIONARY at gamma {scene.unit_gamma:.1e}")
    if solution.status is pg.Status.DEGENERATE and w.any():
        return Check("status", math.inf, "DEGENERATE, and not zero")
    return Check("status", 0.0)


def _promises(scene: Scene, promise: pg.Guarantee, w: Array, found: Sum) -> Iterator[Check]:
    given, m = scene.given, scene.given.m
    zero = not w.any()
    if promise.in_cone:
        yield Check("cone", 0.0 if w.min() >= 0.0 else math.inf, f"a weight of {w.min():.1e}")
    if promise.in_hull and not zero:
        yield Check("hull", abs(math.fsum(w) - 1.0) / (SUMMED * m))
    elif promise.beyond_hull and not zero:
        yield Check("hull", (1.0 - math.fsum(w)) / (SUMMED * m))
    if found.length <= NEGLIGIBLE * found.terms:
        return
    # Weights of the power rules are exponentials, whose relative rounding is that of their exponents.
    decades = 0.7 * (max(scene.rows.exponents) - min(scene.rows.exponents))
    rounding = ROUNDING * (m + 4 + decades) * found.terms
    scale = _scale(scene, promise, found)
    # Where <d, q> = |d|^2 makes a promise an equality, the error of the direction shows.
    blurred = (given.accuracy if given.is_rounded else given.blur) * scale
    if promise.non_conflicting:
        slack = CONFLICT * found.length + rounding
        if given.is_rounded or given.angle < 10.0 * SAFE_ANGLE:
            slack += 1e-5 * found.length + blurred
        worst = float(found.slopes.min())
        yield Check("conflict", -worst / slack, f"cosine {worst / found.length:.1e}")
    if promise.alignment is not None:
        phi = promise.F.phi(m)
        logs = np.log2(np.maximum(phi * scene.rows.norms, 1e-300)) + scene.rows.exponents
        shares = np.exp2(logs - logs.max())  # phi_k |g_k| relative to the largest
        least = promise.alignment * found.length**2 * 2.0 ** min(found.exponent - float(logs.max()), 1000.0)
        along = float(shares @ found.slopes)
        slack = 1e-9 * least + (CONFLICT * found.length + rounding + blurred) * float(shares.sum())
        yield Check("alignment", (least - along) / slack, f"<d, grad F> = {along:.3e}, c |d|^2 = {least:.3e}")


def _scale(scene: Scene, promise: pg.Guarantee, found: Sum) -> float:
    """What a direction error is relative to: the longest gradient, or the terms of the sum if these are shorter."""
    if promise.degree != 1.0:
        return found.terms
    return min(found.terms, scene.given.m * float(scene.rows.lengths(found.exponent).max()))


def _length(scene: Scene, name: str, found: Sum) -> Iterator[Check]:
    """A projection is never longer than what it projects."""
    plain = name.partition("(")[0]
    lengths = scene.rows.lengths(found.exponent)
    if name in ("upgrad", "pcgrad", "pcgrad+"):
        bound = float(lengths.mean())
    elif name == "greedy-dcp":
        bound = float(lengths.max())
    elif name == "dualproj" or (plain == "cagrad" and not name.endswith("*")):
        mean = scene.rows.sum(np.full(scene.given.m, 1.0 / scene.given.m))
        factor = 1.0 if plain == "dualproj" else 1.0 + float(name[7:-1])
        bound = factor * math.ldexp(mean.length, mean.exponent - found.exponent)
        bound += 1e-15 * math.ldexp(mean.terms, mean.exponent - found.exponent)
    else:
        return
    blurred = (scene.given.accuracy if scene.given.is_rounded else scene.given.blur) * float(lengths.max())
    terms = min(found.terms, 10.0 * scene.given.m * float(lengths.max()))  # larger ones are no excuse
    allowed = bound * (1.0 + 1e-9) + ROUNDING * (scene.given.m + 4) * terms + blurred
    yield Check("length", ratio(found.length, allowed), f"{found.length / (bound or 1.0):.3g} times")


def _called(scene: Scene, row: Row, promise: pg.Guarantee, found: Sum) -> Iterator[Check]:
    """The direction that a call returns is the sum that the weights say, rounded once."""
    given, degree = scene.given, promise.degree
    if given.enlargement and (degree is None or promise.recalls_lengths):
        return
    d = rule_of(row)(given.jacobian).double().numpy()
    power = found.exponent - given.enlargement * (degree or 0.0)
    eps = 1.2e-7 if given.single else 2.3e-16
    off = np.abs(_times_power(d, -power) - found.d).max()
    # Directions of subnormal numbers are rounded to their spacing, and rows that count as zero may be part of the sum.
    spacing = float(_times_power(np.array(2.0**-1074 if given.live.all() else LEAST_NORM), -power))
    # The logarithms that power rules work with are as large as the exponents, and so is their rounding.
    allowed = 2.0 * eps * found.length + ROUNDING * (given.m + 4 + abs(given.enlargement)) * found.terms + spacing
    yield Check("sum", ratio(float(off), allowed), f"off by {off:.1e}")


def _distance(found: Sum, other: Sum) -> float:
    """Between two directions, in the unit of the first; infinite where that overflows."""
    shift = max(0, other.exponent - found.exponent)
    apart = _ldexp(other.d, other.exponent - found.exponent - shift) - _ldexp(found.d, -shift)
    return float(_ldexp(np.linalg.norm(apart), shift))


def _ldexp(values: Array, exponent: int | NDArray[np.int_]) -> Array:
    """``2^exponent`` times the values; infinite where that overflows."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(values, exponent))


def _times_power(values: Array, exponent: float) -> Array:
    """``2^exponent`` times the values, for a power that need not be an integer."""
    whole = math.floor(exponent)
    return _ldexp(values * 2.0 ** (exponent - whole), whole)


def _orders(scene: Scene, row: Row, promise: pg.Guarantee, found: Sum, seed: int) -> Iterator[Check]:
    """The order of the objectives does not change the direction: every order of up to four, a few of more."""
    m = scene.given.m
    if not promise.equivariant or m == 1 or scene.given.is_between:
        return
    rng = np.random.default_rng(seed)
    orders = list(permutations(range(m)))[1:] if m <= 4 else [tuple(rng.permutation(m).tolist()) for _ in range(6)]
    worst, which = 0.0, orders[0]
    for order in orders:
        solved = rule_of(row).solve(scene.gramian(order)).weights.numpy()
        back = np.empty(m)
        back[list(order)] = solved
        other = scene.rows.sum(back)
        off = _distance(found, other)
        terms = max(found.terms, float(_ldexp(np.float64(other.terms), other.exponent - found.exponent)))
        scale = min(terms, max(_scale(scene, promise, found), found.length))
        # Below the angle at which projections take rows for dependent, power rules still tell them apart.
        accuracy = max(scene.given.accuracy, scene.given.blur if _is_power(row) else 0.0)
        allowed = 1e-9 * found.length + accuracy * scale
        # Directions that vanish but for the rounding of their terms, or next to the longest gradient, are zero.
        longest = float(scene.rows.lengths(found.exponent).max())
        both = all(
            _ldexp(np.float64(one.length), one.exponent - found.exponent)
            <= NEGLIGIBLE * max(longest, float(_ldexp(np.float64(one.terms), one.exponent - found.exponent)))
            for one in (found, other)
        )
        excess = 0.0 if both else ratio(off, allowed)
        if not excess <= worst:
            worst, which = excess, order
    yield Check("order", worst, f"order {which}")


def _powers(scene: Scene, row: Row, promise: pg.Guarantee, found: Sum, seed: int) -> Iterator[Check]:
    """A(2^p J) = 2^(p degree) A(J), for powers that keep the squares of the norms within float64."""
    degree = promise.degree
    if degree is None:
        return
    low = max(-60, -505 - min(scene.rows.exponents))
    high = min(60, 495 - max(scene.rows.exponents))
    if low >= high or not (scene.rows.norms > 0.0).all():
        return
    p = int(np.random.default_rng(seed).integers(low, high + 1))
    scaled = rule_of(row).solve(pg.gramian(torch.ldexp(scene.J, torch.tensor(p)))).weights.numpy()
    other = scene.rows.sum(_times_power(scaled, p * (1.0 - degree)))
    off = _distance(found, other)
    allowed = 1e-12 * found.length + max(1e-11, scene.given.blur) * found.terms
    if row.id.endswith("*"):
        # The sum of the weights decides the length. A term of the direction that is rounding may be a large weight of a
        # short gradient.
        weights = np.abs(_times_power(scaled, p * (1.0 - degree)))
        share = float(weights.sum()) * float(scene.rows.lengths(found.exponent).min())
        allowed += ratio(ROUNDING * found.terms, share) * found.length
    yield Check("scaling", ratio(off, allowed), f"power {p}")
