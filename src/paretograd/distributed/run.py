"""`backward` and `gramian` on several processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.backward import accumulate, set_aside
from paretograd.autograd.call import Call
from paretograd.autograd.step import How, Step
from paretograd.distributed.agreement import raise_together, remember
from paretograd.distributed.prepare import Work, prepare
from paretograd.distributed.replicas import ReplicaRows
from paretograd.distributed.shards import ShardRows
from paretograd.errors import NonFiniteGradientError
from paretograd.geometry.gramian import as_array, out_of_range

Rows = ReplicaRows | ShardRows

_HOW = How("jacobian", 1.0, "several processes share the model, and each holds a part of the rows")


def backward(call: Call) -> Step | None:
    """Run `paretograd.backward` on several processes; None if the call concerns this process alone."""
    work = prepare(call)
    if work is None:
        return None
    aggregator, ranks = call.aggregator, work.layout.ranks
    assert aggregator is not None
    with torch.no_grad(), torch.autocast(work.device.type, enabled=False):
        try:
            with set_aside(_touched(work)):
                rows, gramians = _differentiate(work)
        except _NotFiniteError as found:
            if call.nonfinite == "raise":
                raise NonFiniteGradientError(found.objectives, names=work.call.names) from None
            return _propagate(found.rows, work, call)
        with aggregator.one_step():
            steps = []
            for gramian in gramians:
                outcome = aggregator._outcome(as_array(gramian), rows.eps)
                weights = torch.from_numpy(outcome.weights).to(work.device)
                steps.append(
                    Step(weights, gramian.to(work.device), aggregator, eps=rows.eps, names=work.call.names, how=_HOW)
                )
            found_grads = rows.combine([step.weights for step in steps])
        remember(ranks, aggregator)
        _fill(found_grads, rows, call)
    return steps[0] if len(steps) == 1 else Step.of_groups(steps)


def gramian(call: Call) -> Tensor | None:
    """Run `paretograd.gramian` on several processes; None if the call concerns this process alone."""
    work = prepare(call)
    if work is None:
        return None
    with torch.no_grad(), torch.autocast(work.device.type, enabled=False):
        try:
            with set_aside(_touched(work)):
                _, gramians = _differentiate(work)
        except _NotFiniteError as found:
            raise NonFiniteGradientError(found.objectives, names=work.call.names) from None
    return gramians.sum(dim=0).to(work.device)


def _touched(work: Work) -> list[Tensor]:
    """Return the tensors to which passes give gradients."""
    return [*work.graph.leaves, *(record.shard for record in work.layout.records.values())]


class _NotFiniteError(Exception):
    """Rows that hold NaN or infinity."""

    def __init__(self, rows: Rows, objectives: list[int]) -> None:
        super().__init__()
        self.rows, self.objectives = rows, objectives


def _differentiate(work: Work) -> tuple[Rows, Tensor]:
    """Return the rows, and the Gramians of all groups, which are identical on every process."""
    rows: Rows = ShardRows(work) if work.layout.kind == "sharded" else ReplicaRows(work)
    total = _summed(work, rows, exact=False)
    if not np.isfinite(as_array(total)).all():
        raise_together(work.layout.ranks, rows.problem)
    if rows.eps > 1e-15 and out_of_range(as_array(total)) is not None:
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


def _propagate(rows: Rows, work: Work, call: Call) -> Step:
    """Fill in the gradients of the sum, which contain the non-finite values, and return a step without weights."""
    ones = torch.ones(work.m, dtype=torch.float64, device="cpu")
    _fill(rows.combine([ones for _ in work.groups]), rows, call)
    unknown = torch.full((work.m, work.m), torch.nan, dtype=torch.float64, device=work.device)
    assert call.aggregator is not None
    steps = [Step(unknown[0], unknown, call.aggregator, names=work.call.names) for _ in work.groups]
    return steps[0] if len(steps) == 1 else Step.of_groups(steps)


def _fill(found: Sequence[tuple[Tensor, Tensor]], rows: Rows, call: Call) -> None:
    """Write the gradients, once nothing can fail any more."""
    if not call.retain_graph:
        rows.release()
    accumulate(found)
