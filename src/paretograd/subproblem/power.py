"""Power means of the decreases (eq. pmean)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from paretograd.checks import as_number, shown_number
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.solution import Status
from paretograd.solvers.power import power_mean_point
from paretograd.subproblem.scalarization import DualPoint, Family, Quadratic
from paretograd.subproblem.smooth import Smooth


class MinusPowerMean(Family):
    r"""$s(x) = -M_p(x)$ with $M_p(x) = (\frac1m \sum_k x_k^p)^{1/p}$, infinite where some $x_k < 0$ (unless p = 1).

    p = 1 is the mean, p = 0 the geometric mean (Nash-MTL), p = -1 the harmonic one (FairGrad), p = -inf the worst case.

    Args:
        p: exponent, at most 1; ``-math.inf`` is allowed.
    """

    formula = "-M_p(x)"
    homogeneous = True
    citation = "Hardy, Littlewood and Polya 1934, on x >= 0"

    def __init__(self, p: float = 0.0) -> None:
        self.p = as_number(p, "p")
        if self.p > 1.0:
            raise ParameterError(f"p={p:g}: the power mean is concave only for p <= 1 (-inf included)")
        self.risk = self.p in (1.0, -math.inf)
        self.non_conflicting = self.p < 1.0

    @property
    def sums_to_one_at_least(self) -> bool:
        """Yes: ``|lambda|_1 >= m M_q(lambda) >= 1`` for q <= 1."""
        return True

    def value(self, x: Array) -> float:
        p = self.p
        if p == 1.0:
            return -float(x.mean())
        if p == -math.inf:
            return -float(x.min())
        if x.min() < 0.0:
            return math.inf
        if (x.min() == 0.0 and p <= 0.0) or not x.any():
            return 0.0
        logs = np.log(np.maximum(x, 1e-320))
        if p == 0.0:
            return -math.exp(logs.mean())
        top = float((p * logs).max())
        return -math.exp((top + math.log(np.exp(p * logs - top).mean())) / p)

    def dual(self, problem: Quadratic) -> DualPoint:
        if problem.center is not None and not self.risk:
            return Smooth(self._in_torch).dual(problem)
        # For a homogeneous s the multipliers do not depend on beta, and s* is zero on its domain.
        outcome = power_mean_point(problem.shifted(), self.p)
        return DualPoint(outcome.weights, 0.0, outcome.residual, outcome.steps, outcome.status is Status.STATIONARY)

    def _in_torch(self, x: Tensor) -> Tensor:
        x = torch.where(x > 0.0, x, torch.nan)
        if self.p == 0.0:
            return -torch.exp(torch.log(x).mean())
        return -((x**self.p).mean() ** (1.0 / self.p))

    def __repr__(self) -> str:
        return f"MinusPowerMean({shown_number(self.p)})"
