"""The paper's network for CIFAR-10 (table simplecnn_arch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def cnn(seed: int | None = None) -> nn.Sequential:
    """Two convolutions with ReLU, BatchNorm and pooling, and three linear layers: 411,626 parameters.

    Args:
        seed: of torch's generator, for its default initialisation; the generator is left as it was. None goes on with
            its stream.
    """
    if seed is None:
        return _layers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _layers()


def _layers() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Flatten(), nn.Linear(32 * 5 * 5, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def normalized(pixels: Tensor) -> Tensor:
    """Pixels as the network takes them: from -1 to 1."""
    return (pixels.float() / 255.0 - 0.5) / 0.5
