"""Byzantine-robust rules for comparison. Each maps updates ``(m, n)`` to a direction ``(n,)``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.coordinates import trimmed_mean
from paretograd.aggregators.krum import Krum as KrumRule
from paretograd.checks import as_count
from paretograd.errors import ParameterError
from paretograd.federated.rules import CoordinateRule, GramianRule
from paretograd.geometry.gramian import Array, as_array

#: Maximum number of steps of Weiszfeld's iteration, and the relative change at which it stops.
_STEPS, _CHANGE = 1000, 1e-12

#: Two updates count as equal if their squared distance is at most this share of the sum of their squared lengths:
#: rounding could not distinguish them.
_SAME = 1e-14


class Krum(GramianRule):
    """The update closest to its ``m - attackers - 2`` nearest neighbours (Blanchard et al., 2017).

    Args:
        attackers: maximum number of hostile clients; ``m >= 2 attackers + 3``.
    """

    label = "Krum"

    def __init__(self, attackers: int = 1) -> None:
        self.attackers = as_count(attackers, "attackers", 0)

    def weights(self, gramian: Tensor) -> Tensor:
        return KrumRule(self.attackers).weights(gramian)


class MultiKrum(GramianRule):
    """The mean of the updates with the best Krum scores (Blanchard et al., 2017).

    Args:
        attackers: maximum number of hostile clients.
        kept: number of updates to average; None for ``m - attackers``.
    """

    label = "Multi-Krum"

    def __init__(self, attackers: int = 1, kept: int | None = None) -> None:
        self.attackers = as_count(attackers, "attackers", 0)
        self.kept = None if kept is None else as_count(kept, "kept", 1)

    def weights(self, gramian: Tensor) -> Tensor:
        return KrumRule(self.attackers, self.kept).weights(gramian)


class CoordinateMedian(CoordinateRule):
    """The median of each coordinate (Yin et al., 2018); the mean of the middle two for an even number."""

    label = "Median"

    def __call__(self, updates: Tensor) -> Tensor:
        return trimmed_mean(updates, (len(updates) - 1) // 2)


class TrimmedMean(CoordinateRule):
    """The mean of each coordinate without its largest and smallest values (Yin et al., 2018).

    Args:
        attackers: number of values to drop at either end.
    """

    label = "Trimmed mean"

    def __init__(self, attackers: int = 1) -> None:
        self.attackers = as_count(attackers, "attackers", 0)

    def __call__(self, updates: Tensor) -> Tensor:
        m, cut = len(updates), self.attackers
        if 2 * cut >= m:
            raise ParameterError(
                f"attackers={cut} at either end leave none of m={m} updates; use at most {(m - 1) // 2}"
            )
        return trimmed_mean(updates, cut)


class GeometricMedian(GramianRule):
    """The point with the least sum of distances to the updates (RFA, Pillutla et al., 2022).

    It is a convex combination of them, found by Weiszfeld's iteration on the Gramian.
    """

    label = "Geometric median"

    def weights(self, gramian: Tensor) -> Tensor:
        return torch.from_numpy(geometric_median_weights(as_array(gramian))).to(gramian)


def geometric_median_weights(G: Array) -> Array:
    """Return the weights of the geometric median, on the simplex, from a Gramian ``(m, m)``.

    The sum of distances has a kink at each update, which the iteration can neither leave nor reach. Each update is
    therefore tested first, by the length of the sum of unit vectors (Vardi and Zhang, 2000).
    """
    m = len(G)
    corner = _median_among(G)
    if corner is not None:
        return np.asarray(np.eye(m)[corner])
    squares, weights = G.diagonal(), np.full(m, 1.0 / m)
    for _ in range(_STEPS):
        products = G.dot(weights)
        distances = np.sqrt(np.maximum(weights.dot(products) - 2.0 * products + squares, 0.0))
        least = distances[distances > 0.0].min()
        found = 1.0 / np.maximum(distances, 1e-12 * least)
        found /= np.add.reduce(found)
        # Relative to each weight: the weight of a distant update is tiny, but still moves the sum.
        change = (np.abs(found - weights) / found).max()
        weights = found
        if change <= _CHANGE:
            break
    return weights


def _median_among(G: Array) -> int | None:
    """Return the update that is itself the geometric median, or None."""
    squares = G.diagonal()
    sums = squares + squares[:, None]
    apart = sums - 2.0 * G
    # Compare only the two updates: a long third one must not make them equal.
    others = apart > _SAME * sums
    pulls = np.where(others, 1.0 / np.sqrt(np.where(others, apart, 1.0)), 0.0)
    for k, pull in enumerate(pulls):
        # Pull of the unit vectors from update k to the others; each update that coincides with k resists with force 1.
        total = np.add.reduce(pull)
        if total == 0.0:
            return k
        coefficients = pull.copy()
        coefficients[k] -= total
        strength = np.sqrt(max(coefficients.dot(G.dot(coefficients)), 0.0))
        if strength <= np.count_nonzero(~others[k]) * (1.0 + 1e-12):
            return k
    return None


#: All baselines with default parameters, by label.
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    rule.label: rule for rule in (Krum(), MultiKrum(), CoordinateMedian(), TrimmedMean(), GeometricMedian())
}
