"""What a descent writes down at every point and every step: arrays that grow as the runs go on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paretograd.errors import ShapeError
from paretograd.geometry.gramian import Array

#: Rows that are made at first.
_ROWS = 256

#: One row for each visited point, the last one included.
AT_POINTS = ("losses", "points", "gamma")
#: One row for each step taken.
AT_STEPS = ("weights", "slopes", "norms", "step_sizes", "gradient_norms")


def shapes(T: int, B: int, m: int, n: int) -> dict[str, tuple[int, ...]]:
    """The shape of every array for B runs and T steps."""
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


class Records:
    """Arrays by name; NaN where a run has not been, or has stopped before."""

    def __init__(self, B: int, m: int, n: int) -> None:
        self._sizes = (B, m, n)
        self._rows = _ROWS
        self.arrays: dict[str, Array] = {name: np.full(shape, np.nan) for name, shape in shapes(_ROWS, B, m, n).items()}

    def _grow(self, rows: int) -> None:
        for name, shape in shapes(rows, *self._sizes).items():
            grown = np.full(shape, np.nan)
            old = self.arrays[name]
            grown[: len(old)] = old
            self.arrays[name] = grown
        self._rows = rows

    def reserve(self, steps: int) -> None:
        """Make room for this many steps."""
        if steps > self._rows:
            self._grow(max(steps, 2 * self._rows))

    def upto(self, T: int) -> dict[str, Array]:
        """Copies of the first T steps and T + 1 points."""
        return {name: array[: shapes(T, *self._sizes)[name][0]].copy() for name, array in self.arrays.items()}

    def load(self, arrays: Mapping[str, Array], T: int) -> None:
        """Take over what `upto` gave; raises on another shape."""
        wanted = shapes(T, *self._sizes)
        for name, shape in wanted.items():
            if np.shape(arrays[name]) != shape:
                raise ShapeError(f"{name} has shape {np.shape(arrays[name])} in the state to load; {shape} is needed")
        self.reserve(T)
        for name in wanted:
            self.arrays[name][:] = np.nan
            self.arrays[name][: len(arrays[name])] = arrays[name]
