"""The dual of the entropic risk: ``min tau KL(w || uniform) + |J.T w|^2 / 2`` over the simplex.

``KL = sum_k w_k log(m w_k)``. At the optimum ``tau log w_k + (G w)_k`` is the same for every k. Newton's method on the
logarithms of w solves this, with one Cholesky factorisation per step. Three measures make it work at any temperature:

1. The system is scaled by the weights on both sides, ``D^1/2 G D^1/2 + tau I`` with D = diag(w): a weight of 1e-200
   keeps its digits.
2. The step is taken in w, ``w <- w (1 + xi)``, if that keeps w well above zero, and in log w otherwise. Steps in w are
   linear: if G is singular, rounding along vectors that change weights but no slope has no effect.
3. If tau is below the rounding of the slopes, the rounding replaces it in the matrix (never in the equation).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.lapack import spd_solver
from paretograd.solvers.min_norm import min_norm_point

#: Lower bound on logarithms: exp(-690) is near the smallest positive float64, effectively a weight of zero.
_FLOOR = -690.0
#: A weight below exp(-30) has no effect on the other equations: it may grow that far in one step.
_IDLE = -30.0
#: The least factor by which a step in w shrinks a weight; a larger decrease is a step in log w.
_SHRINK = 2e-3
#: Rounding of a slope, relative to its terms, with a margin.
_ROUNDING = 1e-14
#: Below this temperature, in units of the smallest squared norm, the min-norm point is a better start.
_COLD = 1e-5
#: Residuals below this are rounding.
_GOAL = 4e-16


class _Problem(NamedTuple):
    """The problem in units of the largest norm. The last row stands for all zero gradients."""

    G: Array
    norms: Array
    log_prior: Array
    temperature: float


def entropic_point(unit: UnitGramian, temperature: float) -> Point:
    """Minimise ``temperature * KL(w || uniform) + |J.T w|^2 / 2`` over the simplex.

    Zero gradients take part, with a slope of zero.

    Args:
        unit: the Gramian.
        temperature: positive, in units of squared gradient norms. Towards 0 the answer is MGDA's, towards infinity
            the mean.
    """
    m, live = unit.m, len(unit.norms)
    if not live or m == 1:
        return Point(np.full(m, 1.0 / m), 0.0, 0)
    problem = _problem(unit, temperature)
    cold = problem.temperature < _COLD * problem.norms[problem.norms.argmin()] ** 2
    weights, residual, steps = _newton(problem, _min_norm_start(unit, problem) if cold else problem.log_prior)
    if residual > 1e-12:
        again = _newton(problem, problem.log_prior if cold else _min_norm_start(unit, problem))
        if again[1] < residual:
            weights, residual = again[:2]
        steps += again[2]
    if unit.live is not None:
        weights = unit.expand(weights[:live], fill=float(weights[-1]) / (m - live))
    return Point(weights, residual, steps)


def _problem(unit: UnitGramian, temperature: float) -> _Problem:
    top = float(unit.norms[unit.norms.argmax()])
    norms = unit.norms / top
    G = unit.C * norms
    G *= norms[:, None]
    scaled = min(max(temperature / top / top, 1e-280), 1e280)
    live, zeros = len(norms), unit.m - len(norms)
    if not zeros:
        return _Problem(G, norms, np.full(live, -math.log(unit.m)), scaled)
    padded = np.zeros((live + 1, live + 1))
    padded[:live, :live] = G
    log_prior = np.full(live + 1, -math.log(unit.m))
    log_prior[live] += math.log(zeros)
    return _Problem(padded, np.append(norms, 0.0), log_prior, scaled)


def _min_norm_start(unit: UnitGramian, problem: _Problem) -> Array:
    """Logarithms of MGDA's weights; outside its support, those that the slopes there ask for."""
    if unit.has_zero_row:
        return problem.log_prior
    w = min_norm_point(unit).weights
    slope = problem.G.dot(w)
    with np.errstate(divide="ignore", over="ignore"):
        asked = np.minimum((w.dot(slope) - slope) / problem.temperature, 0.0) + problem.log_prior
        return np.where(w > 0.0, np.log(w), asked)


