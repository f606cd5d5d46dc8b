"""A rule that sees the losses, on several processes: the same weights everywhere, and gradients summed over all.

The processes first sum one vector: their parts of the losses, and the state of the first process's rule, which all of
them take over. From then on, weights and errors are the same on all of them. Each runs one backward pass with the
weights of its own losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from paretograd.autograd.graph import release
from paretograd.autograd.metric import local
from paretograd.autograd.scalarized import (
    ScalarizedStep,
    Seeds,
    all_finite,
    bad_losses,
    graded_losses,
    step_of,
    suspects,
    values_of,
)
from paretograd.autograd.ways import Pairs
from paretograd.distributed.agreement import raise_together
from paretograd.distributed.columns import Columns
from paretograd.distributed.prepare import Work
from paretograd.distributed.ranks import Ranks
from paretograd.distributed.replicas import pass_on
from paretograd.distributed.settle import check_counts
from paretograd.distributed.shards import as_grads, shard_sum
from paretograd.errors import NonFiniteGradientError, ParameterError, ParetogradError
from paretograd.scalarizations.base import Weighting


@dataclass(frozen=True)
class _Together:
    """How the losses of all processes follow from those of each.

    Attributes:
        ranks: the processes.
        m: number of losses, of all processes.
        first: number of this process's first loss.
        shares: factors of this process's losses, which add up to one over the processes, or are ones.
    """

    ranks: Ranks
    m: int
    first: int
    shares: Tensor

    @classmethod
    def of(cls, work: Work) -> _Together:
        divided = work.layout.ranks.size if work.layout.kind == "sharded" else 1  # `fully_shard` itself divides
        return cls(work.layout.ranks, work.m, work.first, work.scales / divided)

    def __call__(self, mine: Tensor | None, problem: Exception | None) -> Tensor:
        """Return the losses of all processes, or raise on all of them if one has a problem.

        Args:
            mine: losses of this process.
            problem: the error that it met instead.
        """
        return self.sum(mine, torch.empty(0, dtype=torch.float64, device="cpu"), problem)[: self.m]

    def sum(self, mine: Tensor | None, more: Tensor, problem: Exception | None) -> Tensor:
        """Return the losses of all processes, and after them the numbers that the first process gave as ``more``."""
        numbers = torch.zeros(self.m + len(more) + 1, dtype=torch.float64, device="cpu")
        if mine is not None and len(mine) != len(self.shares):
            problem = ParameterError(f"got {len(mine)} losses after a step with {len(self.shares)} on this process")
        if problem is not None or mine is None:
            numbers[-1] = 1.0
        else:
            # A mean over no samples is NaN, and does not count.
            counted = torch.where(self.shares == 0.0, 0.0, self.shares * mine.cpu())
            numbers[self.first : self.first + len(mine)] = counted
            if all(dist.get_rank(group) == 0 for group in self.ranks.groups):
                numbers[self.m : -1] = more
        total = self.ranks.sum(numbers).cpu()
        if float(total[-1]) > 0.0:
            raise_together(self.ranks, problem)
        return total[:-1]


def losses_of_all(work: Work) -> Tensor:
    """Return the losses over the batches of all processes, shape ``(m,)``, float64, on the CPU."""
    return _Together.of(work)(_values(work), None)


def _values(work: Work) -> Tensor:
    """Return the losses of this process, of which there may be none."""
    return values_of(work.losses) if work.mine.m else torch.empty(0, dtype=torch.float64, device="cpu")


def scalarized_gradients(work: Work) -> tuple[Pairs, ScalarizedStep]:
    """Return parameters with their gradients of F, and the step, as `paretograd.autograd.scalarized` does."""
    call, rule = work.call, work.call.aggregator
    check_counts(call, work.samples)
    together = _Together.of(work)
    values = _exchanged(work, rule, together)
    graded = graded_losses(call, values)
    weights = graded.weights[together.first : together.first + work.mine.m] * work.scales
    if work.layout.kind == "sharded":
        pairs, bad = _sharded(work, graded.weights, weights)
    else:
        pairs, bad = _replicated(work, weights)
    fine = bad is None and bool(torch.isfinite(values).all()) and all_finite(grad for _, grad in graded.own)
    if not fine and call.nonfinite == "raise":
        raise NonFiniteGradientError(bad or list(range(work.m)), names=call.names)
    if fine:
        rule._share(together)
        rule._advance(values)
    device = work.device
    graded = graded._replace(weights=graded.weights.to(device), value=graded.value.to(device))
    return pairs + graded.own, step_of(graded, values.to(device), call, fine)


def _exchanged(work: Work, rule: Weighting, together: _Together) -> Tensor:
    """Return the losses of all processes, after all have taken over the state of the first process's rule."""
    problem = None
    packed = torch.zeros(_size(rule, work.m), dtype=torch.float64, device="cpu")
    try:
        rule._check_size(work.m)
        packed = rule._packed(work.m)
    except ParetogradError as error:  # the others must be told
        problem = error
    total = together.sum(_values(work), packed, problem)
    rule._unpack(total[work.m :], work.m)
    return total[: work.m]


