"""The classifier of the benchmark."""

from __future__ import annotations

from torch import nn

from paretograd.problems.seeding import seeded


def classifier(features: int = 88, width: int = 256, seed: int | None = None) -> nn.Sequential:
    """M4 of the LibMOON benchmark: three hidden layers with ReLU, and one logit; 154,625 parameters for 88 features.

    The network is on the CPU, like the data, whatever torch's default device.

    Args:
        features: number of inputs.
        width: number of units in each hidden layer.
        seed: seed of torch's default initialisation; torch's generator is restored afterwards. None draws from the
            generator's current state.
    """
    return seeded(lambda: _layers(features, width), seed)


def _layers(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(features, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 1),
    )
