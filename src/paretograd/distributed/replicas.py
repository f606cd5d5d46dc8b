"""Parameters that every process holds whole: DistributedDataParallel, and processes with different losses.

Each loss gets a plain backward pass that passes the gradient of each parameter on as soon as it is computed, and stores
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from paretograd.autograd.graph import release, starts_of
from paretograd.autograd.products import rounding
from paretograd.distributed.columns import Columns
from paretograd.distributed.prepare import Work

Answer = TypeVar("Answer")
Start = tuple[Tensor | GradientEdge, Tensor]


class ReplicaRows:
    """The rows of the Jacobian over the parameters of replicas, distributed by columns.

    Attributes:
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
        problem: the error of this process, if any, after which the others went on.
    """

    def __init__(self, work: Work) -> None:
        """Differentiate and send. The graph is retained."""
        self._losses, self._graph, self._scales = work.losses, work.graph, work.scales
        everything, reached = work.common, work.graph.reached_by
        self._own = {id(param) for param in work.own}
        self._params = [param for param in (*everything, *work.own) if id(param) in reached]
        self.eps = rounding(everything)
        self.columns = Columns(work.layout.ranks, work.groups, work.own, work.counts, work.m)
        self.problem: Exception | None = None
        self._differentiate()

    def _differentiate(self) -> None:
        count, columns = len(self._losses), self.columns
        joined = columns.counts is not None  # rows that are not summed are sent all at once
        starts = self._attempt(partial(starts_of, self._losses)) if count else None
        if joined:
            columns.start(0, count)
        for k in range(count):
            if not joined:
                columns.start(k, 1)
            if starts is not None and not columns.failed:
                self._attempt(partial(self._pass, k, starts[k], self._taker(k, joined)))
            if not joined:
                columns.finish()
        if joined:
            columns.finish()
        columns.land()

    def _taker(self, k: int, joined: bool) -> Callable[[Tensor, Tensor], None]:
        """Return a function that passes gradients on. If all are sent at once, the last complete a parameter."""
        scales, last = self._scales[k : k + 1], k + 1 == len(self._losses)

        def take(param: Tensor, grad: Tensor) -> None:
            if id(param) in self._own:
                self.columns.give_own(param, grad, float(scales))
            else:
                self.columns.give(param, grad[None], scales, k if joined else 0, last or not joined)

        return take

    def _pass(self, k: int, start: Start, take: Callable[[Tensor, Tensor], None]) -> None:
        params = [param for param in self._params if self._graph.reached_by[id(param)] >> k & 1]
        if not params:
            return
        handles = [param.register_hook(_hook(param, take)) for param in params]  # type: ignore[no-untyped-call]
        try:
            _gradients(start, params)
        finally:
            for handle in handles:
                handle.remove()

    def _attempt(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the result of a call; None if it fails, of which the others are told later.

        This process then sends NaN: the others still wait for the agreed number of messages, and will notice.
        """
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # the others must not wait in vain, whatever the error
            self.columns.failed, self.problem = True, error
            return None

    def gramians(self, exact: bool) -> Tensor:
        """Return this process's part of the Gramian of each group; NaN if something went wrong."""
        total = self.columns.gramians(exact)
        if self.problem is not None or not self.columns.own_finite():
            total.fill_(torch.nan)
        return total

    def bad_losses(self) -> list[int]:
        """Return the losses of this process whose own gradients are not finite."""
        bad = []
        for k, start in enumerate(starts_of(self._losses) if len(self._losses) else ()):
            params = [param for param in self._params if self._graph.reached_by[id(param)] >> k & 1]
            grads = _gradients(start, params) if params else ()
            if not all(grad is None or bool(torch.isfinite(_dense(grad)).all()) for grad in grads):
                bad.append(k)
        return bad

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient, identical on all processes."""
        return self.columns.combine(weights)

    def release(self) -> None:
        """Free the graph."""
        release(self._graph.nodes)


def _gradients(start: Start, params: Sequence[Tensor]) -> Sequence[Tensor | None]:
    output, seed = start
    return torch.autograd.grad([output], params, [seed], retain_graph=True, allow_unused=True)  # type: ignore[arg-type]


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _hook(param: Tensor, take: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor | None], Tensor | None]:
    def hook(grad: Tensor | None) -> Tensor | None:
        if grad is None:  # in the graph, but without a gradient
            return None
        values = _dense(grad)
        take(param, values)
        return None if grad.is_sparse else values.new_zeros(()).expand(values.shape)  # in its place; takes no memory

    return hook
