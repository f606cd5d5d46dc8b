"""Parameters of which every process holds a part: `fully_shard`, and the DTensors of tensor parallelism.

Each loss gets its own backward pass through torch's engine, which averages over the processes as in plain training and
leaves each of them its shard of the row. So rows are never whole, the Gramian is a sum of products of shards, and the
direction is a sum of shards. Apart from those passes, only the Gramian is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd.graph import Losses
from paretograd.autograd.products import combination, rounding, row_gramian
from paretograd.distributed.prepare import Work
from paretograd.errors import ParameterError

#: With at least this many losses per process, rows take so much more memory than whole parameters that these are
#: gathered once for all passes.
_MANY = 4


class ShardRows:
    """The rows of the Jacobian, of which every process holds its shards.

    Attributes:
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
        problem: always None, because failures within torch's own communication cannot be told to the others.
    """

    problem: Exception | None = None

    def __init__(self, work: Work) -> None:
        """Differentiate."""
        retain_graph = work.call.retain_graph
        self._ranks, self._groups, self._own, self._m = work.layout.ranks, work.groups, work.own, work.m
        self._reached, self._alone = work.reached, {id(param) for param in work.own}
        every = work.common
        self._params = [*every, *work.own]
        self.eps = rounding(map(local, every))
        self._rows: dict[int, Tensor] = {}
        records = work.layout.records.values()
        touched = [*self._params, *work.graph.leaves, *(record.shard for record in records)]
        with _set_aside(touched), _synchronised(records):
            for k in range(self._m):
                last = k == self._m - 1
                for tensor in touched:
                    tensor.grad = None
                with _gathered(records, last, self._m >= _MANY * self._ranks.size):
                    _backward(work.losses, k, float(work.scales[k]), retain_graph or not last)
                self._take(k)

    def _take(self, k: int) -> None:
        """Keep the shards of row k."""
        for param in self._params:
            if param.grad is None:
                continue
            grad = local(_as_placed(param.grad, param))
            param.grad = None
            if id(param) not in self._rows:
                rows = 1 if id(param) in self._alone else self._m
                self._rows[id(param)] = grad.new_zeros(rows, *grad.shape)
            if id(param) in self._alone:
                self._rows[id(param)] += grad
            else:
                self._rows[id(param)][k] = grad

    def gramians(self, exact: bool) -> Tensor:
        """Return the part of this process's shards in the Gramian of each group, shape ``(groups, m, m)``, float64."""
        total = torch.zeros(len(self._groups), self._m, self._m, dtype=torch.float64, device=self._ranks.device)
        for part, params in zip(total, self._groups, strict=True):
            for param in params:
                rows = self._rows.get(id(param))
                if rows is not None:
                    products = row_gramian(rows.double() if exact else rows)
                    part += products.to(part.device) / _copies(param, self._ranks.size)
        if any(not self._is_finite(param) for param in self._own):
            total.fill_(torch.nan)
        return total

    def _is_finite(self, param: Tensor) -> bool:
        rows = self._rows.get(id(param))
        return rows is None or bool(torch.isfinite(rows).all())

    def bad_losses(self) -> list[int]:
        """Return the losses whose rows have non-finite shards on this process."""
        bad = set()
        for params in self._groups:
            for rows in (self._rows[id(param)] for param in params if id(param) in self._rows):
                bad |= set((~torch.isfinite(rows.flatten(1)).all(dim=1)).nonzero().flatten().tolist())
        for param in self._own:
            if not self._is_finite(param):
                bad |= {k for k in range(self._m) if self._reached[id(param)] >> k & 1}
        return sorted(bad)

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with this process's shard of its gradient."""
        found = []
        one = torch.ones(1, dtype=torch.float64, device="cpu")
        jobs = [(param, w) for params, w in zip(self._groups, weights, strict=True) for param in params]
        for param, w in [*jobs, *((param, one) for param in self._own)]:
            rows = self._rows.pop(id(param), None)
            if rows is not None:
                found.append((param, _like(combination(w, rows), param)))
        return found

    def release(self) -> None:
        """Do nothing: the last pass freed the graph."""


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a DTensor, or any other tensor unchanged."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def _as_placed(grad: Any, param: Any) -> Tensor:
    """Give a gradient the placements of its parameter. Sums over processes may still be pending in it."""
    if hasattr(grad, "placements") and tuple(grad.placements) != tuple(param.placements):
        grad = grad.redistribute(placements=param.placements)
    return grad  # type: ignore[no-any-return]


def _like(part: Tensor, param: Any) -> Tensor:
    """Return a shard as a DTensor with the placements of the parameter."""
    if not hasattr(param, "placements"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def _copies(param: Any, size: int) -> int:
    """Return the number of processes that hold the same part of a parameter."""
    shards = 1
    if hasattr(param, "placements"):
        for dim, placement in enumerate(param.placements):
            if not placement.is_replicate():
                shards *= param.device_mesh.size(dim)
    return size // shards


def _backward(losses: Losses, k: int, scale: float, retain_graph: bool) -> None:
    """Run the backward pass of one loss, through the hooks of the engine."""
    if isinstance(losses, Tensor):
        seed = torch.zeros_like(losses)
        seed[k] = scale
        torch.autograd.backward([losses], [seed], retain_graph=retain_graph)
    else:
        torch.autograd.backward([losses[k]], [torch.full_like(losses[k], scale)], retain_graph=retain_graph)


@contextmanager
def _set_aside(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the ``.grad`` of every tensor at the end, whatever happens."""
    before = [(tensor, tensor.grad) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, grad in before:
            tensor.grad = grad


@contextmanager
def _gathered(records: Any, last: bool, every: bool) -> Iterator[None]:
    """Keep parameters whole until the last pass if they stay whole between forward and backward passes anyway.

    Others are gathered again in each pass, as `fully_shard` is configured, unless ``every`` is True.
    """
    groups = {id(record.group): record.group for record in records}.values()
    some = [group for group in groups if every or not group._reshard_after_forward]
    kept = [group for group in some if not last and group.reshard_after_backward]
    try:
        for group in kept:
            group.reshard_after_backward = False
        yield
    finally:
        for group in kept:
            group.reshard_after_backward = True


@contextmanager
def _synchronised(records: Any) -> Iterator[None]:
    """Make `fully_shard` average every row and wait for it, even if its own accumulation is on."""
    groups = {id(record.group): record.group for record in records}.values()
    for record in records:
        if record.state.unsharded_accumulated_grad is not None:
            raise ParameterError(
                "a backward pass with set_requires_gradient_sync(False) left gradients that are not averaged yet; run "
                "a pass that averages them first"
            )
    before = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]
    contexts = {id(context): context for context in map(_context, groups)}.values()
    last = [(context, context.is_last_backward) for context in contexts]
    try:
        for group in groups:
            group.reduce_grads = group.all_reduce_grads = True
        for context in contexts:
            context.is_last_backward = True
        yield
    finally:
        for context, was in last:
            context.is_last_backward = was
        for group, reduce, all_reduce in before:
            group.reduce_grads, group.all_reduce_grads = reduce, all_reduce


def _context(group: Any) -> Any:
    """Return the context that all modules under one root share."""
    return group.modules[0]._get_fsdp_state()._state_ctx
