"""Rows of the Jacobian, summed over processes during the backward pass. Each process keeps a slice of the columns.

Parameters are grouped in buckets. As soon as the gradients of a bucket are complete, its rows are sent: each process
gets the sum over all processes, or the rows of all of them, for its slice of the bucket's columns. So a process holds
``m n / R`` numbers and the current bucket, but never its whole Jacobian. Buckets are sent in a fixed order, whatever
the order in which their gradients arrive, so that all processes send the same bucket at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd.kept import Vector
from paretograd.autograd.metric import Metric
from paretograd.autograd.products import row_gramian
from paretograd.distributed.buckets import BUCKET, Bucket, buckets_of
from paretograd.distributed.ranks import Ranks

#: Largest number of bytes in flight at a time, and of buckets of the direction.
_FLYING, _IN_FLIGHT = 2 * BUCKET, 2


class Columns:
    """The rows of some parameters, distributed by columns.

    Attributes:
        m: total number of rows.
        failed: True if this process could not compute its part; from then on it sends NaN.
    """

    def __init__(
        self,
        ranks: Ranks,
        groups: Sequence[Sequence[Tensor]],
        own: Sequence[Tensor],
        counts: Sequence[int] | None,
        m: int,
        keep: bool,
    ) -> None:
        """Plan the buckets.

        Args:
            ranks: the processes.
            groups: parameters to aggregate.
            own: parameters that get one gradient each, which is summed over processes.
            counts: number of rows of each process if the processes have different rows; None if all have the same rows,
                which are summed.
            m: total number of rows.
            keep: keep the rows of all parameters, also those of ``own``, until the parameters were changed.
        """
        self.ranks, self.m, self.counts = ranks, m, counts
        most = 1 if counts is None else max(counts)  # rows of a message; equal on all processes, as the buckets must be
        self.groups = [buckets_of(params, most, ranks) for params in groups]
        self.own = buckets_of(own, most if keep else 1, ranks)
        self._keep = keep
        self._order = [bucket for buckets in self.groups for bucket in buckets] + (self.own if keep else [])
        self._of = {id(param): bucket for bucket in [*self._order, *self.own] for param in bucket.params}
        self._flights: deque[tuple[Any, Tensor]] = deque()
        self.failed = False
        self._joined = counts is not None  # several passes may contribute to a parameter's rows
        self._next, self._first, self._rows = 0, 0, 0

    def start(self, first: int, rows: int) -> None:
        """Begin a pass over ``rows`` rows of this process. Each parameter may then be given once."""
        self._next, self._first, self._rows = 0, first, rows

    def give(self, param: Tensor, rows: Tensor, scales: Tensor | None, row: int = 0, last: bool = True) -> None:
        """Take rows of a parameter, ``(rows, *param)``, and send complete buckets.

        Args:
            param: the parameter.
            rows: its rows.
            scales: one factor per row.
            row: index of the first row within this pass.
            last: True if these are the last rows of this parameter.
        """
        bucket = self._of[id(param)]
        into = bucket.buffer(self._rows, self._joined)[:, row : row + len(rows)]
        bucket.write(param, rows, scales, into)
        if last:
            bucket.missing.discard(id(param))
            self._send_complete()

    def give_own(self, param: Tensor, grad: Tensor, scale: float) -> None:
        """Take the gradient of a parameter that is not aggregated. Repeated gradients are added."""
        scales = None if scale == 1.0 else torch.tensor([scale], dtype=torch.float64, device="cpu")
        bucket = self._of[id(param)]
        bucket.write(param, grad[None], scales, bucket.buffer(1, clear=True), add=True)

    def _send_complete(self) -> None:
        while self._next < len(self._order) and not self._order[self._next].missing:
            self._send(self._order[self._next])
            self._next += 1

    def finish(self) -> None:
        """Send the remaining buckets of a pass, with zeros for parameters that no loss of this process reaches."""
        while self._next < len(self._order):
            self._send(self._order[self._next])
            self._next += 1

    def _send(self, bucket: Bucket) -> None:
        buffer = bucket.take_buffer(self._rows, self._joined)
        if self.failed:
            buffer.fill_(torch.nan)
        if bucket.kept is None:
            bucket.kept = buffer.new_empty(self.m, bucket.width)
        if self.counts is None:
            output = bucket.kept[self._first : self._first + self._rows]
            self._fly(self.ranks.reduce_scatter(output.reshape(-1), buffer.reshape(-1)), buffer)
            return
        received = [count * bucket.width for count in self.counts]
        sent = [self._rows * bucket.width] * self.ranks.size
        self._fly(self.ranks.all_to_all(bucket.kept.reshape(-1), buffer.reshape(-1), received, sent), buffer)

    def _fly(self, work: Any, buffer: Tensor) -> None:
        self._flights.append((work, buffer))
        while self._flights and sum(each.nbytes for _, each in self._flights) > _FLYING:
            self._flights.popleft()[0].wait()

    def land(self) -> None:
        """Send the gradients that are not aggregated, and wait for everything in flight."""
        for bucket in () if self._keep else self.own:
            buffer = bucket.take_buffer(1, clear=True)
            bucket.kept = buffer.new_empty(1, bucket.width)
            self._fly(self.ranks.reduce_scatter(bucket.kept.reshape(-1), buffer.reshape(-1)), buffer)
        while self._flights:
            self._flights.popleft()[0].wait()

    def gramians(self, exact: bool = False, metric: Metric | None = None) -> Tensor:
        """Return the part of this process's columns in the Gramian of each group, shape ``(groups, m, m)``, float64.

        Args:
            exact: multiply in float64.
            metric: the inner product; None for the Euclidean one.
        """
        return torch.stack([self._measure(buckets, metric, (), exact, shared=True) for buckets in self.groups])

    def measure(self, vectors: Sequence[Vector], exact: bool) -> Tensor:
        """Return the part of this process's columns in the products of all rows and vectors, as `Rows.measure` does."""
        return self._measure(self._order, None, vectors, exact)

    def _measure(
        self,
        buckets: Sequence[Bucket],
        metric: Metric | None,
        vectors: Sequence[Vector],
        exact: bool,
        shared: bool = False,
    ) -> Tensor:
        size = self.m + len(vectors)
        total = torch.zeros(size, size, dtype=torch.float64, device=self.ranks.device)
        for bucket in buckets:
            assert bucket.kept is not None
            rows = bucket.shared_rows(self.ranks.rank) if shared else bucket.kept
            rows = rows.double() if exact else rows
            parts = [bucket.slice(vector, self.ranks.rank) for vector in vectors]
            if metric is not None:
                roots = metric.roots(bucket.params)
                assert roots is not None  # `prepare` refuses functions
                known = {id(param): root for param, root in zip(bucket.params, roots, strict=True) if root is not None}
                root = bucket.slice(known, self.ranks.rank, 1.0)
                rows = rows * root
            if parts:
                rows = torch.cat([rows, torch.stack(parts)])
            total += row_gramian(rows).to(total.device)
        return total

    def own_finite(self) -> bool:
        """Return True if this process's slices of the gradients that are not aggregated are finite."""
        fine = torch.ones((), dtype=torch.bool, device=self.ranks.device)
        for bucket in self.own:
            assert bucket.kept is not None
            fine &= torch.isfinite(bucket.kept).all().to(fine.device)
        for bucket in self._order:
            for param in bucket.params if bucket.heads else ():
                if id(param) in bucket.heads:
                    fine &= torch.isfinite(self._rows_of(param)).all().to(fine.device)
        return bool(fine)

    def _rows_of(self, param: Tensor) -> Tensor:
        """Return this process's columns of the rows of a parameter."""
        bucket = self._of[id(param)]
        assert bucket.kept is not None
        start, stop = bucket.columns(param, self.ranks.rank)
        return bucket.kept[:, start:stop]

    def nonzero_rows(self, params: Sequence[Tensor]) -> Tensor:
        """Return 1 where this process's columns of the rows of a parameter are not zero, shape ``(params, m)``."""
        found = torch.zeros(len(params), self.m, dtype=torch.int64, device=self.ranks.device)
        for each, param in zip(found, params, strict=True):
            each += self._rows_of(param).any(dim=1).to(each)
        return found

    def set_apart(self, heads: Mapping[int, int]) -> None:
        """Do not aggregate some parameters, by ``id``: each gets the gradient of the loss with the given number."""
        for bucket in self._order:
            bucket.heads = {id(param): heads[id(param)] for param in bucket.params if id(param) in heads}

    def combine(self, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient ``sum_k w_k g_k``, from the slices of all processes.

        The slices are freed, unless they are to be kept.

        Args:
            weights: for each group, shape ``(m,)``.
        """
        jobs = [(bucket, w) for buckets, w in zip(self.groups, weights, strict=True) for bucket in buckets]
        ones = torch.ones(self.m if self._keep else 1, dtype=torch.float64, device="cpu")
        jobs += [(bucket, ones) for bucket in self.own]
        return self._combine(jobs, lambda bucket, w: bucket.combination(w, self.ranks.rank))

    def combine_all(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with ``sum_k w_k g_k``, also those of ``own``, from rows that are kept."""
        return self._combine([(bucket, weights) for bucket in self._order], Bucket.whole_combination)

    def _combine(
        self, jobs: Sequence[tuple[Bucket, Tensor]], combined: Callable[[Bucket, Tensor], Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = []
        flights: deque[tuple[Any, Bucket, Tensor, Tensor]] = deque()

        def land() -> None:
            work, bucket, whole, _ = flights.popleft()
            work.wait()
            found.extend(bucket.unpack(whole))

        for bucket, w in jobs:
            part = combined(bucket, w)
            if not self._keep:
                bucket.kept = None
            whole = part.new_empty(self.ranks.size * bucket.width)
            flights.append((self.ranks.all_gather(whole, part), bucket, whole, part))
            if len(flights) > _IN_FLIGHT:
                land()
        while flights:
            land()
        return found
