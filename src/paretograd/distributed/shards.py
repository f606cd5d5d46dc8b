"""Parameters of which every process holds a part: `fully_shard`, and the DTensors of tensor parallelism.

Each loss gets its own backward pass through torch's engine, which averages over the processes as in plain training and
leaves each of them its shard of the row. So rows are never whole, the Gramian is a sum of products of shards, and the
direction is a sum of shards. Apart from those passes, only the Gramian is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd.graph import Losses
from paretograd.autograd.kept import Vector
from paretograd.autograd.metric import local
from paretograd.autograd.products import rounding
from paretograd.autograd.rows import Rows
from paretograd.distributed.prepare import Work
from paretograd.errors import ParameterError

#: The tensors at which a backward pass starts, and the gradients to start with.
Start = tuple[Sequence[Tensor], Sequence[Tensor]]

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
        """Differentiate, unless that was done before."""
        self._ranks, self._groups, self._own, self._m = work.layout.ranks, work.groups, work.own, work.m
        self._reached, self._keep, self._metric = work.reached, work.call.keep_rows, work.call.metric
        self.eps = rounding(map(local, work.common))
        sums = work.mine.sums
        if sums is not None:
            sums.average()
            self._rows = self._own_rows = sums.rows
            self._find_heads(work)
            return
        self._rows, self._own_rows = Rows(self._m, self._ranks.device), Rows(self._m, self._ranks.device)
        alone = {id(param) for param in work.own}
        for k, pairs in shard_gradients(work):
            for param, grad in pairs:
                if id(param) in alone:
                    self._own_rows.give(param, 0, grad)
                if id(param) not in alone or self._keep:
                    self._rows.give(param, k, grad)
        self._find_heads(work)

    def _find_heads(self, work: Work) -> None:
        """Give the parameters of a compiled model that only one loss reaches the gradient of that loss."""
        heads = work.find_heads(self._nonzero_rows)
        self._groups, self._own = work.groups, work.own
        for param in [param for param in self._own if id(param) in heads and self._own_rows is not self._rows]:
            row = self._rows.row(param, heads[id(param)])
            if row is not None:
                self._own_rows.give(param, 0, row)

    def _nonzero_rows(self, params: Sequence[Tensor]) -> Tensor:
        found = torch.zeros(len(params), self._m, dtype=torch.int64, device=self._ranks.device)
        for each, param in zip(found, params, strict=True):
            each[self._rows.nonzero_losses(param)] = 1
        return found

    def gramians(self, exact: bool) -> Tensor:
        """Return the part of this process's shards in the Gramian of each group, shape ``(groups, m, m)``, float64."""
        total = torch.zeros(len(self._groups), self._m, self._m, dtype=torch.float64, device=self._ranks.device)
        for part, params in zip(total, self._groups, strict=True):
            for copies, alike in self._by_copies(params):
                part += self._rows.gramian(alike, exact=exact, metric=self._metric).to(part.device) / copies
        if self._own_rows.not_finite(self._own):
            total.fill_(torch.nan)
        return total

    def _by_copies(self, params: Iterable[Tensor]) -> Iterable[tuple[int, list[Tensor]]]:
        """Group parameters by the number of processes that hold the same part of them."""
        kinds: dict[int, list[Tensor]] = {}
        for param in params:
            kinds.setdefault(_copies(param, self._ranks.size), []).append(param)
        return kinds.items()

    def measure(self, vectors: Sequence[Vector], exact: bool) -> Tensor:
        """Return this process's part of the products of all rows and vectors, as `Rows.measure` does."""
        size = self._m + len(vectors)
        total = torch.zeros(size, size, dtype=torch.float64, device=self._ranks.device)
        for copies, alike in self._by_copies([*(param for group in self._groups for param in group), *self._own]):
            total += self._rows.measure(alike, vectors, exact=exact).to(total.device) / copies
        return total

    def combine_all(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with this process's part of ``sum_k w_k g_k``, from rows that are kept."""
        params = [*(param for group in self._groups for param in group), *self._own]
        return [(param, part.to(local(param))) for param, part in self._rows.combine(params, weights, keep=True)]

    def bad_losses(self) -> list[int]:
        """Return the losses whose rows have non-finite shards on this process."""
        bad = set(self._rows.not_finite([param for params in self._groups for param in params]))
        for param in self._own:
            if self._own_rows.not_finite([param]):
                bad |= {k for k in range(self._m) if self._reached[id(param)] >> k & 1}
        return sorted(bad)

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with this process's shard of its gradient."""
        ones = torch.ones(self._m, dtype=torch.float64, device="cpu")
        found = []
        for params, w in zip(self._groups, weights, strict=True):
            found += self._rows.combine(params, w, keep=self._keep)
        found += self._own_rows.combine(self._own, ones)
        return as_grads(found)

    def release(self) -> None:
        """Do nothing: the last pass freed the graph."""


def shard_gradients(work: Work) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """Yield the number of each loss, and the parameters that it reaches with the shards of their gradients."""
    chosen = work.chosen
    for number, pairs in _passes(work, [_start(work.losses, k, float(work.scales[k])) for k in chosen]):
        yield chosen[number], pairs


def shard_sum(work: Work, start: Start) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters with the shards of their gradients, from one pass that starts at several losses."""
    ((_, pairs),) = _passes(work, [start])
    return pairs


def as_grads(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Turn shards into gradients, in the dtype and with the placements of the parameters."""
    return [(param, _like(part.to(local(param)), param)) for param, part in pairs]


def _passes(work: Work, starts: Sequence[Start]) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """Yield the number of each pass, and the parameters that it reaches with the shards of their gradients."""
    params, records = [*work.common, *work.own], work.layout.records.values()
    touched = [*params, *work.graph.leaves, *(record.shard for record in records)]
    with _set_aside(touched), _synchronised(records):
        for k, (outputs, seeds) in enumerate(starts):
            last = k == len(starts) - 1
            for tensor in touched:
                tensor.grad = None
            with _gathered(records, last, len(starts) >= _MANY * work.layout.ranks.size):
                torch.autograd.backward(outputs, seeds, retain_graph=work.call.retain_graph or not last)
            yield k, _taken(params)


def _taken(params: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return parameters with the shards of their gradients, and remove these from ``.grad``."""
    found = []
    for param in params:
        if param.grad is not None:
            found.append((param, local(_as_placed(param.grad, param))))
            param.grad = None
    return found


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


def _start(losses: Losses, k: int, scale: float) -> Start:
    """Return the tensor at which the backward pass of one loss starts, and the gradient to start with."""
    if not isinstance(losses, Tensor):
        return [losses[k]], [torch.full_like(losses[k], scale)]
    seed = torch.zeros_like(losses)
    seed[k] = scale
    return [losses], [seed]


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
