"""`Traffic`: a counter of the bytes that a process sends in collectives of `torch.distributed`, whoever calls them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: For each operation, the index of the argument that is sent (None for the result), and how often its bytes are sent:
#: with the best algorithm each of R processes sends that many times (R - 1) / R.
_OPERATIONS: dict[str, tuple[int | None, int]] = {
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
    # Functional collectives, which DTensors use, among others.
    "all_reduce": (0, 2),
    "all_reduce_": (0, 2),
    "all_reduce_coalesced": (0, 2),
    "all_reduce_coalesced_": (0, 2),
    "reduce_scatter_tensor": (0, 1),
    "reduce_scatter_tensor_coalesced": (0, 1),
    "all_gather_into_tensor": (None, 1),
    "all_gather_into_tensor_out": (None, 1),
    "all_gather_into_tensor_coalesced": (None, 1),
    "all_to_all_single": (0, 1),
    "broadcast": (0, 1),
}

_NAMESPACES = ("c10d", "_c10d_functional")


@dataclass
class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that counts the bytes of collectives called by this thread.

    Attributes:
        calls: for every call, the name of the operation, the bytes of its buffer, and the number of processes.
    """

    calls: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a DTensor's own rule comes first; what it sends is then counted here
        answer = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace in _NAMESPACES and name in _OPERATIONS:
            place = _OPERATIONS[name][0]
            buffers = _tensors(answer if place is None else args[place])
            self.calls.append((name, sum(each.numel() * each.element_size() for each in buffers), _group_size(args)))
        return answer

    @property
    def payload(self) -> int:
        """Bytes of all buffers that were reduced, scattered or gathered."""
        return sum(size for _, size, _ in self.calls)

    @property
    def sent(self) -> float:
        """Bytes that this process sends if each collective sends as little as possible."""
        return sum(size * _OPERATIONS[name][1] * (count - 1) / count for name, size, count in self.calls)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _group_size(args: Any) -> int:
    if args and isinstance(args[-1], str):  # functional collectives identify their group by name
        return int(torch._C._distributed_c10d._resolve_process_group(args[-1]).size())  # type: ignore[arg-type]
    for value in args:
        if isinstance(value, torch.ScriptObject):
            group = torch.distributed.ProcessGroup.unbox(value) if _is_group(value) else None
            if group is not None:
                return int(group.size())
    return int(torch.distributed.get_world_size())


def _is_group(value: Any) -> bool:
    return "ProcessGroup" in str(value._type())
