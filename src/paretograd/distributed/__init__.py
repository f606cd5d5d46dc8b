"""Several processes with one model: `paretograd.backward` and `paretograd.gramian` on `torch.distributed`.

Importing this registers what those two hand over to once `torch.distributed` is initialised; the rest is imported then.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paretograd.autograd import processes
from paretograd.autograd.step import Step

__all__ = ["Traffic"]


class _Lazy:
    """Imports the rest of this package at the first call."""

    def backward(self, call: processes.Call) -> Step | None:
        from paretograd.distributed.run import backward

        return backward(call)

    def gramian(self, call: processes.Call) -> Tensor | None:
        from paretograd.distributed.run import gramian

        return gramian(call)


def __getattr__(name: str) -> Any:
    if name == "Traffic":
        from paretograd.distributed.traffic import Traffic

        return Traffic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


processes.register(_Lazy())