def _newton(problem: _Problem, start: Array) -> tuple[Array, float, int]:
    """Newton steps from the logarithms ``start``: the best weights found, their residual, the number of steps."""
    G, norms, log_prior, tau = problem
    solve, diagonal = spd_solver(), slice(None, None, len(norms) + 1)
    z, w = _normalised(start)
    best, least, stalled = w, math.inf, 0
    steps = 0
    for steps in range(200):  # noqa: B007
        value = G.dot(w)
        length = math.sqrt(max(float(w.dot(value)), 0.0))
        value += tau * (z - log_prior)
        force = w.dot(value) - value
        size = float(norms.dot(w))
        barrier = np.maximum(tau, (_ROUNDING * size) * (norms + size))
        residual = _residual(w, norms, force, barrier, length) / size
        stalled = 0 if residual < 0.5 * least else stalled + 1
        if residual < least:
            best, least = w, residual
        # At the level of rounding, stop after two steps without progress. Before that, the error may rise for a while.
        if least < _GOAL or stalled > (1 if least < 1e-13 else 40):
            break
        root = np.sqrt(w)
        A = G * root
        A *= root[:, None]
        flat = A.ravel()
        flat[diagonal] += barrier
        scale = 1.0 / np.sqrt(flat[diagonal])
        A *= scale
        A *= scale[:, None]
        right = np.empty((2, len(w)))
        np.multiply(root, scale, out=right[1])
        np.multiply(right[1], force, out=right[0])
        shift = 4e-16 * len(w)
        x, info = solve(A.T, right.T, 1)[1:]
        while info != 0 and shift < 1.0:  # indefinite by rounding: shift the unit diagonal by as much
            flat[diagonal] += shift
            shift *= 4.0
            x, info = solve(A.T, right.T, 1)[1:]
        # The multiplier of sum(w) = 1 makes the changes w * xi add up to zero.
        moves = right[1].dot(x)
        x = x[:, 0] - (moves[0] / moves[1]) * x[:, 1]
        z, w = _normalised(z + _change(z, x * scale / root))
    return best, least, steps


def _normalised(z: Array) -> tuple[Array, Array]:
    """Shift logarithms so that their exponentials sum to one; return both."""
    z = np.maximum(z - z[z.argmax()], _FLOOR)
    w = np.exp(z)
    total = float(np.add.reduce(w))
    w /= total
    return z - math.log(total), w


def _change(z: Array, xi: Array) -> Array:
    """The change of log w for Newton's relative change xi of w.

    The equation is concave in w and convex in log w: steps in w never overshoot upwards, steps in log w never
    downwards. A negligible weight takes the full step, up to where it stops being negligible.
    """
    change = np.log(np.maximum(1.0 + xi, _SHRINK))
    np.minimum(change, xi, out=change)
    room = _IDLE - z
    if room[room.argmax()] > 0.0:
        change = np.where((room > 0.0) & (xi > 0.0), np.maximum(change, np.minimum(xi, room)), change)
    return change


def _residual(w: Array, norms: Array, force: Array, barrier: Array, length: float) -> float:
    """Largest error of the direction due to one row.

    A row under ``force`` changes its weight until the entropy stops it, which multiplies the weight by
    ``exp(force / barrier)``, or until its own curvature ``norms^2`` does. The smaller change counts. The weight is
    taken from other rows, so the direction, of the given length, moves by up to the distance of the row from it.
    """
    change = np.expm1(np.minimum(force / barrier, -_FLOOR))
    change *= w
    np.abs(change, out=change)
    np.minimum(change, np.abs(force) / np.maximum(norms * norms, 1e-280), out=change)
    np.minimum(change, 1.0, out=change)
    change *= norms + length
    return float(change[change.argmax()])
