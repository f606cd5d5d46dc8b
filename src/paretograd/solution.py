"""What a solver returns: weights, together with how far they can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Status(Enum):
    """How a solve ended. The value is the message a user reads."""

    OPTIMAL = "solved: the optimality conditions hold to rounding"
    STATIONARY = "Pareto stationary: no direction decreases every objective, so the direction is zero"
    APPROXIMATE = "solved approximately, by a conic solver or by sweeps: the residual says how far it may be off"
    DEGENERATE = "the method's formula has no value here (a division by zero); the direction is zero"
    INACCURATE = "not solved to rounding: the residual says how far the optimality conditions are off"

    @property
    def ok(self) -> bool:
        """Whether the weights are the method's own answer."""
        return self in (Status.OPTIMAL, Status.STATIONARY, Status.APPROXIMATE)


#: From best to worst: a batch is as good as its worst member.
SEVERITY = (Status.OPTIMAL, Status.STATIONARY, Status.APPROXIMATE, Status.DEGENERATE, Status.INACCURATE)


class Outcome(NamedTuple):
    """A solution in numpy, as solvers hand it on: weights ``(m,)``, status, residual, steps."""

    weights: NDArray[np.float64]
    status: Status = Status.OPTIMAL
    residual: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Solution:
    """Weights of shape ``(..., m)`` and the evidence for them.

    Attributes:
        weights: in the dtype and on the device of the Gramian.
        status: how the solve ended; the worst one over a batch.
        residual: violation of the optimality conditions, computed from the answer on rows scaled to
            norm one, so that it has no unit; the largest over a batch.
        steps: linear systems solved, or sweeps made.
        items: one solution for each Gramian of a batch, in row-major order; empty for a single Gramian.
    """

    weights: Tensor
    status: Status
    residual: float
    steps: int
    items: tuple[Solution, ...] = ()

    @classmethod
    def of_batch(cls, weights: Tensor, items: tuple[Solution, ...]) -> Solution:
        """Summarise the solutions of a batch by their worst."""
        worst = max((item.status for item in items), key=SEVERITY.index, default=Status.OPTIMAL)
        residual = max((item.residual for item in items), default=0.0)
        return cls(weights, worst, residual, max((item.steps for item in items), default=0), items)
