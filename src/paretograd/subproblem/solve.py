"""Solution of eq. sd-conic on the Gramian: the right beta for any r, and the duality gap."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.subproblem.regularizers import Origin, Regularizer
from paretograd.subproblem.scalarization import Center, DualPoint, Quadratic, Scalarization

#: Relative accuracy of beta.
_ACCURACY = 1e-15

#: Largest distance of ``log beta`` below and above its initial value. Above 1e7 the multipliers of a rule with a centre
#: lose their significant digits, and ``|J.T lambda|`` is smaller than a Gramian resolves.
_LOWEST, _HIGHEST = 300.0, 16.0


class Found(NamedTuple):
    """The solution of a subproblem.

    Attributes:
        weights: weights of the direction, ``u + beta lambda`` with u the weights of the centre, shape ``(m,)``.
        multipliers: lambda, shape ``(m,)``.
        beta: the paper's beta.
        gap: primal minus dual value.
        residual: residual of the dual solve.
        steps: number of linear systems solved.
        stationary: True if no direction is better than zero.
    """

    weights: Array
    multipliers: Array
    beta: float
    gap: float
    residual: float
    steps: int
    stationary: bool


def solve_subproblem(s: Scalarization, r: Regularizer, G: Array, unit: UnitGramian, *, least: bool = False) -> Found:
    """Return ``argmin over d of s(J d) + r(|d|)`` (eq. sd-conic), from the Gramian alone.

    The optimum has ``d = beta J.T lambda`` with ``rho = |J.T lambda|`` and ``beta = r*'(rho) / rho``. For a given beta,
    the problem in lambda is the quadratic one that each s solves. Its rho decreases as beta grows, so only the number
    beta must be searched for. No search is needed if beta is constant or lambda does not depend on it.

    With ``least``, lambda is the smallest of those that give the same direction.
    """
    s = s.at(G)
    r, center = r.bind(G)
    if isinstance(r, Origin):
        assert center is not None
        return Found(center.weights, np.zeros(unit.m), 0.0, 0.0, 0.0, 0, stationary=False)
    if not len(unit.norms):  # J d = 0 for every d
        return Found(np.zeros(unit.m), np.zeros(unit.m), 0.0, 0.0, 0.0, 0, stationary=True)
    if r.beta is not None:
        point = s.dual(Quadratic(G, unit, r.beta, center, least))
        return _answer(s, G, center, point, r.beta, point.steps)
    if s.homogeneous and center is None:
        point = s.dual(Quadratic(G, unit, 1.0, None, least))
        rho = cones.norm(G, point.multipliers)
        zero = point.stationary or rho == 0.0
        return _answer(s, G, None, point, 0.0 if zero else r.length(rho) / rho, point.steps)
    point, beta, steps = _search(s, r, G, unit, center, least)
    return _answer(s, G, center, point, beta, steps)


def _search(
    s: Scalarization, r: Regularizer, G: Array, unit: UnitGramian, center: Center | None, least: bool
) -> tuple[DualPoint, float, int]:
    """Find the root of ``log(beta rho) - log r*'(rho)``, which grows with ``log beta``."""
    from scipy.optimize import brentq

    points: dict[float, DualPoint] = {}

    @cache  # the check below and the root finder evaluate the ends of the bracket again
    def excess(log_beta: float) -> float:
        beta = math.exp(log_beta)
        points[log_beta] = point = s.dual(Quadratic(G, unit, beta, center, least))
        rho = cones.norm(G, point.multipliers)
        if rho == 0.0:
            return -math.inf
        length = r.length(rho)
        return math.inf if length == 0.0 else math.log(beta * rho) - math.log(length)

    def answer(log_beta: float) -> tuple[DualPoint, float, int]:
        excess(log_beta)
        return points[log_beta], math.exp(log_beta), sum(point.steps for point in points.values())

    # Start at the beta of the average gradient: r*'(rho) / rho with rho its length.
    rho = cones.norm(G, np.full(unit.m, 1.0 / unit.m)) or float(np.sqrt(G.diagonal().max()))
    start = math.log(r.length(rho) / rho) if rho > 0.0 else 0.0
    low, high = _bracket(excess, start, -1.0, _LOWEST), _bracket(excess, start, 1.0, _HIGHEST)
    for end, missed in ((high, excess(high) < 0.0), (low, excess(low) > 0.0)):
        if missed:  # rho vanishes before the length is reached: stationary
            point, beta, steps = answer(end)
            return point._replace(stationary=True), 0.0 if center is None else beta, steps
    return answer(float(brentq(excess, low, high, xtol=_ACCURACY, rtol=4 * np.finfo(float).eps)))


def _bracket(excess: Callable[[float], float], start: float, sign: float, limit: float) -> float:
    """Return the first point beyond the root on one side of ``start``, in doubling steps, or the limit on that side."""
    width = 0.0
    while sign * excess(start + sign * width) < 0.0 and width < limit:
        width = min(max(2.0, 2.0 * width), limit)
    return start + sign * width


def _answer(s: Scalarization, G: Array, center: Center | None, point: DualPoint, beta: float, steps: int) -> Found:
    lam = point.multipliers
    weights = beta * lam if center is None else center.weights + beta * lam
    x = G @ weights
    # r's part of the gap vanishes by the choice of beta. The rest measures how far -lambda is from a subgradient of s.
    gap = s.value(x) + point.conjugate + float(lam @ x)
    return Found(weights, lam, beta, gap, point.residual, steps, point.stationary)
