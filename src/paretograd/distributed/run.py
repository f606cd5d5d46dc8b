"""`backward`, `gramian` and `accumulate` on several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.rows import RowAggregator
from paretograd.autograd.backward import accumulate, set_aside
from paretograd.autograd.by_rows import KeptSource, aggregate_rows
from paretograd.autograd.call import Call, Plan
from paretograd.autograd.kept import Kept, Vector
from paretograd.autograd.step import How, Step
from paretograd.autograd.sums import Gradients, Sums
from paretograd.autograd.ways import Pairs
from paretograd.distributed.agreement import raise_together, remember
from paretograd.distributed.prepare import Work, is_sharded, prepare
from paretograd.distributed.replicas import ReplicaRows
from paretograd.distributed.scalarized import losses_of_all, scalarized_gradients
from paretograd.distributed.settle import check_counts
from paretograd.distributed.shards import ShardRows, shard_gradients
from paretograd.errors import NonFiniteGradientError
from paretograd.geometry.gramian import Array, as_array, out_of_range

Rows = ReplicaRows | ShardRows


def backward(call: Call) -> Step | None:
    """Run `paretograd.backward` on several processes; None if the call concerns this process alone."""
    work = prepare(call)
    if work is None:
        return None
    if call.scalarizes:
        with _undisturbed(work), set_aside(call.aggregator.parameters()):
            pairs, step = scalarized_gradients(work)
        with torch.no_grad():
            accumulate(pairs, call.adds)
        return step
    return _step(work, "several processes share the model, and each holds a part of the rows")


def step(call: Call, sums: Sums, problem: Exception | None) -> Step | None:
    """Run `Accumulation.step` on several processes; None if the call concerns this process alone."""
    work = prepare(call, sums, problem)
    return None if work is None else _step(work, f"rows of {sums.count} micro-batches were added on this process")


def shards(call: Call, sure: bool) -> tuple[Plan, Gradients, list[int] | None] | None:
    """Differentiate a micro-batch if the parameters are sharded, else return None without communication."""
    work = prepare(call) if sure or is_sharded(call) else None
    if work is None:
        return None
    with _undisturbed(work):
        return work, list(shard_gradients(work)), work.samples


def gramian(call: Call) -> Tensor | None:
    """Run `paretograd.gramian` on several processes; None if the call concerns this process alone."""
    work = prepare(call)
    if work is None:
        return None
    with _undisturbed(work):
        try:
            _, gramians = _differentiate(work)
        except _NotFiniteError as found:
            raise NonFiniteGradientError(found.objectives, names=work.call.names) from None
    return gramians.sum(dim=0).to(work.device)


def _step(work: Work, reason: str) -> Step:
    """Differentiate, aggregate and fill in the gradients."""
    call, aggregator = work.call, work.call.aggregator
    kept = None
    with _undisturbed(work):
        try:
            rows, gramians = _differentiate(work)
        except _NotFiniteError as found:
            if call.nonfinite == "raise":
                raise NonFiniteGradientError(found.objectives, names=call.names) from None
            rows = found.rows
            pairs, steps = _plain_sum(work, rows)
        else:
            how = How("jacobian", 1.0, reason)
            if call.keep_rows:
                kept = _KeptRows(work, rows)
            if "losses" in aggregator.needs and work.mine.sums is None:
                aggregator.observe(losses_of_all(work))
            if call.prepare is not None:
                call.prepare(kept)
            if kept is not None and isinstance(aggregator, RowAggregator):
                pairs, one = aggregate_rows(
                    aggregator,
                    KeptSource(kept),
                    gramians[0].to(work.device),
                    lambda w: rows.combine([w]),
                    call.names,
                    how,
                )
                steps = [one]
            else:
                with aggregator.one_step():
                    pairs, steps = _directions(work, rows, gramians, how)
            remember(work.layout.ranks, aggregator)
        if not call.retain_graph:
            rows.release()
    if call.fills:
        with torch.no_grad():
            accumulate(pairs, call.adds)  # last, because nothing can fail from here on
    step = Step.of_groups(steps)
    step.kept = kept
    return step


class _KeptRows(Kept):
    """The rows of several processes."""

    def __init__(self, work: Work, rows: Rows) -> None:
        self.common, self.params = work.common, [*work.common, *work.own]
        self.m, self.eps = work.m, rows.eps
        self._ranks, self._rows = work.layout.ranks, rows

    def _measure(self, vectors: Sequence[Vector], *, exact: bool) -> Array:
        return as_array(self._ranks.sum(self._rows.measure(vectors, exact)))

    def combine(self, weights: Tensor) -> Pairs:
        return self._rows.combine_all(weights)


def _directions(work: Work, rows: Rows, gramians: Tensor, how: How) -> tuple[Pairs, list[Step]]:
    """Apply the rule and return all gradients with their parameters, and a step for each group."""
    rule, names, steps = work.call.aggregator, work.call.names, []
    for gramian in gramians:
        weights = torch.from_numpy(rule._outcome(as_array(gramian), rows.eps).weights).to(work.device)
        steps.append(Step(weights, gramian.to(work.device), rule, eps=rows.eps, names=names, how=how))
    return rows.combine([step.weights for step in steps]), steps


def _plain_sum(work: Work, rows: Rows) -> tuple[Pairs, list[Step]]:
    """Return the gradients of the sum, which contain the non-finite values, and steps without weights."""
    ones = torch.ones(work.m, dtype=torch.float64, device="cpu")
    steps = [Step.unknown(work.m, work.device, work.call.aggregator, work.call.names) for _ in work.groups]
    return rows.combine([ones for _ in work.groups]), steps


@contextmanager
def _undisturbed(work: Work) -> Iterator[None]:
    """Let no grad mode, autocast or hook of the caller take part in the passes."""
    touched = [*work.graph.leaves, *(record.shard for record in work.layout.records.values())]
    with torch.no_grad(), torch.autocast(work.device.type, enabled=False), set_aside(touched):
        yield


class _NotFiniteError(Exception):
    """Rows that hold NaN or infinity."""

    def __init__(self, rows: Rows, objectives: list[int]) -> None:
        super().__init__()
        self.rows, self.objectives = rows, objectives


def _differentiate(work: Work) -> tuple[Rows, Tensor]:
    """Return the rows, and the Gramians of all groups, which are identical on every process."""
    check_counts(work.call, work.samples)
    rows: Rows = ShardRows(work) if work.layout.kind == "sharded" else ReplicaRows(work)
    total = _summed(work, rows, exact=False)
    if not np.isfinite(as_array(total)).all():
        raise_together(work.layout.ranks, rows.problem)
    if out_of_range(as_array(total), rows.eps) is not None:
        total = _summed(work, rows, exact=True)
    if not np.isfinite(as_array(total)).all():
        raise _NotFiniteError(rows, _at_fault(work, rows, total))
    return rows, total


def _summed(work: Work, rows: Rows, exact: bool) -> Tensor:
    """Return the Gramians summed over processes. Only the upper halves are sent, since they are symmetric."""
    parts = rows.gramians(exact)
    upper = torch.triu_indices(work.m, work.m, device=parts.device)
    halves = (0.5 * (parts + parts.mT))[:, upper[0], upper[1]]
    total = work.layout.ranks.sum(halves)
    whole = torch.zeros_like(parts)
    whole[:, upper[0], upper[1]] = total
    whole[:, upper[1], upper[0]] = total
    return whole


def _at_fault(work: Work, rows: Rows, gramians: Tensor) -> list[int]:
    """Return the objectives whose gradients are not finite on at least one process."""
    told: list[list[int]] = work.layout.ranks.gather(rows.bad_losses())
    first, bad = 0, set()
    for number, each in enumerate(told):
        bad |= {first + k for k in each}
        first += work.counts[number] if work.counts is not None else 0
    if bad:
        return sorted(bad)
    fine = torch.isfinite(gramians).diagonal(dim1=1, dim2=2).all(dim=0)
    return (~fine).nonzero().flatten().tolist()
