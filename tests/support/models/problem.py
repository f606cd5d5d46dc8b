"""What a model of `MODELS` is, and the parts that models are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Losses = list[Tensor] | dict[str, Tensor] | Tensor


class Problem(NamedTuple):
    """Parameters, and the losses that reach them.

    Attributes:
        params: those that an optimizer would hold, frozen and unused ones included.
        losses: computes m >= 3 losses, each time on a new graph.
    """

    params: list[Tensor]
    losses: Callable[[], Losses]


MODELS: dict[str, Callable[[], Problem]] = {}


def model(build: Callable[[], Problem]) -> Callable[[], Problem]:
    """Add a builder to the table; it runs under a seed and in float64, whatever was set before."""

    def seeded() -> Problem:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(20240506)
                return build()
        finally:
            torch.set_default_dtype(before)

    MODELS[build.__name__] = seeded
    return seeded


def three(y: Tensor) -> list[Tensor]:
    """Three losses of one output that pull in different directions."""
    return [y.square().mean(), (y - 1.0).abs().mean(), -y.sin().mean()]


def plain(module: nn.Module, *inputs: Any) -> Problem:
    """A module whose output meets three losses."""
    return Problem(list(module.parameters()), lambda: three(module(*inputs)))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def randn(*shape: int) -> Tensor:
    return torch.randn(shape)


def all_params(*modules: nn.Module) -> list[Tensor]:
    return [p for module in modules for p in module.parameters()]
