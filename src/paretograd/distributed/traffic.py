"""What a process sends: every collective of `torch.distributed`, whoever calls it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: For each operation, which argument holds what travels, and how often its bytes do so, times (R - 1) / R, in the best
#: algorithm: a process of R sends that much.
_OPERATIONS: dict[str, tuple[int, int]] = {
    "allreduce_": (0, 2),
    "allreduce_coalesced_": (0, 2),
    "_reduce_scatter_base_": (1, 1),
    "reduce_scatter_": (1, 1),
    "reduce_scatter_tensor_coalesced_": (1, 1),
    "_allgather_base_": (0, 1),
    "allgather_": (0, 1),
    "allgather_coalesced_": (0, 1),
    "allgather_into_tensor_coalesced_": (0, 1),
    "alltoall_base_": (1, 1),
    "alltoall_": (1, 1),
    "broadcast_": (0, 1),
}


@dataclass
class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of collectives within a ``with`` block, of this thread.

    Attributes:
        calls: name of the operation, bytes of its buffer, and number of processes, of every call.
    """

    calls: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            if name in _OPERATIONS:
                size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args[_OPERATIONS[name][0]]))
                self.calls.append((name, size, _group_size(args)))
        return func(*args, **(kwargs or {}))

    @property
    def payload(self) -> int:
        """Bytes of all buffers: of what is reduced, of what is scattered, of what was gathered."""
        return sum(size for _, size, _ in self.calls)

    @property
    def sent(self) -> float:
        """Bytes that this process sends, if each collective takes the least that is possible."""
        return sum(size * _OPERATIONS[name][1] * (count - 1) / count for name, size, count in self.calls)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _group_size(args: Any) -> int:
    for value in args:
        if isinstance(value, torch.ScriptObject):
            group = torch.distributed.ProcessGroup.unbox(value) if _is_group(value) else None
            if group is not None:
                return int(group.size())
    return int(torch.distributed.get_world_size())


def _is_group(value: Any) -> bool:
    return "ProcessGroup" in str(value._type())
