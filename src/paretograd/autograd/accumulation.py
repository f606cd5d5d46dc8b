"""``accumulate``: exact aggregation over micro-batches. The rows add up, and the rule is applied once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.autograd.backward import accumulate as add_to_grads
from paretograd.autograd.backward import undisturbed
from paretograd.autograd.call import Call, Params, check_rule, listed, named, plan_of, rule_of, settled, sort
from paretograd.autograd.entry import several_processes
from paretograd.autograd.products import rounding
from paretograd.autograd.rows import Rows
from paretograd.autograd.step import How, Step
from paretograd.autograd.ways import plain_gradients
from paretograd.errors import NonFiniteGradientError, ParameterError, ShapeError
from paretograd.geometry.gramian import as_array, out_of_range


class Accumulation:
    """Rows of the Jacobian that add up over micro-batches. See `accumulate`.

    Attributes:
        count: number of micro-batches.
    """

    def __init__(self, call: Call, dtype: torch.dtype | None, device: torch.device | None) -> None:
        self._call, self._dtype, self._place = call, dtype, device
        self._rows: Rows | None = None
        self._reached: dict[int, int] = {}
        self._params: dict[int, Tensor] = {}
        self._device = torch.device("cpu")
        self._names: tuple[str, ...] | None = None
        self.count = 0

    def __enter__(self) -> Accumulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows, self.count = None, 0
        self._reached.clear()
        self._params.clear()

    def add(self, losses: Mapping[str, Tensor] | Sequence[Tensor] | Tensor) -> None:
        """Add the gradients of one micro-batch. Their graph is freed.

        Args:
            losses: as for `backward`, the same number each time. For the gradient of a mean over k micro-batches,
                divide them by k.
        """
        values, names = named(losses)
        plan = plan_of(replace(self._call, losses=settled(values), names=names))
        if self._rows is not None and plan.m != self._rows.m:
            raise ShapeError(f"this micro-batch has {plan.m} losses, the ones before it {self._rows.m}")
        with undisturbed(plan):
            found = list(plain_gradients(plan, retain=False))
            if self._rows is None:
                self._rows, self._device, self._names = Rows(plan.m, self._place or plan.device), plan.device, names
            for k, pairs in found:
                for param, grad in pairs:
                    self._rows.give(param, k, grad.to(self._place or grad.device, self._dtype or param.dtype))
        for param in (*plan.common, *plan.own):
            self._params[id(param)] = param
            self._reached[id(param)] = self._reached.get(id(param), 0) | plan.reached[id(param)]
        self.count += 1

    def step(self, aggregator: Aggregator | AggregatorModule) -> Step:
        """Apply the rule to the sums, add the result to ``.grad`` as `backward` does, and forget the rows."""
        rule = rule_of(aggregator)
        check_rule(rule)
        if self._rows is None:
            raise ParameterError("there are no rows yet: call add(losses) for each micro-batch first")
        rows, params = self._rows, list(self._params.values())
        (common,), own = sort(replace(self._call, has_rule=True), [params], self._reached, rows.m)
        with torch.no_grad():
            eps = rounding(common)
            gramian = rows.gramian(common)
            array = as_array(gramian)
            if eps > 1e-15 and out_of_range(array) is not None:
                gramian = rows.gramian(common, exact=True)
                array = as_array(gramian)
            bad = rows.not_finite(own if np.isfinite(array).all() else params)
            if bad:
                raise NonFiniteGradientError(bad, names=self._names)
            with rule.one_step():
                weights = torch.from_numpy(rule._outcome(array, eps).weights).to(gramian.device)
            pairs = rows.combine(common, weights)
            pairs += rows.combine(own, torch.ones(rows.m, dtype=torch.float64, device=gramian.device))
            add_to_grads([(param, grad.to(param.device, param.dtype)) for param, grad in pairs])
        how = How("jacobian", 1.0, f"rows of {self.count} micro-batches were added")
        step = Step(weights.to(self._device), gramian.to(self._device), rule, eps=eps, names=self._names, how=how)
        self.clear()
        return step


def accumulate(
    params: Params | None = None,
    *,
    shared: Params | Iterable[nn.Module] | None = None,
    specific: Params | Iterable[nn.Module] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Accumulation:
    """Return an empty sum of rows, to aggregate over micro-batches exactly as over their union.

    ``with accumulate(model) as acc: ...; acc.add(losses); ...; acc.step(rule)``. Calling `backward` for each
    micro-batch would apply the rule to each of them separately, which is another direction.

    Args:
        params: as for `backward`, but without groups.
        shared: as for `backward`.
        specific: as for `backward`.
        dtype: dtype of the rows; None for that of each parameter.
        device: device of the rows, such as the CPU to save memory of the GPU; None for that of each parameter.
    """
    if several_processes():
        raise ParameterError(
            "accumulate works in a single process for now; with several, call backward for each micro-batch, which "
            "aggregates each of them by itself"
        )
    call = Call(
        losses=None,
        params=settled(params),
        has_rule=False,
        shared=listed(shared),
        specific=listed(specific),
        retain_graph=False,
    )
    return Accumulation(call, dtype, None if device is None else torch.device(device))
