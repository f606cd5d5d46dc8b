"""Reductions of arrays with one entry for each run, which are few: Python's own are quicker than numpy's."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

#: Up to this many entries.
_FEW = 64


def least(values: Array) -> float:
    """The least of finite numbers."""
    return float(min(values.ravel().tolist()) if values.size <= _FEW else values.min())


def most(values: Array) -> float:
    """The greatest of finite numbers."""
    return float(max(values.ravel().tolist()) if values.size <= _FEW else values.max())


def all_finite(values: Array) -> bool:
    """Whether every number is finite; a sum is only where all its terms are, unless they come near 1e308."""
    return math.isfinite(sum(values.ravel().tolist()) if values.size <= _FEW else float(values.sum()))


def all_true(flags: NDArray[np.bool_]) -> bool:
    """Whether all are true."""
    return False not in flags.tolist() if flags.size <= _FEW else bool(flags.all())
