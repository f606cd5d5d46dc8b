"""Cyclic projections of every gradient onto the half-spaces of the others, on the Gramian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solution import Point
from paretograd.solvers.active_set import active_set
from paretograd.solvers.support import solve_shared_qps

#: Largest m for which all rows in all orders, m^3 numbers, are gathered at once.
_GATHERED = 48

#: The largest number of sweeps for few and for many gradients, for which a sweep takes milliseconds. Usually the set of
#: half-spaces settles after a dozen sweeps; close to stationary points it may take thousands.
_MOST, _LEAST = 10_000, 64

#: Lifts and slopes below this count as zero: next to coefficients of at least one they are rounding.
_NOTHING = 1e-13

#: If lifts grow by this factor, the matrix is not a Gramian.
_GROWN = 1e6


class Sweep(NamedTuple):
    """Treated gradients: row k holds the coefficients of gradient k's current version, and its slopes."""

    coefficients: Array
    slopes: Array

    @classmethod
    def start(cls, C: Array) -> Sweep:
        """The untreated gradients."""
        return cls(np.eye(len(C)), C)


def sweep_in_order(C: Array, start: Sweep) -> Sweep:
    """One pass over i = 1..m. All gradients k are treated at once, because they do not affect each other."""
    A, X = start.coefficients.copy(), start.slopes.copy()
    for i in range(len(C)):
        lift = np.maximum(-X[:, i], 0.0)
        A[:, i] += lift
        X += lift[:, None] * C[i]
    return Sweep(A, X)


def sweep_shuffled(C: Array, start: Sweep, orders: NDArray[np.intp]) -> Sweep:
    """One pass in which gradient k meets the others in the order ``orders[k]``."""
    m = len(C)
    X = start.slopes.copy()
    flat = X.ravel()
    # Gradient k meets every other one once, so all coefficients can be added at the end.
    places = orders + m * np.arange(m)[:, None]
    lifts = np.empty((m, m))
    gathered = C[orders] if m <= _GATHERED else None
    for step in range(m):
        lift = np.maximum(-flat.take(places[:, step]), 0.0)
        lifts[:, step] = lift
        X += lift[:, None] * (C[orders[:, step]] if gathered is None else gathered[:, step])
    A = start.coefficients.copy()
    A.ravel()[places] += lifts
    return Sweep(A, X)


def sweep_to_targets(C: Array, targets: Array, orders: NDArray[np.intp], resolution: float) -> tuple[Array, Array]:
    """One pass that turns gradient k towards each other gradient i until their cosine is at least ``targets[k, i]``.

    What is added along the unit gradient i makes its slope ``factor * rest``, with rest the length of the part of k
    that is orthogonal to i, and factor the cotangent of the angle wanted. If i and k are opposite, rest is zero, and so
    is all of k: it then has no cosines, and meets no others.

    Args:
        C: cosines.
        targets: at most one, shape ``(m, m)``; the diagonal is not used.
        orders: gradient k meets the others in the order ``orders[k]``.
        resolution: of the matrix, see `UnitGramian`. A smaller angle counts as zero.

    Returns:
        the coefficients of the treated gradients, one row each, and the cosines met, NaN where there is none.
    """
    m = len(C)
    A, X, squares, rows = np.eye(m), C.copy(), np.ones(m), np.arange(m)
    others = orders[orders != rows[:, None]].reshape(m, max(m - 1, 0))  # no gradient meets itself
    places = (rows[:, None], others)
    wanted = targets[places]
    factors = wanted / np.sqrt(np.maximum(1.0 - wanted * wanted, resolution**2))
    cosines = np.empty(others.shape)
    for step, i in enumerate(others.T):
        x, length, factor = X[rows, i], np.sqrt(squares), factors[:, step]
        cosine = np.divide(x, length, out=np.full(m, np.nan), where=squares > 0.0)
        cosines[:, step] = cosine = np.minimum(np.maximum(cosine, -1.0), 1.0)
        rest = np.sqrt(np.maximum(squares - x * x, 0.0))
        rest[rest <= resolution * A.sum(axis=1)] = 0.0
        turned = cosine < wanted[:, step]
        lift = np.where(turned, np.maximum(factor * rest - x, 0.0), 0.0)
        A[rows, i] += lift
        X += lift[:, None] * C[i]
        squares = np.where(turned, rest * rest * (1.0 + factor * factor), squares)
        X[squares == 0.0] = 0.0
    met = np.full((m, m), np.nan)
    met[places] = cosines
    return A, met


