"""Cyclic projections of every gradient onto the half-spaces of the others, on the Gramian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solution import Point
from paretograd.solvers.active_set import active_set
from paretograd.solvers.support import solve_shared_qps

#: Largest m for which the m^3 numbers of all rows in all orders are gathered at once.
_GATHERED = 48

#: Most sweeps, and how many are made in any case. Mostly a dozen do until the half-spaces that they project onto stay
#: the same; next to stationary points it may take thousands, and for many gradients a sweep takes milliseconds.
_MOST, _LEAST = 10_000, 64

#: Lifts and slopes below this are zero: what they add to coefficients of at least one is rounding.
_NOTHING = 1e-13

#: Lifts that grow so many times belong to a matrix that is no Gramian.
_GROWN = 1e6


class Sweep(NamedTuple):
    """Treated gradients: row k holds the coefficients of gradient k's current version, and its slopes."""

    coefficients: Array
    slopes: Array

    @classmethod
    def start(cls, C: Array) -> Sweep:
        """Every gradient as it is."""
        return cls(np.eye(len(C)), C)


def sweep_in_order(C: Array, start: Sweep) -> Sweep:
    """One pass over i = 1..m; all gradients k are treated side by side, as they do not affect each other."""
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
    # Gradient k meets each other one once, so that all coefficients can be added in the end.
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
        # Projections by less than rounding come and go without end where gradients are opposite.
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
    """The projection of what a sweep has left of the gradients onto the dual cone: multipliers, one row a gradient."""

    added: Array
    slopes: Array
    residual: float = 0.0
    rounds: int = 0
    growth: float = 1.0

    @classmethod
    def of(cls, C: Array, sweep: Sweep, resolution: float) -> _Left:
        """Project; nothing is added to gradients that do not conflict."""
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
        """Return True if the projections are the limits of sweeps that go on to touch these half-spaces.

        Such a limit lies on the boundary of every half-space that is touched, and it is the projection onto these
        half-spaces alone.
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
    """Return True if sweeps that go on touch the half-spaces that the last one touched, and no others.

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
    before = met * (rows < others[:, None])  # what half-spaces see of the sweep in which it is their turn
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
