"""Detection of gradients, of norm 1e-25 or 1e25 for instance, whose squared norms are out of range in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import LEAST, MOST, Array


def out_of_range(gramians: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return masks of gradients too large and too small for sums of float32 products; None if nothing was lost.

    A row of zeros means a zero gradient if other rows are not zero. If all rows are zero, or one is small, they may
    have underflowed and count as small.

    Args:
        gramians: shape ``(..., m, m)``.

    Returns:
        two masks, of shape ``(..., m)``.
    """
    squares, largest = gramians.diagonal(axis1=-2, axis2=-1), abs(gramians).max(axis=-1, initial=0.0)
    large, small = ~(squares <= MOST), squares < LEAST
    unknown = (largest > 0.0) | (largest.max(axis=-1, keepdims=True, initial=0.0) == 0.0)
    return (large, small) if (large | (small & unknown)).any() else None
