"""The equation behind power means, Nash-MTL, FairGrad and PIVRG: ``(G w)_k = (omega_k / w_k) ** beta``.

It is the optimality condition of a strictly convex function of w > 0 (for Nash-MTL, beta = 1 and omega = 1, of
``w'Gw/2 - sum log w``). We solve it as an interior-point method would, with the slopes as separate unknowns. For unit
gradients with cosines C, and kappa absorbing omega and the norms::

    x = C w                            linear
    beta log w + log x = log kappa     w and x positive, one large if the other is small

Newton's method on this pair takes one Cholesky factorisation per step and keeps w and x positive. It starts at
beta = 1, where five steps suffice at any scale, and moves beta to its value by factors of four. So beta near 0 (almost
MGDA, most weights vanish) and beta far above 1 (almost DualProj) are no harder. If the logarithms of kappa are far
apart, they are introduced gradually too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Outcome, Status, outcome_of, status_of
from paretograd.solvers.lapack import solve_scaled_spd
from paretograd.solvers.min_norm import min_norm_point

#: Lower bound on logarithms: exp(-340) is effectively zero, and its square, exp(-680), is still a float64.
_FLOOR = -340.0

#: exp(-30) is negligible next to one.
_IDLE = -30.0

#: So is kappa below exp(-300), or exp(-300 beta) if beta > 1: w or x is effectively zero.
_RANGE = 300.0

#: How much the range of log kappa may grow from one solve to the next, in units of `_RANGE`.
_STRIDE = 0.4

#: Rounding of slopes relative to their terms, with a margin: slopes raised to this are not negative.
_RAISED = 4e-15

#: Cosines closer than this are equal up to rounding: a few dozen units of float64.
_SAME = 4e-15


@dataclass
class _Iterate:
    z: Array  # log w
    v: Array  # log x
    error: float = np.inf


def solve_logarithms(unit: UnitGramian, beta: float, omega: Array | None = None) -> tuple[Array | None, Outcome]:
    """Solve ``(G w)_k = (omega_k / w_k) ** beta`` for the logarithms of w. The outcome's weights are the logarithms.

    At a Pareto stationary point the equation has no solution, and the subproblem that it comes from has the answer
    d = 0. The logarithms are then None, the weights zero.
    """
    # Whether a point is stationary does not depend on the norms. Equal ones have the least rounding.
    nearest = min_norm_point(unit._replace(norms=np.ones(len(unit.norms))))
    if nearest.stationary:
        return None, Outcome(np.zeros(unit.m), Status.STATIONARY, nearest.residual, nearest.steps)
    log_omega = np.zeros(unit.m) if omega is None else np.log(omega)
    logs, residual, steps = _solve_equation(unit.C, unit.norms, beta, log_omega)
    status = status_of(residual, unit.m, max(1.0, beta))
    return logs, Outcome(logs, status, residual, nearest.steps + steps)


def power_mean_point(unit: UnitGramian, p: float) -> Outcome:
    """Weights of the direction that maximises ``M_p(J d) - |d|^2 / 2`` (eq. pmean), for p <= 1, -inf included."""
    m = unit.m
    if p == 1.0:
        return Outcome(np.full(m, 1.0 / m))
    if p == -math.inf:
        return outcome_of(min_norm_point(unit))
    logs, outcome = solve_logarithms(unit, 1.0 / (1.0 - p))
    if logs is None:
        return outcome
    # The equation's solution has w = x^(p-1). Only the common factor M_p(x)^(1-p) / m is missing.
    log_x = -logs / (1.0 - p)
    if p == 0.0:
        log_mean = float(log_x.mean())
    else:
        top = float((p * log_x).max())
        log_mean = (top + math.log(np.exp(p * log_x - top).mean())) / p
    return outcome._replace(weights=np.exp(logs + (1.0 - p) * log_mean - math.log(m)))


def _solve_equation(C: Array, norms: Array, beta: float, log_omega: Array) -> tuple[Array, float, int]:
    """Solve ``(G w)_k = (omega_k / w_k) ** beta`` for w > 0, ``G = diag(norms) C diag(norms)``.

    A solution exists if and only if the point is not Pareto stationary (the caller checks).

    Args:
        C: cosines of the gradients, shape ``(m, m)``.
        norms: their norms, shape ``(m,)``.
        beta: the exponent, positive.
        log_omega: logarithms of omega, shape ``(m,)``.

    Returns:
        logarithms of the weights; the largest error of the equation relative to its terms; the number of steps.
    """
    log_norms = np.log(norms)
    classes = _equal_directions(C)
    if classes is not None:
        firsts, labels = np.unique(classes, return_inverse=True)
        C = C[np.ix_(firsts, firsts)]
    magnitude = np.abs(C)
    iterate = _Iterate(np.zeros(len(C)), np.zeros(len(C)))
    current, reached, steps, before = 1.0, 0.0, 0, iterate.z
    while True:
        # With w = u / norms the equation reads C u = kappa u^(-beta). A common factor of u is divided out, so that w
        # and x stay of order one. Each beta starts from the solution of the last one.
        log_kappa = each = current * log_omega + (current - 1.0) * log_norms
        if classes is not None:
            log_kappa = np.full(len(C), -np.inf)
            np.logaddexp.at(log_kappa, labels, each / current)
            log_kappa *= current
        shift = float((log_kappa / (1.0 + current)).max())
        target = log_kappa - (1.0 + current) * shift
        exact, lowest = target, -_RANGE * max(1.0, current)
        spread = float(target[target.argmin()]) / lowest
        reached = min(spread, reached + _STRIDE)
        last = current == beta and reached >= min(spread, 1.0)
        if not last and reached < spread:
            target = (reached / spread) * target
        if spread > 1.0:
            target = np.maximum(target, lowest)
        # The equation amplifies the rounding of log w by beta.
        goal = 1e-15 * max(1.0, beta) if last else 1e-2
        if steps:
            iterate = _follow(iterate, current, target, before)
        iterate, used = _newton(C, magnitude, current, target, iterate, goal)
        before = target
        steps += used
        if last:
            z = _settle(C, magnitude, beta, exact, iterate) + shift
            if classes is not None:
                z = z[labels] + (each - log_kappa[labels]) / beta
            return z - log_norms, iterate.error, steps
        if beta <= current:
            current = max(beta, current / 4.0)
        else:  # from below, Newton's method on the steeper equation takes fewer steps
            current = min(beta, current * 4.0)
            iterate.z -= 1.0
            iterate.v -= 1.0


def _follow(last: _Iterate, beta: float, target: Array, before: Array) -> _Iterate:
    """Move each almost zero unknown to its value in the new equation, if the other of its pair is not small."""
    z, v = last.z, last.v
    if min(z[z.argmin()], v[v.argmin()]) >= _IDLE:
        return last
    return _Iterate(
        np.where((z < _IDLE) & (v > 0.2 * _IDLE), np.maximum((target - v) / beta, _FLOOR), z),
        np.where((v < _IDLE) & (z > 0.2 * _IDLE), np.maximum(v + target - before, _FLOOR), v),
    )


def _settle(C: Array, magnitude: Array, beta: float, target: Array, found: _Iterate) -> Array:
    """Return the logarithms of the solution: raise slopes that are negative by rounding, fill in weights near zero."""
    z, v = found.z, found.v
    if z[z.argmin()] > _IDLE and v[v.argmin()] - z[z.argmax()] > _IDLE:
        return z  # the common case
    w = np.exp(z)
    slope, size = C @ w, magnitude @ w
    lack = _RAISED * size - slope
    for _ in range(4):
        if lack[lack.argmax()] <= 0.0:
            break
        A = C * w
        A *= w[:, None]
        A.ravel()[:: len(w) + 1] += beta * w * np.maximum(slope, _RAISED * size)
        raised = w * np.clip(1.0 + solve_scaled_spd(A, w * np.maximum(lack, 0.0)), 0.5, 2.0)
        before, slope, size = slope, C @ raised, magnitude @ raised
        lack = _RAISED * size - slope
        if (np.abs(slope - before) > 25.0 * _RAISED * size).any():
            break  # more than rounding
        w = raised
    z = np.log(w)
    return np.where((z < _IDLE) & (v > _IDLE), (target - v) / beta, z)


def _equal_directions(C: Array) -> NDArray[np.intp] | None:
    """For each gradient, the first one of the same direction up to rounding; None if all directions differ.

    Such gradients have the same slope x, so ``w_k = (kappa_k / x) ** (1 / beta)`` splits their common weight in a fixed
    ratio. One unknown, with ``kappa ** (1 / beta)`` summed, represents all of them. As separate unknowns they would
    make C singular, and a weight many decades smaller than its twin's would be lost in rounding.
    """
    near = C > 1.0 - _SAME
    if np.count_nonzero(near) == len(C):
        return None
    first = np.arange(len(C))
    for k, row in enumerate(C):
        twins = near[k, :k].nonzero()[0]
        same = twins[np.abs(C[twins] - row).max(axis=1) <= _SAME]
        if len(same):
            first[k] = first[same[0]]
    return first


def _newton(
    C: Array, magnitude: Array, beta: float, target: Array, start: _Iterate, goal: float
) -> tuple[_Iterate, int]:
    """Newton steps on (log w, log x) until the equation's error is below ``goal`` or stops falling."""
    z, v = start.z, start.v
    best, stalled, steps = _Iterate(z, v), 0, 0
    diagonal = slice(None, None, len(z) + 1)
    w, x = np.exp(z), np.exp(v)
    slope, size = C.dot(w), magnitude.dot(w)
    while steps < 400:
        steps += 1
        miss = target - beta * z - v
        gap = x - slope
        if stalled:
            # Gaps within rounding must not move weights: for a small beta, tiny weights would follow them far.
            gap = np.where(np.abs(gap) <= 1e-15 * size, 0.0, gap)
        # Relative changes dw = w xi, dx = x eta:  C dw - dx = gap,  beta xi + eta = miss; eliminate eta.
        # Slopes below the rounding of C w count as rounding here. Otherwise dependent gradients with such slopes would
        # make A singular, and the steps noise.
        A = C * w
        A *= w[:, None]
        A.ravel()[diagonal] += beta * w * np.maximum(x, _RAISED * size)
        xi = solve_scaled_spd(A, w * (gap + x * miss))
        eta = miss - beta * xi
        # Limit growth, and the decrease of the steadier of the two unknowns. The other one may have to fall by
        # hundreds of decades, and overshooting there does no harm.
        longest = max(float(xi.max()), float(eta.max()), -float(eta.min() if beta <= 1.0 else xi.min()))
        scale = min(1.0, 2.0 / longest) if longest > 0.0 else 1.0
        xi, eta = scale * xi, scale * eta
        if beta > 1.0:
            eta = _fall(eta)
        if stalled and longest < 0.1:
            xi, eta = _in_logarithms(xi), _in_logarithms(eta)
        z = np.maximum(z + xi, _FLOOR)
        v = np.maximum(v + eta, _FLOOR)
        w, x = np.exp(z), np.exp(v)
        slope, size = C.dot(w), magnitude.dot(w)
        error = _error(slope, size, beta, target, z)
        if error < best.error:
            best, stalled = _Iterate(z, v, error), 0
        elif best.error < 1e-3 and scale == 1.0:
            stalled += 1
        # At the level of rounding, stop after two steps without progress. Before that, the error may rise for a while.
        if best.error < goal or stalled >= (2 if best.error < 1e-12 else 40):
            break
    return best, steps


def _in_logarithms(change: Array) -> Array:
    """Convert small relative changes of w into changes of its logarithms.

    Dependent gradients have vectors that change weights but no slope. Along them, rounding makes steps of 1e-4 and
    more. In w these have no effect; in log w they would change the slopes by their squares.
    """
    return np.where(change > -0.1, np.log1p(np.maximum(change, -0.1)), change)


def _fall(change: Array) -> Array:
    """Enlarge large relative decreases.

    Newton's step for the logarithm of an almost zero value is -1, which takes one step for each factor of e.
    """
    return np.where(change < -0.7, np.minimum(change, np.log(np.maximum(1.0 + change, 0.005))), change)


def _error(slope: Array, size: Array, beta: float, target: Array, z: Array) -> float:
    """Return the largest error of the equation, relative to the sizes of the sums that make the slopes."""
    lack = np.exp(np.minimum(target - beta * z, -_FLOOR)) - slope
    errors = np.abs(lack)
    if z[z.argmin()] <= _FLOOR:
        # A weight that is effectively zero needs a slope of at least this; a larger slope makes it smaller still.
        errors = np.where(z <= _FLOOR, lack, errors)
    errors /= size
    return float(errors[errors.argmax()])
