"""The point of least norm in the convex hull of the gradients when no weight may exceed a cap."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array, UnitGramian
from paretograd.solvers.lapack import solve_spd
from paretograd.solvers.min_norm import MinNorm, is_zero, min_norm_point
from paretograd.solvers.nonneg_qp import TOL

#: Added to the diagonal of a matrix that may be singular. Repeating the solve around the last answer removes
#: the bias in a step or two (the proximal point method); well above rounding, so that Cholesky succeeds.
_DELTA = 1e-9


def capped_min_norm_point(unit: UnitGramian, cap: float) -> MinNorm:
    """Minimise ``|J.T w|`` over ``{w in the simplex, w <= cap}`` (the dual of the CVaR subproblem).

    Args:
        unit: the Gramian.
        cap: C in the paper, at least 1/m (the caller checks).
    """
    plain = min_norm_point(unit)
    if plain.weights.max() <= cap:
        return plain
    m, live = unit.m, len(unit.norms)
    total = 1.0 - (m - live) * cap  # zero gradients cost nothing: they take all that the cap allows
    if total <= 0.0:
        return plain  # uniform on the zero gradients, which is below the cap
    if total >= cap * live * (1.0 - 1e-12):
        weights = unit.expand(np.full(live, total / live), fill=cap)
        return MinNorm(weights, 0.0, plain.steps, is_zero(unit, unit.restrict(weights) * unit.norms))
    part, residual, steps = _solve(unit, cap, total)
    stationary = is_zero(unit, part * unit.norms)
    return MinNorm(unit.expand(part, fill=cap), residual, plain.steps + steps, stationary)


def _solve(unit: UnitGramian, cap: float, total: float) -> tuple[Array, float, int]:
    # In units of the first row that the cap keeps from being ignored, y stays of order one at any scale: rows
    # far below it count for nothing in the direction, rows far above it get no weight.
    order = np.argsort(unit.norms, kind="stable")
    needed = min(math.ceil(total / cap), len(order))
    a = unit.norms[order[needed - 1]] / unit.norms
    upper = cap / a
    shifted = unit.C + _DELTA * np.eye(len(a))
    # Start with the cap on the shortest gradients, which is the answer for rows of very different norms.
    y = np.zeros(len(a))
    y[order[: needed - 1]] = upper[order[: needed - 1]]
    y[order[needed - 1]] = total - cap * (needed - 1)
    steps, best, best_residual = 0, y, np.inf
    free = (y > 0.0) & (y < upper)
    for _ in range(30):
        y, free, used = active_set(shifted, -_DELTA * y, upper, y, a, free)
        steps += used
        residual = _residual(unit.C, y, a, upper, free)
        if residual < best_residual:
            best, best_residual = y, residual
        if residual <= 1e-15 * (8 + len(a)):
            break
    weights = np.minimum(best * a, cap)
    inside = weights < cap
    if weights[inside].sum() > 0.0:  # undo the rounding in the sum where it cannot hurt
        weights[inside] *= (total - cap * (len(a) - inside.sum())) / weights[inside].sum()
    return weights, best_residual, steps


def active_set(
    H: Array, q: Array, upper: Array, start: Array, normal: Array, free: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.bool_], int]:
    """Minimise ``y'Hy/2 + q'y`` over ``0 <= y <= upper`` with ``normal @ y`` kept at its value.

    A primal active-set method: for a positive definite H every step lowers the objective, so it ends.

    Args:
        H: shape ``(m, m)``, positive definite.
        q: shape ``(m,)``.
        upper: upper bounds.
        start: a feasible point.
        normal: positive entries.
        free: entries to treat as strictly between their bounds in the beginning.

    Returns:
        the solution, its free entries, and the number of steps.
    """
    y, free = start, free.copy()
    steps = 0
    while steps < 20 * len(q) + 20:
        steps += 1
        move, level = _step(H, H @ y + q, free, normal)
        move[np.abs(move) <= 1e-15 * y] = 0.0  # rounding, which must not push an entry against its bound
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(move < 0.0, -y / move, (upper - y) / move)
        room[~free | (move == 0.0)] = np.inf
        blocking = int(room.argmin())
        if room[blocking] < 1.0:
            y = np.clip(y + room[blocking] * move, 0.0, upper)
            y[blocking] = 0.0 if move[blocking] < 0.0 else upper[blocking]
            free[blocking] = False
            continue
        y = np.clip(y + move, 0.0, upper)
        entering = _entering(H @ y + q, y, free, upper, normal, level)
        if not len(entering):
            break
        free[entering] = True
    return y, free, steps


def _step(H: Array, slope: Array, free: NDArray[np.bool_], normal: Array) -> tuple[Array, float | None]:
    """The move of the free entries to their minimum along the plane, and the multiplier (None if unknown).

    Working with moves, whose product with the normal is zero, keeps rounding in the sum out of the way: entries
    that count for nothing in it may still count in the direction.
    """
    move = np.zeros(len(slope))
    rows = free.nonzero()[0]
    if not len(rows):
        return move, None
    a = normal[rows]
    both = solve_spd(H.take(rows, 0).take(rows, 1), np.stack([slope[rows], a], axis=1))
    if both is None:
        return move, None
    down, along = both[:, 0], both[:, 1]
    level = float((a @ down) / (a @ along))
    move[rows] = level * along - down
    return move, level


def _entering(
    slope: Array, y: Array, free: NDArray[np.bool_], upper: Array, normal: Array, level: float | None
) -> NDArray[np.intp]:
    """Entries to free next: those that lower the objective fastest, or none at the optimum."""
    none = np.empty(0, dtype=np.intp)
    low, high = ~free & (y <= 0.0), ~free & (y >= upper)
    if level is not None:
        reduced = slope - level * normal
        gains = np.where(low, -reduced, np.where(high, reduced, 0.0))
        best = int(gains.argmax())
        return np.array([best]) if gains[best] > TOL * (1.0 + y.max()) else none
    if not (low.any() and high.any()):
        return none
    # Nothing is free, so there is no multiplier: exchange the best pair between the bounds.
    rate = slope / normal
    rise, fall = int(np.where(low, rate, np.inf).argmin()), int(np.where(high, rate, -np.inf).argmax())
    tol = TOL * np.abs(slope).max() / min(normal[rise], normal[fall])
    return np.array([rise, fall]) if rate[fall] - rate[rise] > tol else none


def _residual(C: Array, y: Array, a: Array, upper: Array, free: NDArray[np.bool_]) -> float:
    """Violation of the optimality conditions, relative to ``1 + |y|``, with the multiplier that suits y best."""
    slope = C @ y
    if free.any():
        level = float(slope[free] @ a[free] / (a[free] @ a[free]))
    else:
        level = 0.5 * float((slope / a)[y >= upper].max() + (slope / a)[y <= 0.0].min())
    reduced = slope - level * a
    wrong_way = np.where(y >= upper, np.maximum(reduced, 0.0), np.maximum(-reduced, 0.0))
    return float(np.where(free, np.abs(reduced), wrong_way).max() / (1.0 + y.max()))
