"""Weights that maximise a power mean of the decreases, from the power equation, stationary points included."""

from __future__ import annotations

import math

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Outcome, Status
from paretograd.solvers.min_norm import min_norm_point, outcome_of
from paretograd.solvers.power import solve_power_equation
from paretograd.solvers.tolerance import status_of


def solve_logarithms(unit: UnitGramian, beta: float, omega: Array | None = None) -> tuple[Array | None, Outcome]:
    """Logarithms of the weights with ``(G w)_k = (omega_k / w_k) ** beta``, and an outcome that lacks its weights.

    At a Pareto stationary point the equation has no solution, and the subproblem that it comes from answers d = 0:
    the logarithms are None, the weights zero.
    """
    # A point is stationary or not whatever the norms: with equal ones, rounding is least.
    nearest = min_norm_point(unit._replace(norms=np.ones(len(unit.norms))))
    if nearest.stationary:
        return None, Outcome(np.zeros(unit.m), Status.STATIONARY, nearest.residual, nearest.steps)
    log_omega = np.zeros(unit.m) if omega is None else np.log(omega)
    found = solve_power_equation(unit.C, unit.norms, beta, log_omega)
    status = status_of(found.residual, unit.m, amplification=max(1.0, beta))
    return found.log_weights, Outcome(found.log_weights, status, found.residual, nearest.steps + found.steps)


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
    # The equation's solution has w = x^(p-1); only the common factor M_p(x)^(1-p) / m is missing.
    log_x = -logs / (1.0 - p)
    if p == 0.0:
        log_mean = float(log_x.mean())
    else:
        top = float((p * log_x).max())
        log_mean = (top + math.log(np.exp(p * log_x - top).mean())) / p
    return outcome._replace(weights=np.exp(logs + (1.0 - p) * log_mean - math.log(m)))
