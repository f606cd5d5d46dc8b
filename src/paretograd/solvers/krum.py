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
    chosen = np.empty(count, dtype=np.intp)
    for place in range(count):
        least = scores.argmin()
        chosen[place] = k = int((scores - errors <= scores[least] + errors[least]).argmax())
        scores[k] = np.inf
    return chosen


def _scores(unit: UnitGramian, neighbours: int) -> tuple[Array, Array]:
    """Return the sums of squared distances to the nearest neighbours, and bounds of their rounding errors."""
    norms, C = unit.norms, unit.C
    if unit.live is not None:
        norms, C = unit.expand(norms), unit.expand(unit.expand(C).T)
    norms = norms * (_LONGEST / (norms[norms.argmax()] or 1.0))
    squares = norms * norms
    apart = C * norms
    apart *= (-2.0 * norms)[:, None]
    apart += squares
    apart += squares[:, None]
    apart.sort(axis=1)
    # The first is the distance from itself, which is zero.
    scores = np.add.reduce(apart[:, : neighbours + 1], axis=1)
    # |g_i|^2 <= 2 |g_k|^2 + 2 |g_k - g_i|^2 bounds the squares of which the distances are differences.
    rounding = _UNITS * max(unit.eps, 2e-16)
    errors = (3.0 * neighbours * rounding) * squares
    errors += (2.0 * rounding) * scores
    return scores, errors