def _size(rule: Weighting, m: int) -> int:
    return sum(m if name in rule._by_loss else values.numel() for name, values in rule._state())


def _replicated(work: Work, weights: Tensor) -> tuple[Pairs, list[int] | None]:
    """Differentiate on replicas: every process gets the sum of all gradients, in buckets.

    Args:
        work: the work.
        weights: of this process's losses.

    Returns:
        parameters and gradients, and the losses whose gradients are not finite; None if there are none.
    """
    ranks, problem = work.layout.ranks, None
    columns = Columns(ranks, [], work.own, None, 1, keep=False)
    params = [param for param in work.own if id(param) in work.mine.reached]
    try:
        seeds = Seeds.of(work.losses, weights)
        reached = seeds.reached(params, work.mine.reached)
        if reached:
            pass_on(seeds.outputs, seeds.grads, reached, lambda param, grad: columns.give_own(param, grad, seeds.scale))
    except Exception as error:  # noqa: BLE001  # the others must not wait in vain, whatever the error
        problem = error
    columns.land()
    failed = ranks.sum(torch.tensor([problem is not None, not columns.own_finite()], dtype=torch.float64, device="cpu"))
    if float(failed[0]):
        raise_together(ranks, problem)
    bad = None
    if float(failed[1]):
        bad = _union(work, bad_losses(work.losses, weights, params, work.mine.reached))
    if not work.call.retain_graph:
        release(work.graph.nodes)
    return columns.combine([]), bad


def _sharded(work: Work, everyone: Tensor, weights: Tensor) -> tuple[Pairs, list[int] | None]:
    """Differentiate parameters of which every process holds a part.

    Every process must pass through the same modules, so losses are left out only if their weight is zero on all.

    Args:
        work: the work.
        everyone: the weights before they were multiplied by the share of this process.
        weights: those after it.
    """
    chosen = [k for k, weight in enumerate(everyone.tolist()) if weight != 0.0] or list(range(work.m))
    seeds = Seeds.of(work.losses, weights, chosen)
    found = {id(param): part * seeds.scale for param, part in shard_sum(work, (seeds.outputs, seeds.grads))}
    parts = [(param, found.get(id(param), torch.zeros_like(local(param)))) for param in work.own]
    mine = suspects(parts, work.reached, seeds.reach)
    failed = work.layout.ranks.sum(torch.tensor([float(len(mine))], dtype=torch.float64, device="cpu"))
    bad = _union(work, mine) if float(failed) else None
    return as_grads(parts), bad


def _union(work: Work, mine: list[int]) -> list[int]:
    """Return the losses that any process names."""
    told: list[list[int]] = work.layout.ranks.gather(mine)
    first, bad = 0, set()
    for number, each in enumerate(told):
        bad |= {first + k for k in each}
        first += work.counts[number] if work.counts is not None else 0
    return sorted(bad)
