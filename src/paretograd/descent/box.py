"""Whether runs stay in their problem's box."""

from __future__ import annotations

import warnings

import numpy as np

from paretograd.descent.stops import DescentWarning
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem


class Box:
    """Notes when each run is outside of the box for the first time; the first run to leave gives a warning.

    Attributes:
        left: number of the first point outside, -1 where there is none, ``(B,)``.
        seen: points up to this number were looked at.
    """

    def __init__(self, problem: Problem, B: int) -> None:
        self._name, self._lower, self._upper = problem.name, problem.lower.numpy(), problem.upper.numpy()
        self.left, self.seen = np.full(B, -1, dtype=np.int64), -1

    def watch(self, points: Array, T: int) -> None:
        """Look at the points ``(T + 1, B, n)`` that are new. NaN, where a run has stopped, is not outside."""
        first, self.seen = self.seen + 1, T
        new = points[first : T + 1]
        outside = ((new < self._lower) | (new > self._upper)).any(axis=2)
        leaving = outside.any(axis=0) & (self.left < 0)
        if not leaving.any():
            return
        warned = bool((self.left >= 0).any())
        self.left = np.where(leaving, first + outside.argmax(axis=0), self.left)
        if not warned:
            run = int(np.flatnonzero(leaving)[0])
            warnings.warn(
                f"run {run} left the box of {self._name} at step {self.left[run]} and goes on; what is declared for "
                "the box, such as the smoothness constant, need not hold outside. See Trajectory.left_box",
                DescentWarning,
                stacklevel=4,
            )
