"""`backward`, `gramian` and `accumulate` for several processes that share a model, on `torch.distributed`.

Importing this package registers the handler for these functions, and a hook that takes note of new DDP modules. The
rest is imported at the first call after `torch.distributed` is initialised.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from paretograd.autograd.call import Call, Plan
from paretograd.autograd.entry import register
from paretograd.autograd.step import Step
from paretograd.autograd.sums import Gradients, Sums

__all__ = ["Traffic"]


class _Lazy:
    """Handler that imports the rest of this package at the first call."""

    def backward(self, call: Call) -> Step | None:
        from paretograd.distributed.run import backward

        return backward(call)

    def gramian(self, call: Call) -> Tensor | None:
        from paretograd.distributed.run import gramian

        return gramian(call)

    def shards(self, call: Call, sure: bool) -> tuple[Plan, Gradients, list[int] | None] | None:
        from paretograd.distributed.run import shards

        return shards(call, sure)

    def step(self, call: Call, sums: Sums, problem: Exception | None) -> Step | None:
        from paretograd.distributed.run import step

        return step(call, sums, problem)


def __getattr__(name: str) -> Any:
    if name == "Traffic":
        from paretograd.distributed.traffic import Traffic

        return Traffic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _note(module: nn.Module, _name: str, _submodule: nn.Module | None) -> None:
    """Remember a DDP module when it gets the module that it wraps. See `paretograd.distributed.wrappers`."""
    if isinstance(module, DistributedDataParallel):
        from paretograd.distributed.wrappers import note

        note(module)


register(_Lazy())
register_module_module_registration_hook(_note)
