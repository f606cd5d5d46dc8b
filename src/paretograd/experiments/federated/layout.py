"""Where each parameter of the network lies in a flat vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Layout:
    """The parameters of a network, one after the other.

    Attributes:
        places: by name, where a parameter begins, and its shape.
        size: number of values in all.
    """

    def __init__(self, network: nn.Module) -> None:
        self.places: dict[str, tuple[int, torch.Size]] = {}
        self.size = 0
        for name, parameter in network.named_parameters():
            self.places[name] = (self.size, parameter.shape)
            self.size += parameter.numel()

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector, by name."""
        return {name: flat[start : start + shape.numel()].view(shape) for name, (start, shape) in self.places.items()}
