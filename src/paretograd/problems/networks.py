"""The networks of the paper's studies. Their initialisation is a function of a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def cnn(seed: int | None = None) -> nn.Sequential:
    """The paper's network for CIFAR-10 (table simplecnn_arch), with 411,626 parameters.

    Two convolutions with ReLU, BatchNorm and pooling, and three linear layers. The network is on the CPU, like
    the data, whatever torch's default device.

    Args:
        seed: seed of torch's default initialisation; torch's generator is restored afterwards. None draws from the
            generator's current state.
    """
    return _seeded(_cnn, seed)


def _cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2, 2)),
        *(nn.Flatten(), nn.Linear(32 * 5 * 5, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def normalized(pixels: Tensor) -> Tensor:
    """Scale pixels to [-1, 1], the range that `cnn` expects."""
    return (pixels.float() / 255.0 - 0.5) / 0.5


def classifier(features: int = 88, width: int = 256, seed: int | None = None) -> nn.Sequential:
    """The classifier for Adult, M4 of the LibMOON benchmark, with 154,625 parameters for 88 features.

    Three hidden layers with ReLU, and one logit. The network is on the CPU, like the data, whatever torch's
    default device.

    Args:
        features: number of inputs.
        width: number of units in each hidden layer.
        seed: seed of torch's default initialisation; torch's generator is restored afterwards. None draws from the
            generator's current state.
    """
    return _seeded(lambda: _classifier(features, width), seed)


def _classifier(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(features, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 1),
    )


def _seeded(build: Callable[[], nn.Sequential], seed: int | None) -> nn.Sequential:
    """Return ``build()`` after ``torch.manual_seed(seed)`` and restore torch's generator; None does not seed.

    The network is built on the CPU, whatever torch's default device: a GPU would draw other numbers from the seed.
    """
    with torch.device("cpu"):
        if seed is None:
            return build()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the GPUs, too
            return build()
