"""Linear s: a fixed weighting of the objectives, and the same where no objective may go up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paretograd.checks import as_weights
from paretograd.geometry.gramian import Array
from paretograd.solvers.dual_cone import project_dual_cone
from paretograd.subproblem.scalarization import DualPoint, Family, Quadratic


class Linear(Family):
    r"""Linear scalarization, $s(x) = -\langle a, x \rangle$, whose direction is $J^\top a$.

    Args:
        weights: a, one number per objective; None for 1/m each.
    """

    formula = "-<a, x>"
    homogeneous = True
    citation = "linear"

    def __init__(self, weights: Sequence[float] | Tensor | Array | None = None) -> None:
        self.weights = None if weights is None else as_weights(weights, "weights")
        self.m = None if self.weights is None else len(self.weights)
        self.risk = self.weights is None or abs(float(self.weights.sum()) - 1.0) <= 1e-12

    def _weights(self, m: int) -> Array:
        return np.full(m, 1.0 / m) if self.weights is None else as_weights(self.weights, "weights", m)

    def value(self, x: Array) -> float:
        return -float(self._weights(len(x)) @ x)

    def dual(self, problem: Quadratic) -> DualPoint:
        return DualPoint(self._weights(problem.unit.m), 0.0, 0.0, 0)

    def surrogate(self, m: int) -> Array | None:
        return self._weights(m)

    def __repr__(self) -> str:
        return f"Linear({'' if self.weights is None else self.weights.tolist()})"


class NonConflicting(Linear):
    r"""Linear scalarization where no objective may go up: $-\langle a, x \rangle$, infinite unless $x \ge 0$.

    Its direction is the projection of $J^\top a$ onto the dual cone: DualProj for the uniform weights. The dual set
    is $\lambda \ge a$, so that Proposition 1 reads off it.

    Args:
        weights: a, one number per objective; None for 1/m each.
    """

    formula = "-<a, x>, x >= 0"
    citation = "linear on a convex cone"
    non_conflicting = True

    def __init__(self, weights: Sequence[float] | Tensor | Array | None = None) -> None:
        super().__init__(weights)
        self._sum_is_one = self.risk
        self.risk = False

    @property
    def sums_to_one_at_least(self) -> bool:
        """Yes where the weights sum to one, as ``lambda >= a``."""
        return self._sum_is_one

    def value(self, x: Array) -> float:
        # Slopes that are zero but for rounding are not below zero.
        return super().value(x) if x.min() >= -1e-9 * np.abs(x).max() else math.inf

    def dual(self, problem: Quadratic) -> DualPoint:
        shift = 0.0 if problem.center is None else problem.center.weights / problem.beta
        found = project_dual_cone(problem.unit, self._weights(problem.unit.m) + shift, least=problem.least)
        return DualPoint(found.weights - shift, 0.0, found.residual / found.growth, found.steps)

    def __repr__(self) -> str:
        return f"NonConflicting({'' if self.weights is None else self.weights.tolist()})"
