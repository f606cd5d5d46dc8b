"""`Ranks`: the processes that share a model, and the collectives between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Some versions of torch rename these two.
_REDUCE_SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
_ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


def is_alive(group: Any) -> bool:
    """Return True if a process group contains this process and was not destroyed."""
    try:
        return dist.get_rank(group) >= 0
    except (ValueError, RuntimeError):
        return False


class _Sum:
    """Pending parts from all processes, which ``wait`` adds up."""

    def __init__(self, work: Any, received: Tensor, output: Tensor, size: int) -> None:
        self._work, self._received, self._output, self._size = work, received, output, size

    def wait(self) -> None:
        self._work.wait()
        torch.sum(self._received.reshape(self._size, -1), dim=0, out=self._output)


class Ranks:
    """A set of processes that includes this one.

    Attributes:
        groups: process groups that together connect all of them: one, or one for each dimension of a mesh.
        size: number of processes.
        gpu: the GPU of this process's parameters; None if they are not on a GPU or `see` was not called.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self.groups = list(groups)
        self.size = 1
        self.gpu: torch.device | None = None
        for group in self.groups:
            self.size *= dist.get_world_size(group)

    def see(self, params: Sequence[Tensor]) -> None:
        """Remember the GPU of the parameters, so that nothing is sent from another one."""
        self.gpu = next((param.device for param in params if param.is_cuda), None)

    @classmethod
    def of_mesh(cls, mesh: Any) -> Ranks:
        """Return the processes of a device mesh, in one group if the mesh contains all processes."""
        if mesh.size() == dist.get_world_size():
            return cls([dist.group.WORLD])
        return cls([mesh.get_group(dim) for dim in range(mesh.ndim)])

    @property
    def key(self) -> tuple[int, ...]:
        """Key that identifies the processes within this process."""
        return tuple(id(group) for group in self.groups)

    @property
    def alive(self) -> bool:
        """True if none of the groups was destroyed."""
        return all(map(is_alive, self.groups))

    @property
    def rank(self) -> int:
        """Rank of this process in the first group."""
        return dist.get_rank(self.groups[0])

    @property
    def device(self) -> torch.device:
        """Device from which small tensors are sent: the CPU if all groups have a backend for it."""
        if all(any(device.type == "cpu" for device in group._device_types) for group in self.groups):
            return torch.device("cpu")
        return self.gpu or torch.device("cuda", torch.cuda.current_device())

    def sends_by_gloo(self, device: torch.device) -> bool:
        """Return True if gloo sends tensors on this device. A group may have one backend per type of device."""
        return all(str(group._get_backend(device).name()) == "gloo" for group in self.groups)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, identical on each of them to the last bit."""
        total = values.detach().to(self.device, copy=True)
        for group in self.groups:
            dist.all_reduce(total, group=group)
        return total

    def gather(self, item: Any) -> list[Any]:
        """Return a small object from every process, in rank order; for rare events."""
        found = [item]
        with nullcontext() if self.gpu is None else torch.cuda.device(self.gpu):
            for group in reversed(self.groups):
                parts: list[Any] = [None] * dist.get_world_size(group)
                dist.all_gather_object(parts, found, group=group)
                found = [entry for part in parts for entry in part]
        return found

    def reduce_scatter(self, output: Tensor, values: Tensor) -> Any:
        """Start summing ``values``. Every process gets its part in ``output``."""
        if self.sends_by_gloo(values.device):  # its own reduce-scatter sends twice as much as necessary
            received = torch.empty_like(values)
            work = dist.all_to_all_single(received, values, group=self.groups[0], async_op=True)
            return _Sum(work, received, output, self.size)
        return getattr(dist, _REDUCE_SCATTER)(output, values, group=self.groups[0], async_op=True)

    def all_to_all(self, output: Tensor, values: Tensor, received: list[int], sent: list[int]) -> Any:
        """Start sending each process its part of ``values``."""
        return dist.all_to_all_single(output, values, received, sent, group=self.groups[0], async_op=True)

    def all_gather(self, output: Tensor, part: Tensor) -> Any:
        """Start joining the parts of all processes."""
        return getattr(dist, _ALL_GATHER)(output, part, group=self.groups[0], async_op=True)
