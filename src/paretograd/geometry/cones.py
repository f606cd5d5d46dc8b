"""Simplex, cone and dual cone: membership of weights and of the direction they give, and how far rounding hides it.

The entries of a Gramian are rounded. Weights that are large and cancel magnify that: the direction ``d = J.T w`` is
then much shorter than the terms that it sums. `Rounding` bounds the error of all that is computed here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array

#: Rounding of float64.
_UNIT = 2.0**-53

#: Entries of a Gramian are taken to be right to this many units in the last place of ``|g_i| |g_j|``. Products of rows
#: with up to 100,000 random entries were off by ten at most.
_ENTRY_UNITS = 16.0

#: A sum ``J.T w`` of rounded rows is off by this many units of the terms that it sums: half a unit each for rows and
#: weights, one for the sum.
_ROW_UNITS = 2.0

#: Numbers below this have lost digits, as products underflow.
_SMALLEST = 1e-318


class Rounding(NamedTuple):
    """How far the numbers may be off that a certificate is computed from.

    Attributes:
        entries: of the Gramian, relative to ``|g_i| |g_j|``: the epsilon of its products.
        rows: of the gradients themselves and of the weights, relative: the epsilon of their dtype, 0 if they are exact.
    """

    entries: float = 2.0 * _UNIT
    rows: float = 0.0

    @property
    def eps(self) -> float:
        """The larger of the two."""
        return max(self.entries, self.rows)

    @property
    def resolution(self) -> float:
        """Cosines between zero and minus this count as zero: the root of rounding, as a Gramian resolves angles."""
        return math.sqrt(self.eps)

    def of_products(self, m: int) -> float:
        """Error of an inner product of two combinations of m gradients, relative to the terms that it sums."""
        return _ENTRY_UNITS * self.entries + (2 * m + 8) * _UNIT

    @property
    def of_sums(self) -> float:
        """Distance of ``J.T w`` from the combination of the true gradients, relative to the terms that it sums."""
        return _ROW_UNITS * self.rows


#: A Gramian and weights in float64.
FLOAT64 = Rounding()


def sizes(G: Array, weights: Array) -> Array:
    """``|w_j| |g_j|``: the weights in units of the gradients, shape ``(m,)``."""
    return np.asarray(np.abs(weights) * np.sqrt(G.diagonal()))


def norm(G: Array, weights: Array) -> float:
    """``|J.T w|``, without overflow or underflow on the way."""
    size = float(sizes(G, weights).max(initial=0.0))
    if size == 0.0:
        return 0.0
    scaled = weights / size
    return size * math.sqrt(max(float(scaled @ G @ scaled), 0.0))


def slopes(G: Array, weights: Array) -> Array:
    """``<d, g_k>`` for every objective: the rate at which each one goes down along ``-d``."""
    return G @ weights


def slope_errors(G: Array, weights: Array, rounding: Rounding) -> Array:
    """How far `slopes` may be off, shape ``(m,)``: ``|g_k|`` times the error of d, ``|d|`` times that of ``g_k``."""
    total, lengths = float(sizes(G, weights).sum()), np.sqrt(G.diagonal())
    off = (rounding.of_products(len(weights)) + rounding.of_sums) * total + rounding.rows * norm(G, weights)
    underflow = _SMALLEST * (1.0 + float(np.abs(weights).sum()))
    return np.where((lengths > 0.0) & (total > 0.0), off * lengths + underflow, 0.0)


def norm_bracket(G: Array, weights: Array, rounding: Rounding) -> tuple[float, float]:
    """Bounds on ``|J.T w|``.

    The square ``w'Gw`` is off by rounding of the terms that it sums. ``|d| |g_k| >= <d, g_k>`` gives a second lower
    bound, which is better for a short d.
    """
    length, total = norm(G, weights), float(sizes(G, weights).sum())
    if total == 0.0:
        return 0.0, 0.0
    relative, off = (length / total) ** 2, rounding.of_products(len(weights))
    low = total * math.sqrt(max(relative - off, 0.0)) - rounding.of_sums * total
    high = total * math.sqrt(relative + off) + rounding.of_sums * total
    lengths = np.sqrt(G.diagonal())
    surely = np.abs(slopes(G, weights)) - slope_errors(G, weights, rounding)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = float(np.where(lengths > 0.0, surely / lengths, 0.0).max())
    return max(low, seen * (1.0 - rounding.of_products(len(weights))), 0.0), high


def gamma_bracket(G: Array, witness: Array, rounding: Rounding = FLOAT64) -> tuple[float, float]:
    """Bounds on gamma from any non-negative weights: ``min_k (G w)_k / |J.T w| <= gamma <= |J.T w|``.

    The upper bound is the definition of a minimum; the lower one holds as every point of the hull has an inner
    product of at least ``min_k <d, g_k>`` with ``d = J.T w``. Both allow for rounding.
    """
    positive = np.maximum(witness, 0.0)
    positive = positive / positive.sum()
    upper = norm_bracket(G, positive, rounding)[1] * (1.0 + (len(witness) + 4) * _UNIT)
    least = float((slopes(G, positive) - slope_errors(G, positive, rounding)).min())
    return (min(max(least / upper * (1.0 - 4.0 * _UNIT), 0.0), upper) if upper > 0.0 else 0.0), upper


def in_cone(G: Array, weights: Array, slack: float) -> bool:
    """Whether ``J.T w`` is a conic combination of the gradients: its negative terms are no longer than ``slack``.

    The terms ``w_k g_k`` count, and not the weights, which mean nothing without the lengths of the gradients.
    """
    return float(sizes(G, np.minimum(weights, 0.0)).sum()) <= slack


def in_hull(G: Array, weights: Array, slack: float, tol: float) -> bool:
    """Whether ``J.T w`` is a convex combination: in the cone, with non-negative weights that sum to one."""
    total = float(np.maximum(weights, 0.0).sum())
    return in_cone(G, weights, slack) and abs(total - 1.0) <= tol * len(weights)
