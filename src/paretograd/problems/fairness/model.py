"""The classifier of the benchmark."""

from __future__ import annotations

import torch
from torch import nn


def classifier(features: int = 88, width: int = 256, seed: int | None = None) -> nn.Sequential:
    """M4 of the LibMOON benchmark: three hidden layers with ReLU, and one logit; 154,625 parameters for 88 features.

    Args:
        features: inputs.
        width: of the hidden layers.
        seed: of torch's generator, for its default initialisation; the generator is left as it was. None goes on with
            its stream.
    """
    if seed is None:
        return _layers(features, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _layers(features, width)


def _layers(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(features, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 1),
    )
