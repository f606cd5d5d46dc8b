"""CAGrad's direction: the best worst-case decrease within a ball around a reference gradient."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.active_set import NonnegSolution, smallest
from paretograd.solvers.dual_cone import project_dual_cone
from paretograd.solvers.lapack import solve_spd
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.nonneg_qp import largest, solve_nonneg_qp

#: If norms differ by more than this factor, the min-norm point may hide that longer gradients cancel.
_SPREAD = 1e3

#: How often a bracket is halved before it is split by decades.
_MISSES = 4


def conflict_averse_point(unit: UnitGramian, u: Array, c: float, *, least: bool = False) -> Point:
    """Maximise ``min_k <d, g_k>`` over ``|d - g0| <= c |g0|`` with ``g0 = J.T u``; d = J.T weights.

    For a level t, the point of ``{d : J d >= t}`` nearest to g0 is ``g0 + J.T a`` with ``a >= 0`` from the same
    quadratic program as a projection onto the dual cone. Its distance from g0 grows with t. As long as the support of a
    stays the same, the squared distance is a quadratic in t. Solving this quadratic exactly a few times gives the
    largest level within the ball.

    At a Pareto stationary point no level above 0 exists. If level 0 lies within the ball, the answer is its nearest
    point, the projection of g0 onto the dual cone.
    """
    if c == 0.0 or not len(unit.norms):
        return Point(u, 0.0, 0)
    at_zero = project_dual_cone(unit, u, least=least)
    C, norms = unit.C, unit.norms
    top, bottom = float(norms[norms.argmax()]), float(norms[norms.argmin()])
    pull = unit.restrict(u) * (norms / top)  # weights of the unit gradients in g0 / top
    base = C @ pull
    radius = c * math.sqrt(max(float(pull @ base), 0.0))
    moved = (unit.restrict(at_zero.weights - u)) * (norms / top)
    distance_at_zero = math.sqrt(max(float(moved @ C @ moved), 0.0))
    if radius == 0.0:
        return at_zero
    tilt = bottom / norms  # level t asks for <d, unit g_k> >= t * tilt_k
    nearest = min_norm_point(unit)
    if distance_at_zero <= radius:
        shortest, size = _length(unit, nearest)
        if nearest.stationary or shortest <= unit.resolution * size or (top > _SPREAD * bottom and _cancels(unit)):
            return at_zero
        gamma = shortest / bottom
        low, high = 0.0, 2.0 * (1.0 + c) / c * radius * gamma
    else:
        low, high = float((base / tilt).min()), 0.0
    solution, steps = _best_level(C, base, tilt, radius, low, high, unit.resolution)
    if least:
        solution = smallest(C, solution, norms, unit.resolution)
    weights = u + unit.expand(solution.a * (top / norms))
    used = at_zero.steps + nearest.steps + steps
    return Point(weights, solution.residual, used, 1.0 + largest(solution.a))


def _length(unit: UnitGramian, point: Point) -> tuple[float, float]:
    """The length of a combination of gradients, and the sum of the lengths of its terms."""
    terms = unit.restrict(point.weights) * unit.norms
    return math.sqrt(max(float(terms @ unit.C @ terms), 0.0)), float(terms.sum())


def _cancels(unit: UnitGramian) -> bool:
    """Return True if some unit gradients cancel, which the min-norm point does not show if another is much shorter."""
    alike = unit._replace(norms=np.ones_like(unit.norms))
    shortest, size = _length(alike, min_norm_point(alike))
    return shortest <= unit.resolution * size


def _best_level(
    C: Array, base: Array, tilt: Array, radius: float, low: float, high: float, resolution: float
) -> tuple[NonnegSolution, int]:
    """Return the solution at the largest level t in [low, high] whose distance is at most the radius."""
    level, steps, misses, free = 0.5 * (low + high), 0, 0, None
    best: NonnegSolution | None = None
    best_error = np.inf
    for _ in range(100):
        q = base - level * tilt
        solution = solve_nonneg_qp(C, q, resolution, free=free, bounded=False)
        steps += solution.steps
        a = solution.a
        free = a > 0.0
        # |J.T a|^2 = a'Ca = -a'q by complementarity. An unreachable level is infinitely far.
        distance = math.sqrt(max(-float(a @ q), 0.0)) if math.isfinite(solution.residual) else math.inf
        error = abs(distance - radius) / radius
        if error < best_error:
            best, best_error = solution, error
        if distance <= radius:
            low = max(low, level)
        else:
            high = min(high, level)
        if error < 4e-16 or high - low <= 4e-16 * max(abs(low), abs(high)):
            break
        step = _quadratic_step(C, tilt, a, free, distance, radius)
        candidate = level + step if step is not None else np.nan
        if not low < candidate < high:
            candidate = _between(low, high) if misses >= _MISSES else 0.5 * (low + high)
            misses += 1
        if candidate == level:
            break
        level = candidate
    assert best is not None
    return best, steps


def _between(low: float, high: float) -> float:
    """The middle of a bracket, on a logarithmic scale if its ends are decades apart."""
    small, large = sorted((abs(low), abs(high)))
    if low < 0.0 < high or large <= 100.0 * small:
        return 0.5 * (low + high)
    middle = math.sqrt(max(small, 1e-300 * large)) * math.sqrt(large)
    return middle if high > 0.0 else -middle


def _quadratic_step(
    C: Array, tilt: Array, a: Array, free: NDArray[np.bool_], distance: float, radius: float
) -> float | None:
    """Return the change of the level that makes the distance equal the radius, if the support stays the same."""
    rows = free.nonzero()[0]
    if not len(rows):
        return None
    tilted = tilt.take(rows)
    steepest = float(tilted[tilted.argmax()])
    tilted /= steepest  # so that no square underflows
    p = solve_spd(C.take(rows, 0).take(rows, 1), tilted)
    if p is None:
        return None
    A, slope = float(p.dot(tilted)), float(a.take(rows).dot(tilted))  # |a + s p|^2 = A s^2 + 2 slope s + distance^2
    gap = (distance - radius) * (distance + radius)
    root = slope * slope - A * gap
    if not (root >= 0.0 and slope + math.sqrt(root) > 0.0):
        return None
    return -gap / (slope + math.sqrt(root)) / steepest
