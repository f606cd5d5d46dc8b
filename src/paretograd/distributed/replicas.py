"""Parameters that every process holds whole: DistributedDataParallel, and processes with different losses.

Each loss gets a plain backward pass that passes the gradient of each parameter on as soon as it is computed, and stores
none. Rows that were added up over micro-batches are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from paretograd.autograd.graph import release, starts_of
from paretograd.autograd.kept import Vector
from paretograd.autograd.products import rounding
from paretograd.autograd.rows import Rows
from paretograd.autograd.sums import Sums
from paretograd.distributed.columns import Columns
from paretograd.distributed.prepare import Work

Start = tuple[Tensor | GradientEdge, Tensor]
Take = Callable[[Tensor, Tensor], None]


class ReplicaRows:
    """The rows of the Jacobian over the parameters of replicas, distributed by columns.

    Attributes:
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
        problem: the error of this process, if any, after which the others went on.
    """

    def __init__(self, work: Work) -> None:
        """Differentiate, unless that was done before, and send. The graph is retained."""
        self._m, self._scales = work.mine.m, work.scales
        self._metric, keep = work.call.metric, work.call.keep_rows
        self._own = set() if keep else {id(param) for param in work.own}
        self.eps = rounding(work.common)
        self.columns = Columns(work.layout.ranks, work.groups, work.own, work.counts, work.m, keep)
        self.problem: Exception | None = None
        params = [param for param in (*work.common, *work.own) if id(param) in work.mine.reached]
        self._source = _Passes(work, params) if work.mine.sums is None else _Added(work.mine.sums, params)
        self._send()
        self.columns.set_apart(work.find_heads(self.columns.nonzero_rows))

    def _send(self) -> None:
        columns = self.columns
        joined = columns.counts is not None  # rows that are not summed are sent all at once
        if joined:
            columns.start(0, self._m)
        for k in range(self._m):
            if not joined:
                columns.start(k, 1)
            if not columns.failed:
                self._attempt(k, joined)
            if not joined:
                columns.finish()
        if joined:
            columns.finish()
        columns.land()

    def _attempt(self, k: int, joined: bool) -> None:
        """Give a row to the columns. If it fails, the others are told later.

        This process then sends NaN: the others still wait for the agreed number of messages, and will notice.
        """
        try:
            self._source.give(k, self._taker(k, joined))
        except Exception as error:  # noqa: BLE001  # the others must not wait in vain, whatever the error
            self.columns.failed, self.problem = True, error

    def _taker(self, k: int, joined: bool) -> Take:
        """Return a function that passes gradients on. If all are sent at once, the last complete a parameter."""
        scales, last = self._scales[k : k + 1], k + 1 == self._m

        def take(param: Tensor, grad: Tensor) -> None:
            if id(param) in self._own:
                self.columns.give_own(param, grad, float(scales))
            else:
                self.columns.give(param, grad[None], scales, k if joined else 0, last or not joined)

        return take

    def gramians(self, exact: bool) -> Tensor:
        """Return this process's part of the Gramian of each group; NaN if something went wrong."""
        total = self.columns.gramians(exact, self._metric)
        if self.problem is not None or not self.columns.own_finite():
            total.fill_(torch.nan)
        return total

    def bad_losses(self) -> list[int]:
        """Return the losses of this process whose own gradients are not finite."""
        return self._source.bad_losses()

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient, identical on all processes."""
        return self.columns.combine(weights)

    def measure(self, vectors: Sequence[Vector], exact: bool) -> Tensor:
        """Return this process's part of the products of all rows and vectors."""
        return self.columns.measure(vectors, exact)

    def combine_all(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with ``sum_k w_k g_k``, whether aggregated or not, from rows that are kept."""
        return self.columns.combine_all(weights)

    def release(self) -> None:
        """Free the graph."""
        self._source.release()


class _Passes:
    """Backward passes, which give each gradient as soon as it is computed."""

    def __init__(self, work: Work, params: Sequence[Tensor]) -> None:
        self._losses, self._graph, self._params = work.losses, work.graph, params
        self._chosen = frozenset(work.chosen)

    @cached_property
    def _starts(self) -> Sequence[Start]:
        return starts_of(self._losses)

    def _reached(self, k: int) -> list[Tensor]:
        if k not in self._chosen:
            return []
        return [param for param in self._params if self._graph.reached_by[id(param)] >> k & 1]

    def give(self, k: int, take: Take) -> None:
        """Differentiate loss k."""
        params = self._reached(k)
        if not params:
            return
        output, seed = self._starts[k]
        pass_on([output], [seed], params, take)

    def bad_losses(self) -> list[int]:
        bad = []
        for k in range(len(self._losses)):
            params = self._reached(k)
            grads = _gradients(self._starts[k], params) if params else ()
            if not all(grad is None or bool(torch.isfinite(_dense(grad)).all()) for grad in grads):
                bad.append(k)
        return bad

    def release(self) -> None:
        release(self._graph.nodes)


class _Added:
    """Rows that were added up over micro-batches."""

    def __init__(self, sums: Sums, params: Sequence[Tensor]) -> None:
        self._sums, self._params = sums, params

    @cached_property
    def _rows(self) -> Rows:
        self._sums.average()
        return self._sums.rows

    def give(self, k: int, take: Take) -> None:
        """Give the row of loss k, in the order of a backward pass."""
        for param in reversed(self._params):
            row = self._rows.row(param, k)
            if row is not None:
                take(param, _dense(row))

    def bad_losses(self) -> list[int]:
        return self._rows.not_finite(self._params)

    def release(self) -> None:
        """Do nothing: each micro-batch freed its graph."""


def pass_on(
    outputs: Sequence[Tensor | GradientEdge], seeds: Sequence[Tensor], params: Sequence[Tensor], take: Take
) -> None:
    """Run a backward pass, and give each gradient as soon as it is computed. The graph is retained."""
    handles = [param.register_hook(_hook(param, take)) for param in params]  # type: ignore[no-untyped-call]
    try:
        torch.autograd.grad(outputs, params, seeds, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    finally:
        for handle in handles:
            handle.remove()


def _gradients(start: Start, params: Sequence[Tensor]) -> Sequence[Tensor | None]:
    output, seed = start
    return torch.autograd.grad([output], params, [seed], retain_graph=True, allow_unused=True)  # type: ignore[arg-type]


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _hook(param: Tensor, take: Take) -> Callable[[Tensor | None], Tensor | None]:
    def hook(grad: Tensor | None) -> Tensor | None:
        if grad is None:  # in the graph, but without a gradient
            return None
        values = _dense(grad)
        take(param, values)
        return None if grad.is_sparse else values.new_zeros(()).expand(values.shape)  # in its place; takes no memory

    return hook
