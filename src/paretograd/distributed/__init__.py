"""`paretograd.backward` and `paretograd.gramian` for several processes that share a model, on `torch.distributed`.

Importing this package registers the handler for both functions, and a hook that takes note of new DDP modules. The rest
is imported at the first call after `torch.distributed` is initialised.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from paretograd.autograd.call import Call
from paretograd.autograd.entry import register
from paretograd.autograd.step import Step

__all__ = ["Traffic"]


class _Lazy:
    """Handler that imports the rest of this package at the first call."""

    def backward(self, call: Call) -> Step | None:
        from paretograd.distributed.run import backward

        return backward(call)

    def gramian(self, call: Call) -> Tensor | None:
        from paretograd.distributed.run import gramian

        return gramian(call)


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
