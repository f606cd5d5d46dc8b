"""Parameters that every process holds whole: DistributedDataParallel, and processes with different losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from paretograd.autograd.choice import is_private
from paretograd.autograd.engine import present
from paretograd.autograd.products import rounding
from paretograd.autograd.rows import dense, not_finite, release, weighted_gradients
from paretograd.autograd.source import Source, at_losses, below_heads
from paretograd.distributed.buckets import BUCKET
from paretograd.distributed.columns import Columns
from paretograd.distributed.prepare import Work
from paretograd.distributed.stream import Taker, stream

Answer = TypeVar("Answer")


class ReplicaRows:
    """The rows of the Jacobian over the parameters of replicas, distributed by columns.

    Attributes:
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
        problem: the error of this process, if any, after which the others went on.
        unbatchable: True if the batched pass failed, so that the losses should be tried one by one.
    """

    def __init__(self, work: Work, chunk: int | None, batched: bool) -> None:
        """Differentiate and send.

        Args:
            work: the work of this process; its graph is retained.
            chunk: number of losses to differentiate at a time.
            batched: True if passes may be batched.
        """
        losses, graph, ranks = work.losses, work.graph, work.layout.ranks
        self._losses, self._graph, self._scales = losses, graph, work.scales
        everything = [param for group in work.groups for param in group]
        self._mine = [param for param in everything if id(param) in graph.reached_by]
        self._own = [param for param in work.own if id(param) in graph.reached_by]
        self.eps = max((rounding(param) for param in everything), default=2e-16)
        self.columns = Columns(ranks, work.groups, work.own, work.counts, work.m)
        self.problem: Exception | None = None
        self.unbatchable = False
        total, largest = sum(p.numel() for p in everything), max((p.numel() for p in everything), default=1)
        rows = _rows_at_a_time(work.m, total, largest, ranks.size) if chunk is None else chunk
        self._differentiate(rows if work.counts is None else chunk or len(losses), batched)

    def _differentiate(self, rows: int, batched: bool) -> None:
        count, columns = len(self._losses), self.columns
        joined = columns.counts is not None  # rows that are not summed are sent all at once
        rows = rows if batched else 1
        source = self._attempt(self._start) if count else None
        if joined:
            columns.start(0, count)
        for first in range(0, count, max(rows, 1)):
            size = min(rows, count - first)
            if not joined:
                columns.start(first, size)
            if source is not None and self._mine and not columns.failed:
                take = self._taker(first, size, joined)
                self._attempt(partial(stream, source, self._mine, take, first, size, batched=size > 1), size > 1)
            if not joined:
                columns.finish()
        if joined:
            columns.finish()
        columns.land()

    def _taker(self, first: int, size: int, joined: bool) -> Taker:
        """Return a function that passes rows and factors on. If all are sent at once, the last complete a parameter."""
        scales, last = self._scales[first : first + size], first + size == len(self._losses)

        def take(param: Tensor, found: Tensor) -> None:
            self.columns.give(param, found, scales, first if joined else 0, last or not joined)

        return take

    def _attempt(self, call: Callable[[], Answer], batched: bool = False) -> Answer | None:
        """Return the result of a call; None if it fails, of which the others are told later."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # the others must not wait in vain, whatever the error
            self._fail(error)
            self.unbatchable = batched and isinstance(error, RuntimeError)
            return None

    def _fail(self, error: Exception) -> None:
        """Send NaN from now on: the others still wait for the agreed number of messages, and will notice."""
        self.columns.failed, self.problem = True, error

    def _start(self) -> Source:
        """Return the start of the passes, and give the gradients of parameters that are not aggregated."""
        losses, graph, reached = self._losses, self._graph, self._graph.reached_by
        private = [param for param in self._own if is_private(param, reached)]
        above = any(is_private(param, reached) for param in self._mine)
        heads = None if above else below_heads(losses, graph, private)
        rest = self._own
        if heads is not None:
            for param, grad in present(private, heads[1]):
                loss = reached[id(param)].bit_length() - 1
                self.columns.give_own(param, dense(grad), float(self._scales[loss]))
            rest = [param for param in self._own if not is_private(param, reached)]
        if rest:
            for param, grad in present(rest, weighted_gradients(losses, rest, self._scales)):
                self.columns.give_own(param, dense(grad), 1.0)
        return at_losses(losses) if heads is None else heads[0]

    def gramians(self, exact: bool) -> Tensor:
        """Return this process's part of the Gramian of each group; NaN if something went wrong."""
        total = self.columns.gramians(exact)
        if self.problem is not None or not self.columns.own_finite():
            total.fill_(torch.nan)
        return total

    def bad_losses(self) -> list[int]:
        """Return the losses of this process whose own gradients are not finite."""
        params = [*self._mine, *self._own]
        return not_finite(self._losses, params) if params and len(self._losses) else []

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient, identical on all processes."""
        return self.columns.combine(weights)

    def release(self) -> None:
        """Free the graph."""
        release(self._graph.nodes)


def _rows_at_a_time(m: int, total: int, largest: int, size: int) -> int:
    """Return the number of losses to differentiate at a time, such that temporary memory stays small.

    The rows of a parameter exist up to three times: as computed, as sent, and as received. They take at most 3/16 of
    the memory that is kept, ``m n / R``. On the CPU, fewer rows at a time are also faster.
    """
    if m * total * 8 <= BUCKET:
        return m
    return max(1, min(m, m * total // (16 * size * max(largest, 1))))
