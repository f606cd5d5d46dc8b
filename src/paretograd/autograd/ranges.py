"""Squared norms that sums of float32 products cannot hold, of gradients that float32 can: 1e-25 or 1e25, say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import LEAST, MOST, Array


def out_of_range(gramians: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Which gradients are too large and which too small for sums of float32 products; None if nothing was lost.

    A row of zeros belongs to a gradient of zeros, if the Gramian has others. Where all are zero, or one is small, they
    may have underflowed, and count as small.

    Args:
        gramians: shape ``(..., m, m)``.

    Returns:
        two masks, of shape ``(..., m)``.
    """
    squares, largest = gramians.diagonal(axis1=-2, axis2=-1), abs(gramians).max(axis=-1, initial=0.0)
    large, small = ~(squares <= MOST), squares < LEAST
    unknown = (largest > 0.0) | (largest.max(axis=-1, keepdims=True, initial=0.0) == 0.0)
    return (large, small) if (large | (small & unknown)).any() else None
