"""The paper's network for CIFAR-10 (table simplecnn_arch)."""

from __future__ import annotations

from torch import Tensor, nn

from paretograd.problems.seeding import seeded


def cnn(seed: int | None = None) -> nn.Sequential:
    """Two convolutions with ReLU, BatchNorm and pooling, and three linear layers: 411,626 parameters.

    The network is on the CPU, like the data, whatever torch's default device.

    Args:
        seed: seed of torch's default initialisation; torch's generator is restored afterwards. None draws from the
            generator's current state.
    """
    return seeded(_layers, seed)


def _layers() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Flatten(), nn.Linear(32 * 5 * 5, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def normalized(pixels: Tensor) -> Tensor:
    """Scale pixels to [-1, 1], the range that the network expects."""
    return (pixels.float() / 255.0 - 0.5) / 0.5
