"""The table of architectures, and the precision in which they are built and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from support.models import Losses, Problem
from torch import Tensor
from torch.overrides import TorchFunctionMode

ARCHITECTURES: dict[str, Callable[[], Problem]] = {}


class InFloat64(TorchFunctionMode):
    """Compute in float64 what a library asks to be computed in float32: norms, softmaxes and losses.

    Two orders of summation agree to 1e-7 in float32, which would hide an error of that size.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        func = Tensor.double if func is Tensor.float else func
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(value: object) -> object:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def _in_float64(seed: int) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(), InFloat64():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(before)


def architecture(build: Callable[[], Problem]) -> Callable[[], Problem]:
    """Add a builder to the table. It runs in float64 and under a seed, and so does each forward pass."""

    def built() -> Problem:
        with _in_float64(seed=20240506), torch.no_grad():
            problem = build()
            for param in problem.params:  # behind weights that are zero at first, there would be no gradient
                param += 0.1 * torch.randn_like(param)

        def losses() -> Losses:
            with _in_float64(seed=7):
                return problem.losses()

        return problem._replace(losses=losses)

    ARCHITECTURES[build.__name__] = built
    return built
