"""The point of least norm in the hull of unit gradients whose weights have upper bounds of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solution import Point

_Mask = NDArray[np.bool_]

#: Rounding allowed in a comparison of slopes, which are of order one.
_TOL = 1e-13

#: No move of weights between 0 and 1 is longer. The solution of a singular system may be.
_FAR = 2.0


def bounded_min_norm_point(C: Array, bounds: Array) -> Point:
    """Minimise ``w'Cw / 2`` subject to ``0 <= w <= bounds`` and ``sum(w) = 1``, by a primal active-set method.

    On the free weights, the problem has a linear system. A step towards its solution either arrives there or stops at
    the first bound. Once it has arrived, the weight whose bound costs most becomes free. At the answer all slopes
    ``(Cw)_k`` of free weights equal some lambda; at zero they are at least, and at the upper bound at most lambda.

    Args:
        C: cosines, or zeros for zero gradients, shape ``(m, m)``.
        bounds: upper bounds, shape ``(m,)``, non-negative, with a sum of at least one.
    """
    m = len(C)
    w = bounds / bounds.sum()
    free = (w > 0.0) & (w < bounds)
    refined, steps = False, 0
    while steps < 20 + 20 * m:
        steps += 1
        move = _move(C, w, free)
        share, blocking = _longest(w, move, bounds, free)
        w = np.clip(w + share * move, 0.0, bounds)
        if blocking is not None:
            w[blocking] = 0.0 if move[blocking] < 0.0 else bounds[blocking]
            free[blocking] = False
            continue
        slopes = C.dot(w)
        if not refined and free.any() and np.ptp(slopes[free]) > _TOL:
            refined = True  # another move removes most of the rounding
            continue
        refined = False
        worst, violation = _worst(slopes, w, bounds, free)
        if violation <= _TOL:
            break
        free[worst] = True
    w /= w.sum()
    slopes = C.dot(w)
    residual = _worst(slopes, w, bounds, free)[1]
    if free.any():
        residual = max(residual, float(np.ptp(slopes[free])))
    return Point(w, residual, steps, stationary=bool(w.dot(slopes) <= _TOL))


def _move(C: Array, w: Array, free: _Mask) -> Array:
    """Return the move of the free weights, of sum zero, to the least norm. It is the shortest if there are several.

    Only the differences of the gradients count, which may be much shorter than the gradients.
    """
    move, inside = np.zeros_like(w), free.nonzero()[0]
    if len(inside) > 1:
        first, others = inside[0], inside[1:]
        apart = C[np.ix_(others, others)] - C[others, first] - C[first, others][:, None] + C[first, first]
        size = float(apart.diagonal().max())
        if size > 0.0:
            slopes = C[inside].dot(w)
            wanted = (slopes[0] - slopes[1:]) / size
            move[others] = _solved(apart / size, wanted)
            move[first] = -move[others].sum()
    return move


def _solved(matrix: Array, wanted: Array) -> Array:
    """Solve a linear system with a positive semidefinite matrix; if it is singular, by the shortest solution."""
    try:
        found = np.asarray(np.linalg.solve(matrix, wanted))
        if np.abs(found).max() <= _FAR and np.abs(matrix @ found - wanted).max() <= _TOL:
            return found
    except np.linalg.LinAlgError:
        pass
    return np.asarray(np.linalg.lstsq(matrix, wanted, rcond=1e-14)[0])


def _longest(w: Array, move: Array, bounds: Array, free: _Mask) -> tuple[float, int | None]:
    """Return the share of the move that no bound cuts off, and the number of the weight whose bound does."""
    room = np.where(move < 0.0, w, bounds - w)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(free & (move != 0.0), room / np.abs(move), np.inf)
    first = int(shares.argmin())
    return (float(shares[first]), first) if shares[first] < 1.0 else (1.0, None)


def _worst(slopes: Array, w: Array, bounds: Array, free: _Mask) -> tuple[list[int], float]:
    """Return the weights to free, and the violation of the optimality conditions by their bounds."""
    low, high = (~free & (w == 0.0) & (bounds > 0.0)), (~free & (w > 0.0))
    if free.any():
        level = float(slopes[free].mean())
        gain = np.where(low, level - slopes, np.where(high, slopes - level, -np.inf))
        worst = int(gain.argmax())
        return [worst], max(float(gain[worst]), 0.0)
    if not (low.any() and high.any()):
        return [], 0.0
    enters = int(np.where(low, slopes, np.inf).argmin())
    leaves = int(np.where(high, slopes, -np.inf).argmax())
    return [enters, leaves], max(float(slopes[leaves] - slopes[enters]), 0.0)
