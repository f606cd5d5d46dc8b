"""`Way`: one way to differentiate m losses. All give the same Gramian and the same gradients, up to rounding.

`PlainRows` is the base way: one plain backward pass for each loss. It is right for every model; the others fall back to
it, and are checked against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from paretograd.aggregators.rows import RowAggregator
from paretograd.autograd.call import Call, Plan
from paretograd.autograd.graph import release, starts_of
from paretograd.autograd.kept import Kept, KeptRows
from paretograd.autograd.products import rounding
from paretograd.autograd.rows import Rows
from paretograd.autograd.segments import SMALL, Segment, in_quarters, segments, whole
from paretograd.errors import NonFiniteGradientError, ParameterError
from paretograd.geometry.gramian import Array, as_array, out_of_range

Pairs = list[tuple[Tensor, Tensor]]


class NotFiniteError(NonFiniteGradientError):
    """Gradients that hold NaN or infinity.

    Attributes:
        plain_sum: function that returns the gradients of the sum, which hold them, too.
        final: True if the graph was freed, so that no plain passes can tell more.
    """

    def __init__(self, objectives: Sequence[int], plain_sum: Callable[[], Pairs], final: bool = False) -> None:
        super().__init__(objectives)
        self.plain_sum, self.final = plain_sum, final


class Way(ABC):
    """The gradients of a plan's losses.

    Attributes:
        gramians: ``J @ J.T`` over each group of parameters, float64, shape ``(groups, m, m)``.
        array: the same on the CPU, as an array.
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
    """

    #: The name of the way, as given to ``engine=``.
    name: ClassVar[str]
    gramians: Tensor
    array: Array
    eps: float

    @abstractmethod
    def combine(self, weights: Sequence[Tensor]) -> Pairs:
        """Return each parameter with its gradient, and free what was stored for it.

        Args:
            weights: for each group, shape ``(m,)``.
        """

    def kept(self) -> Kept:
        """Return the gradients of a call that keeps its rows, to compare the update with them."""
        raise NotImplementedError(f"'{self.name}' keeps no rows")

    @abstractmethod
    def release(self) -> None:
        """Free the graph after `combine`, unless the call retains it, or what was `kept` needs it."""


class RowsWay(Way):
    """A way that stores the rows of the Jacobian. Subclasses compute them."""

    def __init__(self, plan: Plan, *, retain: bool = False) -> None:
        """Differentiate.

        Args:
            plan: the work.
            retain: retain the graph until `release`, whatever the call says.
        """
        self.plan = plan
        self._retain = retain or plan.call.retain_graph
        self._freed = not self._retain
        self.rows, self._own = Rows(plan.m, plan.device), Rows(plan.m, plan.device)
        self._given: list[tuple[int, Tensor]] = []
        self._differentiate()
        if plan.graph.compiled and shows_heads(plan.call, plan.m):
            self._find_heads()
        self.eps = rounding(plan.common)
        self._multiply(exact=False)
        if not np.isfinite(self.array).all() or out_of_range(self.array, self.eps) is not None:
            bad = self.rows.not_finite()
            if not bad:  # squares of finite gradients left the range of float32
                self._multiply(exact=True)
            if bad or not np.isfinite(self.array).all():
                raise NotFiniteError(bad or list(range(plan.m)), self._plain_sum, self._freed)

    @abstractmethod
    def _differentiate(self) -> None:
        """Give all rows to `self.rows`, and the gradients of parameters that are not aggregated to `_give_own`."""

    def _give_own(self, k: int, pairs: Pairs) -> None:
        """Take gradients of loss k for parameters that are not aggregated. Those of several losses are added."""
        for param, grad in pairs:
            self._own.give(param, 0, grad)
            self._given.append((k, grad))
            if self.plan.call.keep_rows:
                self.rows.give(param, k, grad)

    def _multiply(self, exact: bool) -> None:
        plan, metric = self.plan, self.plan.call.metric
        self.gramians = torch.stack([self.rows.gramian(group, exact=exact, metric=metric) for group in plan.groups])
        # Norms of finite numbers may overflow, so they only raise a suspicion. But they need a single synchronisation.
        given = [grad.coalesce().values() if grad.is_sparse else grad for _, grad in self._given]
        own = [norm.to(self.gramians) for norm in torch._foreach_norm(given)] if given else []
        numbers = as_array(torch.cat([self.gramians.flatten(), torch.stack(own)]) if own else self.gramians.flatten())
        self.array = numbers[: self.gramians.numel()].reshape(self.gramians.shape)
        fine = np.isfinite(numbers[self.gramians.numel() :])
        bad = {k for (k, _), good in zip(self._given, fine, strict=True) if not good}
        self._given.clear()
        if bad and self._own.not_finite():
            raise NotFiniteError(sorted({*bad, *self.rows.not_finite()}), self._plain_sum, self._freed)

    def _find_heads(self) -> None:
        """Give the parameters of a compiled model that only one loss reaches the gradient of that loss."""
        plan, compiled = self.plan, self.plan.graph.compiled
        inside = [param for param in plan.common if id(param) in compiled]
        heads = hidden_heads(plan.call, plan.m, inside, self.rows.nonzero_losses)
        for param in [param for param in inside if id(param) in heads]:
            self._give_own(heads[id(param)], [(param, self.rows.take(param, heads[id(param)]))])
        set_apart(plan, heads)

    def combine(self, weights: Sequence[Tensor]) -> Pairs:
        found: Pairs = []
        for group, chosen in zip(self.plan.groups, weights, strict=True):
            found += self.rows.combine(group, chosen, keep=self.plan.call.keep_rows)
        ones = torch.ones(self.plan.m, dtype=torch.float64, device=self.plan.device)
        return found + self._own.combine(self.plan.own, ones)

    def _plain_sum(self) -> Pairs:
        ones = torch.ones(self.plan.m, dtype=torch.float64, device=self.plan.device)
        return self.combine([ones] * len(self.plan.groups))

    def kept(self) -> Kept:
        return KeptRows(self.rows, self.plan.common, self.plan.own, self.eps)

    def release(self) -> None:
        if not self.plan.call.retain_graph and not self._freed:
            release(self.plan.graph.nodes)


def hidden_heads(
    call: Call, m: int, params: Iterable[Tensor], nonzero_losses: Callable[[Tensor], Sequence[int]]
) -> dict[int, int]:
    """Return the parameters of compiled models that only one loss reaches, by ``id``, each with the number of its loss.

    To torch, every output of a compiled model depends on all its parameters. The gradients of a head are zero for all
    losses but its own.

    Args:
        call: the call.
        m: number of losses.
        params: parameters of compiled models that would be aggregated.
        nonzero_losses: returns the losses whose gradient of a parameter is not zero.
    """
    if not call.has_rule or m == 1:
        return {}
    forced = {id(param) for param in call.shared or ()}
    found = {id(param): nonzero_losses(param) for param in params if id(param) not in forced}
    return {key: losses[0] for key, losses in found.items() if len(losses) == 1}


def shows_heads(call: Call, m: int) -> bool:
    """Return True if all losses are differentiated, which shows the parameters that `hidden_heads` looks for.

    Raise if some are not and the call does not name those parameters.
    """
    rule = call.aggregator
    if not isinstance(rule, RowAggregator) or len(rule._differentiated(m)) == m:
        return True
    if call.specific is None:
        raise ParameterError(
            f"{rule.label} does not differentiate all losses in each step, which hides the parameters of a compiled "
            "model that only one loss reaches. Name these in specific; pass specific=[] if there are none"
        )
    return False


def set_apart(plan: Plan, heads: Container[int]) -> None:
    """Take parameters, given by ``id``, out of those that are aggregated."""
    plan.own += [param for param in plan.common if id(param) in heads]
    plan.groups = [[param for param in group if id(param) not in heads] for group in plan.groups]


class PlainRows(RowsWay):
    """One plain pass for each loss. A loss with a graph of its own costs its own pass, and its graph is freed by it."""

    name = "jacobian"

    def _differentiate(self) -> None:
        self._given = plain_rows(self.plan, self._retain, self.rows, self._own)


def plain_rows(plan: Plan, retain: bool, rows: Rows, own: Rows) -> list[tuple[int, Tensor]]:
    """Give the gradients of all losses to rows, by plain passes.

    Args:
        plan: the work.
        retain: as for `plain_gradients`.
        rows: takes the gradients of parameters that are aggregated, and of all if the call keeps its rows.
        own: takes the sums of the gradients of those that are not.

    Returns:
        the number of the loss and the gradient, for each that was given to ``own``.
    """
    alone = {id(param) for param in plan.own}
    given = []
    for k, found in plain_gradients(plan, retain):
        for param, grad in found:
            if id(param) in alone:
                own.give(param, 0, grad)
                given.append((k, grad))
            if id(param) not in alone or plan.call.keep_rows:
                rows.give(param, k, grad)
    return given


def plain_gradients(plan: Plan, retain: bool) -> Iterator[tuple[int, Pairs]]:
    """Yield the number of each loss, and the parameters that it reaches with their gradients, by one plain pass.

    A loss may come several times, with the gradients of one segment of the graph each. They add up. The gradients of a
    parameter that autocast copied to half precision may be in that dtype.

    Args:
        plan: the work.
        retain: retain the graph. Otherwise each pass frees what no later one needs.
    """
    starts = starts_of(plan.losses)
    seeds: list[Tensor | None] = [seed for _, seed in starts]
    copies = plan.copies
    chosen = plan.chosen
    below: Sequence[Tensor | GradientEdge] = ()  # where the segment starts; the first one starts at the losses
    for part in _parts(plan):
        params = [param for param in (*plan.common, *plan.own) if id(param) in part.leaves]
        for k, (output, _) in enumerate(starts):
            inputs = [param for param in params if plan.reached[id(param)] >> k & 1]
            seed, seeds[k] = seeds[k], None
            if seed is None or k not in chosen or not (inputs or part.ends):
                continue
            needed = plan.graph.shared_losses >> k & 1 if not below else k + 1 < plan.m
            joined = isinstance(output, Tensor) and plan.graph.joins and k + 1 < plan.m
            grads: Sequence[Tensor | None] = torch.autograd.grad(
                below or [output],  # type: ignore[arg-type]  # torch accepts both, but not its stubs
                [*(copies.get(id(param), param) for param in inputs), *part.ends],  # type: ignore[arg-type]
                [seed] * max(len(below), 1),
                retain_graph=retain or bool(needed) or joined,
                allow_unused=True,
            )
            if part.ends:
                seeds[k] = grads[-1]
            yield k, present(inputs, grads[: len(inputs)])
        below = part.starts


def _parts(plan: Plan) -> list[Segment]:
    """Return the segments of plain passes: one, unless the rows take much memory and the losses share a graph.

    A graph whose saved tensors are packed is not cut: a checkpoint would compute a block anew in each segment.
    """
    if plan.row_bytes >= SMALL and plan.graph.shared_losses and not plan.graph.looks_packed:
        return in_quarters(segments(plan.graph, plan.m))
    return [whole(plan.graph)]


def present(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Pairs:
    """Pair parameters with their gradients and drop those without one, which may occur even in the graph."""
    return [(param, grad) for param, grad in zip(params, grads, strict=True) if grad is not None]
