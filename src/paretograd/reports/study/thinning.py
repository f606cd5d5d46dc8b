"""Which points of a long curve a picture needs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

#: Points of a curve, about; its extremes come on top.
COUNT = 320


def thin(gamma: Array, losses: Array, count: int = COUNT) -> NDArray[np.int64]:
    """The iterations to draw of a run with ``gamma`` (T + 1,) and ``losses`` (T + 1, m), in order.

    All where there are few. Else a quarter of them lies on a log scale, so that the start is seen, a quarter is evenly
    spaced, and between two of these the least and the largest gamma are kept, so that no jump of a switching rule is
    lost. The least and the largest value of every loss are there, too.
    """
    last = len(gamma) - 1
    if last < count:
        return np.arange(last + 1)
    evenly = np.linspace(0.0, last, count // 4)
    edges = np.unique(np.rint(np.concatenate([np.geomspace(1.0, last, count // 4), evenly])).astype(np.int64))
    kept = [edges]
    for start, end in pairwise(edges):
        piece = gamma[start : end + 1]  # both ends: a falling curve then adds nothing
        kept.append(start + np.array([piece.argmin(), piece.argmax()]))
    kept += [losses.argmin(axis=0), losses.argmax(axis=0)]
    return np.unique(np.concatenate(kept))


def spaced(last: int, count: int = 80) -> NDArray[np.int64]:
    """Iterations 0 to ``last`` on a log scale, for a curve without surprises."""
    return np.unique(np.rint(np.geomspace(1.0, last + 1.0, count)).astype(np.int64)) - 1
