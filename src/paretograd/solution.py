"""Results of solvers: the weights, with a status and a residual that say how accurate they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Status(Enum):
    """Outcome of a solve. The value is the message shown to users."""

    OPTIMAL = "solved: the optimality conditions hold to rounding"
    STATIONARY = "Pareto stationary: no direction decreases every objective, so the direction is zero"
    APPROXIMATE = "solved approximately, by a conic solver or by sweeps: the residual says how far it may be off"
    INFEASIBLE = "the rule's constraints exclude each other: the direction is the one that the rule falls back to"
    DEGENERATE = "the method's formula has no value here (a division by zero); the direction is zero"
    INACCURATE = "not solved to rounding: the residual says how far the optimality conditions are off"

    @property
    def ok(self) -> bool:
        """True if the weights are the method's own answer."""
        return self in (Status.OPTIMAL, Status.STATIONARY, Status.APPROXIMATE, Status.INFEASIBLE)


#: Statuses from best to worst. A batch has the status of its worst item.
SEVERITY = (
    Status.OPTIMAL,
    Status.STATIONARY,
    Status.APPROXIMATE,
    Status.INFEASIBLE,
    Status.DEGENERATE,
    Status.INACCURATE,
)


class Point(NamedTuple):
    """The answer of a solver.

    Attributes:
        weights: shape ``(m,)``, or ``(m, m)`` with one row for each gradient that was projected.
        residual: violation of the optimality conditions, relative to terms of order one.
        steps: linear systems solved, or sweeps made.
        growth: factor by which the method magnifies rounding.
        stationary: ``J.T w`` is zero to rounding.
    """

    weights: NDArray[np.float64]
    residual: float
    steps: int
    growth: float = 1.0
    stationary: bool = False


class Outcome(NamedTuple):
    """The answer of a rule in numpy: weights ``(m,)``, status, residual, steps."""

    weights: NDArray[np.float64]
    status: Status = Status.OPTIMAL
    residual: float = 0.0
    steps: int = 0


#: An answer with a larger residual is not solved, however much the formula magnifies rounding.
_MOST = 1e-7


def status_of(residual: float, m: int, growth: float = 1.0) -> Status:
    """Return OPTIMAL if a residual is within rounding, INACCURATE otherwise.

    Residuals are relative to terms of order one, each a sum of m products. A thousand units of float64, plus some for
    each objective, separate rounding from a failed solve.

    Args:
        residual: from a solver.
        m: number of objectives.
        growth: factor by which the method's formula magnifies rounding.
    """
    rounding = 2e-16 * (1000 + 100 * m) * growth
    return Status.OPTIMAL if residual <= min(rounding, _MOST) else Status.INACCURATE


def outcome_of(found: Point) -> Outcome:
    """The outcome of a rule whose weights are those of the point."""
    status = Status.STATIONARY if found.stationary else status_of(found.residual, len(found.weights), found.growth)
    return Outcome(found.weights, status, found.residual, found.steps)


@dataclass(frozen=True)
class Solution:
    """Weights of shape ``(..., m)`` and the evidence for their accuracy.

    Attributes:
        weights: the weights, in the dtype and on the device of the Gramian.
        status: outcome of the solve; the worst one over a batch.
        residual: violation of the optimality conditions, computed from the weights with rows scaled to norm one and so
            dimensionless; the largest one over a batch.
        steps: number of linear systems solved, or of sweeps; the largest one over a batch.
        items: one solution for each Gramian of a batch, in row-major order; empty for a single Gramian.
    """

    weights: Tensor
    status: Status
    residual: float
    steps: int
    items: tuple[Solution, ...] = ()

    @classmethod
    def of_batch(cls, weights: Tensor, items: tuple[Solution, ...]) -> Solution:
        """Combine the solutions of a batch, with the worst status, residual and number of steps."""
        worst = max((item.status for item in items), key=SEVERITY.index, default=Status.OPTIMAL)
        residual = max((item.residual for item in items), default=0.0)
        return cls(weights, worst, residual, max((item.steps for item in items), default=0), items)
