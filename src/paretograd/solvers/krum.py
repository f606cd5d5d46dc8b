"""Krum's choice of gradients, from their Gramian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian

#: Rounding of a squared distance, in units of the Gramian's rounding times the two squared norms.
_UNITS = 8.0

#: The longest gradient is scaled to this norm: neither its square nor that of a gradient 1e300 times shorter is lost.
_LONGEST = 2.0**500


def nearest_to_their_neighbours(unit: UnitGramian, neighbours: int, count: int) -> NDArray[np.intp]:
    """Return the gradients with the least sums of squared distances to their nearest neighbours, best first.

    Sums that differ by less than rounding are equal, and the first objective wins.

    Args:
        unit: the Gramian.
        neighbours: number of neighbours in each sum.
        count: number of gradients to return.
    """
    scores, errors = _scores(unit, neighbours)
    left = np.ones(unit.m, dtype=bool)
    chosen = np.empty(count, dtype=np.intp)
    for place in range(count):
        least = int(np.where(left, scores, np.inf).argmin())
        chosen[place] = (left & (scores - scores[least] <= errors + errors[least])).argmax()
        left[chosen[place]] = False
    return chosen


def _scores(unit: UnitGramian, neighbours: int) -> tuple[Array, Array]:
    """Return the sums of squared distances to the nearest neighbours, and bounds of their rounding errors."""
    norms, C = unit.expand(unit.norms), unit.expand(unit.expand(unit.C).T)
    norms = norms * (_LONGEST / (norms.max() or 1.0))
    sums = np.add.outer(norms**2, norms**2)
    apart = np.maximum(sums - 2.0 * (C * norms) * norms[:, None], 0.0)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argsort(axis=1, kind="stable")[:, :neighbours]
    errors = _UNITS * max(unit.eps, 2e-16) * np.take_along_axis(sums, nearest, 1).sum(axis=1)
    return np.take_along_axis(apart, nearest, 1).sum(axis=1), errors
