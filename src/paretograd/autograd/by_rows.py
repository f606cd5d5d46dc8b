"""Steps of rules that see more than a Gramian: the rows, or the gradients of several independent batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.batches import CrossAggregator
from paretograd.aggregators.named import Mean
from paretograd.aggregators.rows import Parts, RowAggregator, RowSource, at_least_single, this_process, vectors_of
from paretograd.autograd.call import Call, named
from paretograd.autograd.entry import settled
from paretograd.autograd.kept import Kept
from paretograd.autograd.metric import local
from paretograd.autograd.step import How, Step
from paretograd.autograd.ways import Pairs
from paretograd.certificates.update import UpdateCertificate
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.gramian import Array, as_array


class KeptSource(RowSource):
    """The rows of the parameters that are aggregated, on one process or several."""

    def __init__(self, kept: Kept) -> None:
        self._kept, self._all = kept, kept.params
        self.m, self.eps = kept.m, kept.eps
        self.keys = kept.common
        self.process = this_process() if any(hasattr(key, "placements") for key in self.keys) else None

    def block(self, key: Any) -> Tensor:
        return at_least_single(self._kept.block(key)).to(self.like(key))

    def like(self, key: Any) -> Tensor:
        return at_least_single(local(key).detach())

    def of_whole(self, key: Any, make: Callable[[Sequence[int]], Tensor]) -> Tensor:
        whole = make((*key.shape, 2) if key.is_complex() else key.shape)
        if not hasattr(key, "placements"):
            return whole
        from torch.distributed.tensor import DTensor, Replicate

        mesh = key.device_mesh
        copies = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return local(copies.redistribute(placements=key.placements))

    def products(self, vectors: Sequence[Parts]) -> Array:
        return self._kept.measure([self._whole(vector) for vector in vectors])

    def _whole(self, parts: Parts) -> Parts:
        """Return a vector over all parameters, zero for those that are not aggregated."""
        found = {}
        for param in self._all:
            like, part = local(param).detach(), parts.get(id(param))
            if part is None:
                part = torch.zeros_like(like)
            elif like.is_complex():
                part = torch.view_as_complex(part.contiguous())
            found[id(param)] = part
        return found

    def leave_out(self, losses: list[int]) -> None:
        """Take note of losses whose gradients this step does not know."""
        self._kept.unknown = losses

    def rows(self) -> list[Parts]:
        """Return all rows as vectors."""
        return vectors_of({id(key): self.block(key) for key in self.keys}, self.m)

    def fill(self, pairs: Pairs, parts: Parts) -> Pairs:
        """Replace the gradients of aggregated parameters by the parts of a direction."""
        found = []
        for param, grad in pairs:
            part = parts.get(id(param))
            if part is not None:
                if param.is_complex():
                    part = torch.view_as_complex(part.contiguous())
                if grad.is_sparse:
                    grad = part.to(grad.dtype)
                else:
                    local(grad).copy_(part)
            found.append((param, grad))
        return found


def aggregate_rows(
    rule: RowAggregator,
    source: KeptSource,
    gramian: Tensor,
    combine: Callable[[Tensor], Pairs],
    names: tuple[str, ...] | None,
    how: How,
) -> tuple[Pairs, Step]:
    """Apply a rule to rows; return all gradients with their parameters, and the step.

    Args:
        rule: the rule.
        source: the rows.
        gramian: their inner products.
        combine: returns all parameters with ``sum_k w_k g_k`` as new tensors; those that are not aggregated with their
            own gradients.
        names: the names of the objectives.
        how: the way in which the rows were computed.
    """
    others = set(range(source.m)) - set(rule._differentiated(source.m))
    found = rule._combine(source)
    left = [k for k in sorted(others) if not gramian[k, k]]  # micro-batches have differentiated all losses
    source.leave_out(left)
    gramian[left] = gramian[:, left] = torch.nan
    weights = torch.full((source.m,), torch.nan, dtype=torch.float64, device=gramian.device)
    if found.weights is not None:
        weights = torch.from_numpy(found.weights).to(gramian.device)
    step = Step(weights, gramian, rule, eps=source.eps, names=names, how=how)
    if found.direction is None:
        return combine(weights), step
    products = source.products([found.direction, found.direction])
    products[: source.m, : source.m] = as_array(gramian)  # without parameters that are not aggregated
    products[left] = products[:, left] = np.nan
    step.direction = UpdateCertificate.of_products(products, names)
    return source.fill(combine(torch.zeros_like(weights)), found.direction), step


def backward_batches(call: Call, carry_out: Callable[[Call], Step]) -> Step:
    """Take a step with the losses of several independent batches.

    Args:
        call: its losses are two or three lists, vectors or dictionaries of losses.
        carry_out: does the work of a call.
    """
    rule: CrossAggregator = call.aggregator
    calls = []
    for given in rule._batches(call.losses):
        losses, names = named(given)
        calls.append(replace(call, losses=settled(losses), names=names))
    if len({each.names for each in calls}) > 1:
        raise ParameterError(f"the batches have losses of different names: {[each.names for each in calls]}")
    first = _kept(calls[0], carry_out)
    if len(calls) == 3:
        second = _kept(calls[1], carry_out)
        with first.used(), second.used():
            cross = _cross_gramian(first, second)
        return carry_out(replace(calls[2], prepare=lambda _: rule._prepare(cross)))
    with first.used():
        step = carry_out(
            replace(calls[1], keep_rows=True, prepare=lambda last: rule._prepare(_cross_gramian(first, last)))
        )
    if step.kept is not None and not call.keep_rows:
        with step.kept.used():
            step.kept = None
    return step


def _kept(call: Call, carry_out: Callable[[Call], Step]) -> Kept:
    """Return the rows of a batch that determines the weights only."""
    step = carry_out(replace(call, aggregator=Mean(), keep_rows=True, fills=False, nonfinite="raise"))
    assert step.kept is not None
    return step.kept


def _cross_gramian(first: Kept, second: Kept | None) -> Array:
    """Return the inner products of the rows of two batches, over the parameters that are aggregated."""
    assert second is not None
    if first.m != second.m:
        raise ShapeError(f"the batches have {first.m} and {second.m} losses; give the same objectives")
    products = KeptSource(first).products(KeptSource(second).rows())
    return np.ascontiguousarray(products[: first.m, first.m :])
