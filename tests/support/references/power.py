"""The power-mean equation: G w = (omega / w)^beta with w > 0, by Newton's method in fixed point, for any m.

Nash-MTL is beta = 1, FairGrad beta = 1 / alpha, PIVRG beta = 1/2 with its omega, and the power mean is
FairGrad with alpha = 1 - p, rescaled. The solution minimises the strictly convex function

    w'Gw / 2 - sum_k omega_k^beta w_k^(1 - beta) / (1 - beta)        (beta = 1: sum_k omega_k log w_k)

and exists if and only if 0 is not in the hull of the rows: else w'Gw does not grow along some ray. With rows
2^e_k u_k, |u_k| near 1, and y_k = 2^e_k w_k the equation keeps its form, so that scales do no harm. Newton
stops where every equation holds to 1e-60.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mpmath
import numpy as np

from . import qp
from .fixed import BITS, ONE, Fixed, answer, dot, gram, lift, lower, over, solve, times
from .float64 import unit_rows
from .qp import Array, Point

_mp = mpmath.MPContext()
_mp.prec = BITS


class StationaryError(ValueError):
    """0 is in the hull of the rows: the equation has no solution."""


def _power(values: Fixed, exponent: float) -> Fixed:
    """Elementwise power of positive numbers."""
    powers = (_mp.ldexp(v, -BITS) ** _mp.mpf(exponent) for v in values.tolist())
    return np.array([int(_mp.ldexp(p, BITS)) for p in powers], dtype=object)


class _Solution(NamedTuple):
    """Weights and slopes x = G w in fixed point, and the direction in fixed point."""

    weights: Fixed
    slopes: Fixed
    direction: Fixed


def power_equation(J: Array, beta: float, omega: Array | None = None) -> Point:
    """The w > 0 with G w = (omega / w)^beta (omega = 1 by default) and its direction.

    Weights below 1e-180 of their size at G = 1 (very small beta, very unequal rows) are returned as 0: they
    are not needed for the direction, and float64 would hardly hold them.
    """
    solution = _solve(J, beta, omega)
    return Point(answer(solution.weights), answer(solution.direction))


def _solve(J: Array, beta: float, omega: Array | None = None) -> _Solution:
    if qp.is_stationary(J):
        raise StationaryError("0 is in the convex hull of the rows")
    exponents = np.round(np.log2(unit_rows(J)[1]))
    scales, inverse = lift(2.0**exponents), lift(2.0**-exponents)
    rows = lift(J * 2.0 ** -exponents[:, None])
    # (U U.T y)_k 2^e_k = (omega_k 2^e_k / y_k)^beta
    factor = _power(lift(np.ones(len(J)) if omega is None else omega), beta)
    y = _newton(gram(rows), times(factor, _power(scales, beta - 1)), beta)
    direction = dot(rows.T, y)
    return _Solution(times(y, inverse), times(dot(rows, direction), scales), direction)


def _newton(H: Fixed, factor: Fixed, beta: float) -> Fixed:
    """y > 0 with H y = factor * y^-beta."""
    y = _power(factor, 1 / (1 + beta))  # exact for H = 1
    floor = y >> 600
    curvature = int(lift(beta))
    limit = times(factor, _power(floor, -beta))
    for _ in range(2000):
        # A variable that was pushed below the floor is out, until its equation asks for it again.
        live = np.flatnonzero(y > floor)
        y = np.where(y > floor, y, 0)
        pull = times(factor[live], _power(y[live], -beta))
        gap = pull - dot(H[np.ix_(live, live)], y[live])
        if (abs(gap) * 10**60 < pull).all():
            wanted = (y == 0) & (dot(H, y) < limit)
            if not wanted.any():
                return y
            y[wanted] = 2 * floor[wanted]
            continue
        move = solve(H[np.ix_(live, live)] + np.diag(over(times(curvature, pull), y[live])), gap)
        assert move is not None, "the barrier makes the Hessian definite"
        # At most 99% towards the boundary; then back until the slope along the step is not clearly positive
        # again: the function is convex, so it has decreased.
        length = min([ONE] + [over(-v * 99 // 100, s) for v, s in zip(y[live], move, strict=True) if s < 0])
        while True:
            trial = y[live] + times(length, move)
            change = times(factor[live], _power(trial, -beta)) - dot(H[np.ix_(live, live)], trial)
            if -int(dot(change, move)) * 10 <= int(dot(gap, move)):
                break
            length >>= 1
        y[live] = trial
    raise ArithmeticError(f"Newton's method did not converge (m={len(y)}, beta={beta})")


def nash_mtl(J: Array) -> Point:
    """G w = 1 / w; the direction has norm sqrt(m)."""
    return power_equation(J, 1.0)


def fairgrad(J: Array, alpha: float) -> Point:
    """G w = w^(-1/alpha), alpha > 0."""
    return power_equation(J, 1 / alpha)


def pivrg(J: Array, omega: Array) -> Point:
    """G w = (omega / w)^(1/2)."""
    return power_equation(J, 0.5, omega)


def power_mean(J: Array, p: float) -> Point:
    """w_k = x_k^(p-1) M_p(x)^(1-p) / m with x = G w, M_p the power mean (eq. pmean), p <= 1, -inf included.

    With v the solution of FairGrad's equation for alpha = 1 - p and x = G v, v = x^(p-1), and w is
    v M_p(x)^(1-p) / m, because the right-hand side does not change when x is scaled.
    """
    if p == -math.inf:
        return qp.min_norm_point(J)
    if p == 1:
        return Point(np.full(len(J), 1 / len(J)), answer(lift(J).sum(axis=0) // len(J)))
    solution = _solve(J, 1 / (1 - p))
    mean = _mp_mean([_mp.ldexp(x, -BITS) for x in solution.slopes.tolist()], p)
    scale = int(_mp.ldexp(mean ** (1 - _mp.mpf(p)) / len(J), BITS))
    return Point(answer(times(solution.weights, scale)), answer(times(solution.direction, scale)))


def _mp_mean(values: list[mpmath.mpf], p: float) -> mpmath.mpf:
    if p == 0:
        return _mp.exp(sum(_mp.log(v) for v in values) / len(values))
    return (sum(v ** _mp.mpf(p) for v in values) / len(values)) ** (1 / _mp.mpf(p))


def power_residual(J: Array, w: Array, beta: float, omega: Array | None = None) -> float:
    """max_k |(G w)_k / (omega_k / w_k)^beta - 1|, with G w exact for the w given."""
    slopes = lower(dot(gram(lift(J)), lift(w)))
    wanted = ((1.0 if omega is None else omega) / w) ** beta
    return float(np.abs(slopes / wanted - 1).max())


def power_mean_residual(J: Array, w: Array, p: float) -> float:
    """max_k |w_k / (x_k^(p-1) M_p(x)^(1-p) / m) - 1| with x = G w exact for the w given, p finite.

    Infinite where a slope is not positive: that happens to the exact weights too, once they are rounded to
    float64, if the rows are badly scaled or nearly stationary.
    """
    slopes = [_mp.ldexp(v, -BITS) for v in dot(gram(lift(J)), lift(w)).tolist()]
    if min(slopes) <= 0:
        return math.inf
    mean = _mp_mean(slopes, p)
    wanted = [(x / mean) ** (_mp.mpf(p) - 1) / len(w) for x in slopes]
    return max(float(abs(v / target - 1)) for v, target in zip(w.tolist(), wanted, strict=True))
