"""Simplex, cone and dual cone: where ``d = J.T w`` lies, which gradients it opposes, and what rounding hides.

The entries of a Gramian are rounded. Large weights that cancel magnify the error, because d is then much shorter than
the terms that it sums. `Rounding` bounds the error of every quantity computed here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

#: Rounding of float64.
_UNIT = 2.0**-53

#: Ten units of float32, the rounding of float32 rows. Unit gradients that differ by less may be equal, and slopes,
#: coefficients and cosines of order one below this may be zero.
FLOAT32_ROWS = 1e-6

#: Error of a Gramian's entries, in units in the last place of ``|g_i| |g_j|``. Products of rows with up to 100,000
#: random entries were off by at most ten.
_ENTRY_UNITS = 16.0

#: Error of a sum ``J.T w`` of rounded rows, in units of its terms: half a unit each for rows and weights, one for the
#: sum.
_ROW_UNITS = 2.0

#: Products below this have lost digits to underflow.
_SMALLEST = 1e-318


class Rounding(NamedTuple):
    """Relative errors of the numbers that a certificate is computed from.

    Attributes:
        entries: of the Gramian's entries, relative to ``|g_i| |g_j|``: the epsilon of its products.
        rows: of the gradients and of the weights: the epsilon of their dtype, 0 if they are exact.
    """

    entries: float = 2.0 * _UNIT
    rows: float = 0.0

    @property
    def eps(self) -> float:
        """The larger of the two."""
        return max(self.entries, self.rows)

    @property
    def resolution(self) -> float:
        """Cosines between minus this and zero count as zero. A Gramian resolves angles to the root of its rounding."""
        return math.sqrt(self.eps)

    def of_products(self, m: int) -> float:
        """Error of an inner product of two combinations of m gradients, relative to its terms."""
        return _ENTRY_UNITS * self.entries + (2 * m + 8) * _UNIT

    @property
    def of_sums(self) -> float:
        """Distance of ``J.T w`` from the combination of the true gradients, relative to its terms."""
        return _ROW_UNITS * self.rows


#: A Gramian and weights in float64.
FLOAT64 = Rounding()


def sizes(G: Array, weights: Array) -> Array:
    """``|w_j| |g_j|``: the weights in units of the gradients, shape ``(m,)``."""
    return np.asarray(np.abs(weights) * np.sqrt(G.diagonal()))


def norm(G: Array, weights: Array) -> float:
    """``|J.T w|``, safe from overflow and underflow."""
    size = float(sizes(G, weights).max(initial=0.0))
    if size == 0.0:
        return 0.0
    scaled = weights / size
    return size * math.sqrt(max(float(scaled @ G @ scaled), 0.0))


def slopes(G: Array, weights: Array) -> Array:
    """``<d, g_k>`` for every objective: the rate at which it decreases along ``-d``."""
    return G @ weights


def slope_errors(G: Array, weights: Array, rounding: Rounding) -> Array:
    """Bound the errors of `slopes`, shape ``(m,)``: ``|g_k|`` times the error of d plus ``|d|`` times that of g_k."""
    total, lengths = float(sizes(G, weights).sum()), np.sqrt(G.diagonal())
    off = (rounding.of_products(len(weights)) + rounding.of_sums) * total + rounding.rows * norm(G, weights)
    underflow = _SMALLEST * (1.0 + float(np.abs(weights).sum()))
    return np.where((lengths > 0.0) & (total > 0.0), off * lengths + underflow, 0.0)


def term_errors(lengths: Array, weights: Array, unit: float | None = None) -> Array:
    """Estimate the errors of slopes from the terms of d alone, shape ``(..., m)``, for steps without a Gramian.

    Args:
        lengths: ``|g_k|``, shape ``(..., m)``.
        weights: shape ``(..., m)``. NaN, of a direction that is no combination, counts as zero: such a direction has no
            terms that cancel.
        unit: error of a slope relative to ``|g_k|`` times the sum of ``|w_j| |g_j|``. None for 1e-15 per objective,
            float64 rounding: the conflicts counted in published runs depend on this number.
    """
    unit = 1e-15 * weights.shape[-1] if unit is None else unit
    weights = np.where(np.isnan(weights), 0.0, weights)
    return np.asarray(unit * (np.abs(weights) * lengths).sum(axis=-1, keepdims=True) * lengths)


def conflict_tolerance(eps: float) -> float:
    """Return the cosine below zero that rounding of a direction may cause, for a computation with this epsilon.

    1e-10 is well above what exact solvers leave of a zero cosine in float64. In a less precise dtype, d and the rows
    are off by some units in the last place. A real conflict is larger than both.
    """
    return max(1e-10, 64.0 * eps)


def conflict_threshold(lengths: Array, length: Array | float, errors: Array | float, tol: float) -> Array:
    """The size of a negative slope that rounding may explain, shape ``(..., m)``. Arguments as of `conflicting`."""
    return np.asarray(errors + tol * np.asarray(length)[..., None] * lengths)


def conflicting(
    slopes: Array, lengths: Array, length: Array | float, *, tol: float, errors: Array | float = 0.0
) -> NDArray[np.bool_]:
    """Return True for each gradient that d opposes: ``<d, g_k> < -errors_k - tol |d| |g_k|``.

    A negative sign alone proves nothing. Projections onto the dual cone make slopes that are zero up to rounding, and
    half of these are negative. Two errors are allowed for: that of the slope, which exceeds ``|d| |g_k|`` if long terms
    cancel in d, and that of d itself.

    Args:
        slopes: ``<d, g_k>``, shape ``(..., m)``.
        lengths: ``|g_k|``, shape ``(..., m)``.
        length: ``|d|``, shape ``(...)``.
        tol: error of d as a cosine. Use `conflict_tolerance`; use `FLOAT32_ROWS` if slopes come from float32 rows and a
            float32 direction directly, as in the federated study, whose published counts depend on it.
        errors: of the slopes, from `slope_errors` or `term_errors`.
    """
    return np.asarray(slopes < -conflict_threshold(lengths, length, errors, tol))


def norm_bracket(G: Array, weights: Array, rounding: Rounding) -> tuple[float, float]:
    """Bounds on ``|J.T w|``.

    The square ``w'Gw`` has a rounding error relative to its terms. ``|d| |g_k| >= <d, g_k>`` gives a second lower
    bound, which is better if d is short.
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

    The upper bound is the definition of a minimum. The lower bound holds because every point of the hull has an inner
    product of at least ``min_k <d, g_k>`` with ``d = J.T w``. Both allow for rounding.
    """
    positive = np.maximum(witness, 0.0)
    positive = positive / positive.sum()
    upper = norm_bracket(G, positive, rounding)[1] * (1.0 + (len(witness) + 4) * _UNIT)
    least = float((slopes(G, positive) - slope_errors(G, positive, rounding)).min())
    return (min(max(least / upper * (1.0 - 4.0 * _UNIT), 0.0), upper) if upper > 0.0 else 0.0), upper


def in_cone(G: Array, weights: Array, slack: float) -> bool:
    """Return True if ``J.T w`` is a conic combination: the lengths of its negative terms sum to at most ``slack``.

    Only the terms ``w_k g_k`` count: weights mean nothing without the lengths of the gradients.
    """
    return float(sizes(G, np.minimum(weights, 0.0)).sum()) <= slack


def in_hull(G: Array, weights: Array, slack: float, tol: float) -> bool:
    """Return True if ``J.T w`` is a convex combination: in the cone, with non-negative weights that sum to one."""
    total = float(np.maximum(weights, 0.0).sum())
    return in_cone(G, weights, slack) and abs(total - 1.0) <= tol * len(weights)
