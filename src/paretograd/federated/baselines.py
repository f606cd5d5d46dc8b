"""Rules of Byzantine-robust learning to compare with. Each takes updates ``(m, n)`` and gives a direction ``(n,)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paretograd.checks import as_count
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import combine, gramian

#: Steps of Weiszfeld's iteration, and the relative change at which it ends.
_STEPS, _CHANGE = 1000, 1e-12

#: Of two updates, the square of the distance over the sum of the squares below which rounding cannot tell them apart.
_SAME = 1e-14

#: How many coordinates are sorted at a time, since sorting takes three times the memory of what is sorted.
_COLUMNS = 1 << 20


class Krum:
    """The update that is closest to its ``m - attackers - 2`` nearest others (Blanchard et al., 2017).

    Args:
        attackers: how many clients may be hostile; ``m >= 2 attackers + 3``.
    """

    label = "Krum"

    def __init__(self, attackers: int = 1) -> None:
        self.attackers = as_count(attackers, "attackers", 0)

    def __call__(self, updates: Tensor) -> Tensor:
        return updates[krum_scores(updates, self.attackers).argmin()].clone()


class MultiKrum:
    """The mean of the updates with the best scores of Krum (Blanchard et al., 2017).

    Args:
        attackers: how many clients may be hostile.
        kept: how many updates to average; None for ``m - attackers``.
    """

    label = "Multi-Krum"

    def __init__(self, attackers: int = 1, kept: int | None = None) -> None:
        self.attackers = as_count(attackers, "attackers", 0)
        self.kept = None if kept is None else as_count(kept, "kept", 1)

    def __call__(self, updates: Tensor) -> Tensor:
        scores = krum_scores(updates, self.attackers)
        kept = len(updates) - self.attackers if self.kept is None else min(self.kept, len(updates))
        return updates[scores.argsort(stable=True)[:kept]].double().mean(dim=0).to(updates.dtype)


class CoordinateMedian:
    """The median of each coordinate (Yin et al., 2018); the mean of the middle two for an even number."""

    label = "Median"

    def __call__(self, updates: Tensor) -> Tensor:
        return _middle(updates, (len(updates) - 1) // 2)


class TrimmedMean:
    """The mean of each coordinate without its largest and smallest values (Yin et al., 2018).

    Args:
        attackers: how many values to leave out at either end.
    """

    label = "Trimmed mean"

    def __init__(self, attackers: int = 1) -> None:
        self.attackers = as_count(attackers, "attackers", 0)

    def __call__(self, updates: Tensor) -> Tensor:
        m, cut = len(updates), self.attackers
        if 2 * cut >= m:
            raise ParameterError(
                f"attackers={cut} at either end leave nothing of m={m} updates; at most {(m - 1) // 2}"
            )
        return _middle(updates, cut)


def _middle(updates: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate without so many values at either end. Sorted are some columns at a time."""
    parts = [part.sort(dim=0).values[cut : len(part) - cut] for part in torch.split(updates, _COLUMNS, dim=1)]
    return torch.cat([part.double().mean(dim=0).to(updates.dtype) for part in parts])


class GeometricMedian:
    """The point with the least sum of distances to the updates (RFA, Pillutla et al., 2022).

    It is a convex combination of them, found by Weiszfeld's iteration on the Gramian.
    """

    label = "Geometric median"

    def __call__(self, updates: Tensor) -> Tensor:
        return combine(geometric_median_weights(gramian(updates).cpu()), updates)


def geometric_median_weights(G: Tensor) -> Tensor:
    """Weights on the simplex of the geometric median, from a Gramian ``(m, m)``.

    At one of the updates the sum of distances has a kink, which the iteration cannot leave or enter: whether that
    update is the median is checked first, by the length of the unit vectors' sum (Vardi and Zhang, 2000).
    """
    m = len(G)
    corner = _median_among(G)
    if corner is not None:
        return torch.eye(m, dtype=G.dtype, device=G.device)[corner]
    weights = torch.full((m,), 1.0 / m, dtype=G.dtype, device=G.device)
    for _ in range(_STEPS):
        distances = _distances(G, weights)
        least = distances[distances > 0.0].min()
        found = 1.0 / distances.clamp(min=1e-12 * float(least))
        found = found / found.sum()
        # Of each weight its own share: that of an update far away is tiny, and moves the sum all the same.
        change = float(((found - weights).abs() / found).max())
        weights = found
        if change <= _CHANGE:
            break
    return weights


def _median_among(G: Tensor) -> int | None:
    """The update that is the geometric median itself, if one is."""
    squares = G.diagonal()
    sums = squares + squares[:, None]
    apart = (sums - 2.0 * G).clamp(min=0.0)
    # By the two updates alone: a third, however long, must not make them one.
    apart = torch.where(apart > _SAME * sums, apart, 0.0).sqrt()
    for k in range(len(G)):
        others = apart[k] > 0.0
        if not bool(others.any()):
            return k
        # Unit vectors from update k to the others; as many updates as coincide with it hold it in place.
        pull = torch.where(others, 1.0 / torch.where(others, apart[k], 1.0), 0.0)
        coefficients = pull.clone()
        coefficients[k] -= pull.sum()
        strength = float((coefficients @ G @ coefficients).clamp(min=0.0).sqrt())
        if strength <= float((~others).sum()) * (1.0 + 1e-12):
            return k
    return None


def _distances(G: Tensor, weights: Tensor) -> Tensor:
    """From the combination with these weights to each update, ``(m,)``."""
    products = G @ weights
    return (weights @ products - 2.0 * products + G.diagonal()).clamp(min=0.0).sqrt()


def krum_scores(updates: Tensor, attackers: int) -> Tensor:
    """Sums of squared distances to the nearest ``m - attackers - 2`` other updates, ``(m,)``."""
    m = len(updates)
    nearest = m - attackers - 2
    if nearest < 1 or m < 2 * attackers + 3:
        raise ParameterError(f"Krum with attackers={attackers} needs m >= {2 * attackers + 3} updates; got m={m}")
    G = gramian(updates).cpu()
    squares = G.diagonal()
    apart = (squares + squares[:, None] - 2.0 * G).clamp(min=0.0)
    apart.fill_diagonal_(torch.inf)
    return apart.sort(dim=1).values[:, :nearest].sum(dim=1)


#: All of them with their defaults, by label.
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    rule.label: rule for rule in (Krum(), MultiKrum(), CoordinateMedian(), TrimmedMean(), GeometricMedian())
}
