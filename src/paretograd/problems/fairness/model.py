"""The classifier of the benchmark."""

from __future__ import annotations

from torch import nn

from paretograd.problems.seeding import seeded


def classifier(features: int = 88, width: int = 256, seed: int | None = None) -> nn.Sequential:
    """M4 of the LibMOON benchmark: three hidden layers with ReLU, and one logit; 154,625 parameters for 88 features.

    On the CPU, as the data are, whatever torch's default device.

    Args:
        features: inputs.
        width: of the hidden layers.
        seed: of torch's generator, for its default initialisation; the generator is left as it was. None goes on with
            its stream.
    """
    return seeded(lambda: _layers(features, width), seed)


def _layers(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(features, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 1),
    )
