r"""Intervals for the expected losses, from the gradients of a few micro-batches of one batch.

The batch's own slopes are too large on average: d was made from the same gradients, and the product of their noise with
itself does not vanish. Here, only gradients of *different* micro-batches are multiplied. Let $g_k^i$ be the gradient of
loss k on micro-batch i of K, $h^l = \sum_j w_j g_j^l$, and $M_{il} = \langle g_k^i, h^l\rangle$. The direction d is the
mean of the $h^l$. With $\epsilon^i = g_k^i - \mathrm{E} g_k$ and $\eta^l = h^l - \mathrm{E} h$, for given weights,

$$\frac{\sum_{i \ne l} M_{il}}{K (K - 1)} - \langle \mathrm{E} g_k, d\rangle
  = \frac1K \sum_i \langle\epsilon^i, \mathrm{E} h\rangle
  + \frac{1}{K (K - 1)} \sum_{i \ne l} \langle\epsilon^i, \eta^l\rangle ,$$

which has mean zero. The variance of the mean rows of M, divided by K, estimates the variance of the first sum and at
least half of that of the second. The residuals of M after row and column effects estimate the other half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paretograd.geometry import cones
from paretograd.geometry.cones import FLOAT64, Rounding
from paretograd.geometry.gramian import Array

#: Fewer micro-batches leave no residuals after row and column effects.
FEWEST = 4


@dataclass(frozen=True)
class ExpectedLosses:
    """Intervals for the slopes and for gamma of the *expected* losses, of which a batch is a sample.

    Every interval covers its number with probability ``level``, approximately: the guide says where this was simulated.
    For all m slopes at once, ask for the level ``1 - (1 - level) / m``.

    Attributes:
        batches: number K of micro-batches.
        level: of each interval.
        slopes: estimates of ``<E g_k, d>``, the rate at which the expected loss decreases along ``-d``. Unbiased for
            weights that do not depend on the batch.
        slope_intervals: for each of them, lower and upper end.
        gamma_interval: for the distance of the expected losses from Pareto stationarity.
    """

    batches: int
    level: float
    slopes: tuple[float, ...]
    slope_intervals: tuple[tuple[float, float], ...]
    gamma_interval: tuple[float, float]

    @property
    def conflicts(self) -> tuple[int, ...]:
        """Objectives whose expected loss increases along ``-d``: the interval lies below zero."""
        return tuple(k for k, (_, high) in enumerate(self.slope_intervals) if high < 0.0)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Objectives for which the interval holds both signs."""
        return tuple(k for k, (low, high) in enumerate(self.slope_intervals) if low < 0.0 <= high)


def expected_losses(
    H: Array, weights: Array, witness: Array, level: float = 0.95, rounding: Rounding = FLOAT64
) -> ExpectedLosses:
    """Estimate the slopes and gamma of the expected losses.

    The upper end of gamma bounds ``|J.T u|`` for the witness u and the expected gradients. The lower end is the least
    lower end of the slopes of the batch's ``d = J.T u``, divided by ``|d|``: no point of a hull is closer to zero than
    the least slope of a unit vector. One interval must hold for this, that of the least expected slope.

    Args:
        H: inner products of the gradients of K micro-batches, shape ``(K, m, K, m)``.
        weights: of the direction, shape ``(m,)``.
        witness: weights on the simplex; the closer to the least-norm point, the tighter gamma's interval.
        level: of each interval.
        rounding: of H, and of the gradients and weights.
    """
    from scipy.special import stdtrit  # on demand, as all of scipy

    K = len(H)
    t = float(stdtrit(K - 1, 0.5 + 0.5 * level))
    estimates, half = _slopes(H, weights, t, rounding)
    return ExpectedLosses(
        batches=K,
        level=level,
        slopes=tuple(estimates.tolist()),
        slope_intervals=tuple(zip((estimates - half).tolist(), (estimates + half).tolist(), strict=True)),
        gamma_interval=_gamma(H, witness, t, rounding),
    )


def _slopes(H: Array, weights: Array, t: float, rounding: Rounding) -> tuple[Array, Array]:
    """Estimate ``<E g_k, d>`` for every k, and half the length of its interval, both of shape ``(m,)``."""
    K = len(H)
    M = np.einsum("iklj,j->kil", H, weights)
    apart = M * ~np.eye(K, dtype=bool)
    rows, columns = apart.sum(axis=2), apart.sum(axis=1)
    total = rows.sum(axis=1)
    # Least squares for row and column effects without the diagonal: (K - 1) a_i + sum_{l != i} b_l = rows_i, and the
    # same for columns, with effects of equal sums.
    rows, columns = (side - (total / (2 * (K - 1)))[:, None] for side in (rows, columns))
    a = ((K - 1) * rows + columns) / (K * (K - 2))
    b = ((K - 1) * columns + rows) / (K * (K - 2))
    residuals = (M - a[:, :, None] - b[:, None, :]) * ~np.eye(K, dtype=bool)
    # Degrees of freedom if M's noise is symmetric, as for m = 1; a little too few, and so safe, if it is not.
    crossed = (residuals**2).sum(axis=(1, 2)) / (K * (K - 3))
    variance = M.mean(axis=2).var(axis=1, ddof=1) / K + crossed / K**2
    return total / (K * (K - 1)), t * np.sqrt(variance) + _errors(H, weights, rounding)


def _gamma(H: Array, witness: Array, t: float, rounding: Rounding) -> tuple[float, float]:
    K = len(H)
    length = cones.norm(H.mean(axis=(0, 2)), witness)
    estimates, half = _slopes(H, witness, t, rounding)
    low = max(float((estimates - half).min()), 0.0) / length if length > 0.0 else 0.0
    squares = np.einsum("k,iklj,j->il", witness, H, witness)
    apart = squares.sum(axis=1) - squares.diagonal()
    # The jackknife: its mean is never below the variance of a mean over pairs (Efron and Stein, 1981).
    variance = 4.0 * float(((apart - apart.mean()) ** 2).sum()) / (K * (K - 1) * (K - 2) ** 2)
    # A length x with error s has the square (x + ts)^2 = x^2 + 2tsx + t^2 s^2, whose last term the jackknife misses.
    along = float(squares.mean(axis=1).var(ddof=1)) / (K * length**2) if length > 0.0 else 0.0
    square = float(apart.sum()) / (K * (K - 1)) + t * math.sqrt(variance) + t**2 * along
    return low, math.sqrt(max(square, 0.0) + float(np.abs(witness) @ _errors(H, witness, rounding)))


def _errors(H: Array, weights: Array, rounding: Rounding) -> Array:
    """Bound the rounding errors of products of gradients of two micro-batches, shape ``(m,)``."""
    K, m = H.shape[:2]
    longest = np.sqrt(H.reshape(K * m, K * m).diagonal().reshape(K, m).max(axis=0))
    unit = rounding.of_products(m) + rounding.of_sums + rounding.rows
    return np.asarray(unit * longest * float(np.abs(weights) @ longest))
