"""The paper's network for CIFAR-10 (table simplecnn_arch)."""

from __future__ import annotations

from torch import Tensor, nn

from paretograd.problems.seeding import seeded


def cnn(seed: int | None = None) -> nn.Sequential:
    """Two convolutions with ReLU, BatchNorm and pooling, and three linear layers: 411,626 parameters.

    On the CPU, as the data are, whatever torch's default device.

    Args:
        seed: of torch's generator, for its default initialisation; the generator is left as it was. None goes on with
            its stream.
    """
    return seeded(_layers, seed)


def _layers() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Flatten(), nn.Linear(32 * 5 * 5, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def normalized(pixels: Tensor) -> Tensor:
    """Pixels as the network takes them: from -1 to 1."""
    return (pixels.float() / 255.0 - 0.5) / 0.5
