"""Statistics of BatchNorm's inputs over all clients."""

from __future__ import annotations

from torch import Tensor

#: Mean and variance of each channel, for every BatchNorm.
Moments = list[tuple[Tensor, Tensor]]


def pooled(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance as if the images of all clients, of which each has as many, were one batch.

    Args:
        means: of each client's inputs, ``(K, channels)``.
        variances: about these means, ``(K, channels)``.
    """
    mean = means.mean(dim=0)
    return mean, variances.mean(dim=0) + (means - mean).square().mean(dim=0)
