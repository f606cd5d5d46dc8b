"""Records of a descent: arrays of every point and step, and when each run left the box."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from paretograd.errors import ShapeError
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem

#: Initial number of rows.
_ROWS = 256


class DescentWarning(UserWarning):
    """A run left its box or was interrupted; its trajectory says so, too."""


def shapes(T: int, B: int, m: int, n: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every recorded array for B runs and T steps.

    Arrays of points have T + 1 rows, the last point included; arrays of steps have T.
    """
    return {
        "losses": (T + 1, B, m),
        "points": (T + 1, B, n),
        "gamma": (T + 1, B),
        "weights": (T, B, m),
        "slopes": (T, B, m),
        "norms": (T, B),
        "step_sizes": (T, B),
        "gradient_norms": (T, B, m),
    }


#: Names of the recorded arrays.
NAMES = tuple(shapes(0, 0, 0, 0))


class Records:
    """The recorded arrays by name, which grow as needed; NaN beyond the end of a run."""

    def __init__(self, B: int, m: int, n: int) -> None:
        self._sizes = (B, m, n)
        self._rows = _ROWS
        self.arrays: dict[str, Array] = {name: np.full(shape, np.nan) for name, shape in shapes(_ROWS, B, m, n).items()}

    def reserve(self, steps: int) -> None:
        """Make room for this many steps."""
        if steps > self._rows:
            self._grow(max(steps, 2 * self._rows))

    def _grow(self, rows: int) -> None:
        for name, shape in shapes(rows, *self._sizes).items():
            grown = np.full(shape, np.nan)
            old = self.arrays[name]
            grown[: len(old)] = old
            self.arrays[name] = grown
        self._rows = rows

    def upto(self, T: int) -> dict[str, Array]:
        """Return copies of the first T steps and T + 1 points."""
        return {name: array[: shapes(T, *self._sizes)[name][0]].copy() for name, array in self.arrays.items()}

    def load(self, arrays: Mapping[str, Array], T: int) -> None:
        """Replace the content by what `upto` returned; raises if a shape differs."""
        wanted = shapes(T, *self._sizes)
        for name, shape in wanted.items():
            if np.shape(arrays[name]) != shape:
                raise ShapeError(f"{name} has shape {np.shape(arrays[name])} in the state to load; expected {shape}")
        self.reserve(T)
        for name in wanted:
            self.arrays[name][:] = np.nan
            self.arrays[name][: len(arrays[name])] = arrays[name]


class Box:
    """Records when each run first leaves the problem's box, and warns once, when the first run does.

    Attributes:
        left: index of the first point outside, -1 if there is none, ``(B,)``.
        seen: index of the last point examined.
    """

    def __init__(self, problem: Problem, B: int) -> None:
        self._name, self._lower, self._upper = problem.name, problem.lower.numpy(), problem.upper.numpy()
        self.left, self.seen = np.full(B, -1, dtype=np.int64), -1

    def watch(self, points: Array, T: int) -> None:
        """Examine the new points among ``(T + 1, B, n)``. NaN, after the end of a run, does not count as outside."""
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
                f"run {run} left the box of {self._name} at step {self.left[run]} and continues; properties declared "
                "for the box, such as the smoothness constant, may not hold outside. See Trajectory.left_box",
                DescentWarning,
                stacklevel=4,
            )