def sweep_to_limit(C: Array, resolution: float) -> tuple[Point, bool]:
    """Sweep in order until the set of half-spaces that are touched settles, then project what is left.

    A set that stays the same for some sweeps may still change later. So the projection has to agree with it, and so
    has a forecast of the sweeps to come.

    Returns:
        the coefficients of all treated gradients, one row each, and whether they are the limit of the sweeps. If not,
        they are still projections onto the dual cone.
    """
    sweep, steps, same, check = Sweep.start(C), 0, 0, 8
    active = np.zeros_like(C, dtype=bool)
    most = min(_MOST, max(_LEAST, 1_000_000 // max(len(C), 1) ** 2))
    while len(C) and steps < most:
        after = sweep_in_order(C, sweep)
        steps += 1
        # If gradients are opposite, projections below rounding come and go without end.
        rounding = 1e-14 * after.coefficients.max(axis=1, keepdims=True)
        lifts = after.coefficients - sweep.coefficients
        touched = lifts > rounding
        sweep = after
        same = same + 1 if (touched == active).all() else 0
        active = touched
        if not touched.any():
            break
        if same >= 8 and steps >= check:
            left = _Left.of(C, sweep, resolution)
            if left.agrees(C, touched, resolution) and _stay(C, sweep, lifts, touched):
                return left.added_to(sweep, steps, reached=True)
            check = 2 * steps
    return _Left.of(C, sweep, resolution).added_to(sweep, steps, reached=steps < most)


class _Left(NamedTuple):
    """The projections of the treated gradients onto the dual cone: multipliers, one row per gradient."""

    added: Array
    slopes: Array
    residual: float = 0.0
    rounds: int = 0
    growth: float = 1.0

    @classmethod
    def of(cls, C: Array, sweep: Sweep, resolution: float) -> _Left:
        """Project. Gradients that do not conflict stay as they are."""
        if not sweep.slopes.min(initial=0.0) < 0.0:
            return cls(np.zeros_like(C), sweep.slopes)
        size = sweep.coefficients.max(axis=1, keepdims=True)
        found, residual, rounds = solve_shared_qps(C, sweep.coefficients / size, resolution)
        added = found * size
        return cls(added, sweep.slopes + added @ C, residual, rounds, 1.0 + float(found.max()))

    def added_to(self, sweep: Sweep, steps: int, reached: bool) -> tuple[Point, bool]:
        """The answer of `sweep_to_limit`. If sweeps ended early, the residual is at least the largest addition."""
        residual = self.residual if reached else max(self.residual, float(self.added.max()))
        return Point(sweep.coefficients + self.added, residual, steps + self.rounds, self.growth), reached

    def agrees(self, C: Array, touched: NDArray[np.bool_], resolution: float) -> bool:
        """Return True if the projections are the limits of sweeps that keep touching these half-spaces.

        Such a limit lies on the boundary of every touched half-space, and it is the projection onto these half-spaces
        alone.
        """
        if (touched & (self.slopes > resolution)).any():
            return False
        for k in np.flatnonzero((~touched & (self.added > resolution)).any(axis=1)):
            rows, move = np.flatnonzero(touched[k]), -self.added[k]
            if len(rows):
                q = (self.slopes[k] - self.added[k] @ C)[rows]
                move[rows] += active_set(C[np.ix_(rows, rows)], q, resolution).a
            if move @ C @ move > resolution**2:
                return False
        return True


def _stay(C: Array, sweep: Sweep, lifts: Array, touched: NDArray[np.bool_]) -> bool:
    """Return True if all further sweeps touch the same half-spaces as the last one.

    Two half-spaces that are touched in turn always will be: each lift is the last one times the cosine.
    """
    busy = (np.count_nonzero(touched, axis=1) > 2) & (lifts.max(axis=1) > _NOTHING)
    return all(_row_stays(C, sweep.slopes[k], lifts[k], touched[k]) for k in busy.nonzero()[0])


def _row_stays(C: Array, slopes: Array, lifts: Array, touched: NDArray[np.bool_]) -> bool:
    """The same for one gradient. Next lifts are a Gauss-Seidel step: ``(I + L) next = -L' last, C = I + L + L'``."""
    rows, others = np.flatnonzero(touched), np.flatnonzero(~touched)
    L = np.tril(C[np.ix_(rows, rows)], -1)
    power = np.linalg.solve(np.eye(len(rows)) + L, -L.T)
    block = (power @ lifts[rows])[:, None]
    for _ in range(5):  # 32 sweeps at a time, one column each
        block = np.hstack([block, power @ block])
        power = power @ power
    met = C[np.ix_(others, rows)]
    before = met * (rows < others[:, None])  # the part of a sweep that comes before each half-space
    slope = slopes[others][:, None]
    for _ in range(_MOST // block.shape[1]):
        moved = slope + met @ np.cumsum(block, axis=1)
        if min(block.min(), (moved - (met - before) @ block).min(initial=0.0)) < -_NOTHING:
            return False
        last = block[:, -1].max()
        if last <= _NOTHING or last > _GROWN * lifts.max():
            break
        slope, block = moved[:, -1:], power @ block
    return True
