"""What the study needs of a problem: a network, its losses on a batch, and the scores of the trained network."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
#: Seed of the validation points, the same for all networks.
VALIDATION_SEED = 2**31


class Scores(NamedTuple):
    """The evaluation of a network.

    Attributes:
        losses: on validation data, one for each objective.
        error: what the losses stand for: the distance from a solution, or the share of wrong answers.
    """

    losses: tuple[float, ...]
    error: float

    @property
    def validation(self) -> float:
        """The validation loss: log10 of the sum of the losses; infinite for a run that diverged.

        A mean of logarithms would reward a network that meets one condition to many digits and the others not at all.
        """
        total = sum(self.losses)
        return math.log10(total) if 0.0 < total < math.inf else math.inf


class Task(Protocol):
    """A problem with several losses. All parameters of its network are shared by all losses."""

    def network(self, seed: int) -> nn.Sequential:
        """Return a network with torch's initial weights for this seed."""

    def batch(self, generator: torch.Generator, times: int = 1) -> Batch:
        """Draw the data of a step, ``times`` as many as usual."""

    def losses(self, network: nn.Sequential, batch: Batch) -> list[Tensor]:
        """Return the losses of a network on a batch."""

    def scores(self, network: nn.Sequential) -> Scores:
        """Evaluate a network on data that are the same for all networks."""


def seeded(seed: int, *layers: type[nn.Module] | tuple[type[nn.Module], tuple[int, ...]]) -> nn.Sequential:
    """Make layers from their classes and arguments with torch's initial weights for this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*(layer[0](*layer[1]) if isinstance(layer, tuple) else layer() for layer in layers))
