"""Solving eq. sd-conic on the Gramian: the right beta for any r, and the duality gap of the answer."""

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

#: beta is found to this relative accuracy.
_ACCURACY = 1e-15

#: How far ``log beta`` may lie below and above its unit. Above 1e7 the multipliers of a rule with a centre lose
#: the digits that matter, and the pull is below what a Gramian resolves.
_LOWEST, _HIGHEST = 300.0, 16.0


class Found(NamedTuple):
    """The answer of a subproblem.

    Attributes:
        weights: of the direction, ``u + beta lambda`` with u the centre's, shape ``(m,)``.
        multipliers: lambda.
        beta: the paper's beta.
        gap: primal minus dual value.
        residual: of the dual solve.
        steps: linear systems solved.
        stationary: no direction is better than zero.
    """

    weights: Array
    multipliers: Array
    beta: float
    gap: float
    residual: float
    steps: int
    stationary: bool


def solve_subproblem(s: Scalarization, r: Regularizer, G: Array, unit: UnitGramian, *, least: bool = False) -> Found:
    """``argmin over d of s(J d) + r(|d|)`` (eq. sd-conic), from the Gramian alone.

    The optimum has ``d = beta J.T lambda`` with ``rho = |J.T lambda|`` and ``beta = r*'(rho) / rho``. For a given beta
    the problem in lambda is the quadratic one that each s solves; its rho falls as beta grows, so that one number is
    left to find, and none where beta is constant or lambda does not depend on it.

    With ``least``, lambda is the smallest of those that give the same direction.
    """
    s = s.at(G)
    r, center = r.bind(G)
    if isinstance(r, Origin):
        assert center is not None
        return Found(center.weights, np.zeros(unit.m), 0.0, 0.0, 0.0, 0, stationary=False)
    if not len(unit.norms):  # every direction is as good as zero
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
    """The root of ``log(beta rho) - log r*'(rho)``, which grows with ``log beta``."""
    from scipy.optimize import brentq

    points: dict[float, DualPoint] = {}

    @cache  # the ends of the bracket are asked for again, by the check below and by the root finder
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

    # The unit of beta: the length over the pull of the plain average.
    rho = cones.norm(G, np.full(unit.m, 1.0 / unit.m)) or float(np.sqrt(G.diagonal().max()))
    start = math.log(r.length(rho) / rho) if rho > 0.0 else 0.0
    low, high = _bracket(excess, start, -1.0, _LOWEST), _bracket(excess, start, 1.0, _HIGHEST)
    for end, missed in ((high, excess(high) < 0.0), (low, excess(low) > 0.0)):
        if missed:  # the pull vanishes before the length is reached: stationary
            point, beta, steps = answer(end)
            return point._replace(stationary=True), 0.0 if center is None else beta, steps
    return answer(float(brentq(excess, low, high, xtol=_ACCURACY, rtol=4 * np.finfo(float).eps)))


def _bracket(excess: Callable[[float], float], start: float, sign: float, limit: float) -> float:
    """The first point beyond the root on one side of ``start``, in doubling steps, or the limit of that side."""
    width = 0.0
    while sign * excess(start + sign * width) < 0.0 and width < limit:
        width = min(max(2.0, 2.0 * width), limit)
    return start + sign * width


def _answer(s: Scalarization, G: Array, center: Center | None, point: DualPoint, beta: float, steps: int) -> Found:
    lam = point.multipliers
    weights = beta * lam if center is None else center.weights + beta * lam
    x = G @ weights
    # r's part of the gap vanishes by the choice of beta; what is left is how far lambda is from a slope of s at x.
    gap = s.value(x) + point.conjugate + float(lam @ x)
    return Found(weights, lam, beta, gap, point.residual, steps, point.stationary)
