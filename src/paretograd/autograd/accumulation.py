"""``accumulate``: exact aggregation over micro-batches. The rows add up, and the rule is applied once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.aggregators.rows import RowAggregator
from paretograd.autograd.backward import accumulate as add_to_grads
from paretograd.autograd.backward import undisturbed
from paretograd.autograd.by_rows import KeptSource, aggregate_rows
from paretograd.autograd.call import Call, Parallel, Params, check_rule, listed, named, plan_of, rule_of, sort
from paretograd.autograd.entry import handler, settled, several_processes
from paretograd.autograd.graph import HANDING_ON
from paretograd.autograd.kept import KeptRows
from paretograd.autograd.products import rounding
from paretograd.autograd.step import How, Step
from paretograd.autograd.sums import Sums
from paretograd.autograd.ways import Pairs, hidden_heads, plain_gradients
from paretograd.errors import NonFiniteGradientError, ParameterError
from paretograd.geometry.gramian import as_array, out_of_range
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.sums import WeightedSum


class Accumulation:
    """Rows of the Jacobian that add up over micro-batches. See `accumulate`.

    Attributes:
        count: number of micro-batches.
    """

    def __init__(self, call: Call, dtype: torch.dtype | None, device: torch.device | None) -> None:
        self._call, self._dtype, self._place = call, dtype, device
        self.clear()

    def __enter__(self) -> Accumulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    @property
    def count(self) -> int:
        return self._sums.count

    def clear(self) -> None:
        """Forget all rows."""
        self._sums = Sums(self._dtype, self._place)
        self._sharded: bool | None = None  # not known yet
        self._problem: Exception | None = None

    def add(
        self,
        losses: Mapping[str, Tensor] | Sequence[Tensor] | Tensor,
        *,
        samples: int | Sequence[int] | None = None,
    ) -> None:
        """Add the gradients of one micro-batch. Their graph is freed.

        Several processes do not communicate here, unless the parameters are sharded. So an error of one process is
        raised by `step`, on all of them. The micro-batch is then left out.

        Args:
            losses: as for `backward`, the same number each time.
            samples: number of samples over which the losses are means, or one number per loss. `step` then aggregates
                the gradients of the means over all samples, of all micro-batches and processes. None adds up the
                gradients of the losses: for the gradient of a mean over k micro-batches, divide them by k.
        """
        values, names = named(losses)
        call = replace(self._call, losses=settled(values), names=names, samples=settled(samples))
        several = None if call.parallel == "none" else handler()
        if several is not None and self._sharded is not False:
            shards = several.shards(call, self._sharded is True)
            if shards is not None:
                self._sharded = True
                self._sums.check(shards[0])
                self._sums.add(*shards)
                return
        try:
            self._add(call, HANDING_ON if several is not None else frozenset())
            self._sharded = False
        except Exception as error:
            if several is None or not several_processes():
                raise
            self._problem = self._problem or error

    def _add(self, call: Call, skipped: frozenset[str]) -> None:
        """Add a micro-batch without the help of other processes."""
        if call.parallel == "objectives" and not isinstance(call.losses, Tensor) and not list(call.losses):
            return  # all losses are on other processes
        plan = plan_of(call, skipped)
        self._sums.check(plan)
        with undisturbed(plan):
            found = list(plain_gradients(plan, retain=False))
            samples = [call.samples] * plan.m if isinstance(call.samples, int) else call.samples
            self._sums.add(plan, found, samples)

    def step(self, aggregator: Aggregator | AggregatorModule) -> Step:
        """Apply the rule to the sums, add the result to ``.grad`` as `backward` does, and forget the rows.

        Several processes communicate here, and apply the rule to the sums of all.
        """
        sums, problem = self._sums, self._problem
        samples = sums.samples if sums.each or not sums.samples else sums.samples[0]
        rule = rule_of(aggregator)
        if isinstance(rule, Weighting):
            raise _sees_losses(rule)
        by_rows = isinstance(rule, RowAggregator)
        call = replace(self._call, aggregator=rule, has_rule=True, names=sums.names, samples=samples, keep_rows=by_rows)
        several = None if call.parallel == "none" else handler()
        self._problem = None
        step = None if several is None else several.step(call, sums, problem)
        if step is None:
            if problem is not None:
                raise problem
            step = _step_alone(call, sums)
        step.kept = None
        self.clear()
        return step


def _sees_losses(rule: Weighting) -> ParameterError:
    """Return the error for a rule whose weights depend on the losses of the whole batch."""
    if isinstance(rule, WeightedSum):
        return ParameterError(
            f"{rule!r} has constant weights, so gradients of micro-batches add up without accumulate: call "
            "paretograd.backward for each of them"
        )
    return ParameterError(
        f"{rule!r} takes its weights from the losses of the whole batch, which accumulate does not keep. Compute them "
        "first, without a graph; then take phi = rule.weights(losses), and call (phi * torch.stack(losses)).sum()."
        "backward() for each micro-batch"
    )


def _step_alone(call: Call, sums: Sums) -> Step:
    """Take the step of a single process."""
    check_rule(call.aggregator)
    sums.check_rows()
    sums.check_counts()
    sums.average()
    rule, rows, params = call.aggregator, sums.rows, list(sums.params.values())
    (common,), own = sort(call, [params], sums.reached, rows.m)
    inside = [param for param in common if id(param) in sums.compiled]
    heads = hidden_heads(call, rows.m, inside, rows.nonzero_losses)
    own += [param for param in inside if id(param) in heads]
    common = [param for param in common if id(param) not in heads]
    with torch.no_grad():
        eps = rounding(common)
        gramian = rows.gramian(common)
        array = as_array(gramian)
        if out_of_range(array, eps) is not None:
            gramian = rows.gramian(common, exact=True)
            array = as_array(gramian)
        ones = torch.ones(rows.m, dtype=torch.float64, device=gramian.device)

        def combine(weights: Tensor) -> Pairs:
            return rows.combine(common, weights) + rows.combine(own, ones)

        bad = rows.not_finite(own if np.isfinite(array).all() else params)
        if bad and call.nonfinite == "raise":
            raise NonFiniteGradientError(bad, names=sums.names)
        how = How("jacobian", 1.0, f"rows of {sums.count} micro-batches were added")
        if bad:
            step = Step.unknown(rows.m, sums.device, rule, sums.names)
            pairs = rows.combine(params, ones)  # holds NaN or infinity, too
        elif isinstance(rule, RowAggregator):
            source = KeptSource(KeptRows(rows, common, own, eps))
            pairs, step = aggregate_rows(rule, source, gramian.to(sums.device), combine, sums.names, how)
        else:
            with rule.one_step():
                weights = torch.from_numpy(rule._outcome(array, eps).weights).to(gramian.device)
            step = Step(weights.to(sums.device), gramian.to(sums.device), rule, eps=eps, names=sums.names, how=how)
            pairs = combine(weights)
        add_to_grads([(param, grad.to(param.device, param.dtype)) for param, grad in pairs])
    return step


def accumulate(
    params: Params | None = None,
    *,
    shared: Params | Iterable[nn.Module] | None = None,
    specific: Params | Iterable[nn.Module] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    nonfinite: Literal["raise", "propagate"] = "raise",
    parallel: Parallel = "auto",
    process_group: Any = None,
) -> Accumulation:
    """Return an empty sum of rows, to aggregate over micro-batches exactly as over their union.

    ``with accumulate(model) as acc: ...; acc.add(losses); ...; acc.step(rule)``. Calling `backward` for each
    micro-batch would apply the rule to each of them separately, which is another direction.

    On several processes, every process adds its own micro-batches, and all of them call `Accumulation.step`.

    Args:
        params: as for `backward`, but without groups.
        shared: as for `backward`.
        specific: as for `backward`.
        dtype: dtype of the rows; None for that of each parameter.
        device: device of the rows, such as the CPU to save memory of the GPU; None for that of each parameter.
        nonfinite: as for `backward`, at `Accumulation.step`. ``propagate`` lets a ``GradScaler`` skip the step.
        parallel: as for `backward`.
        process_group: as for `backward`.
    """
    call = Call(
        losses=None,
        params=settled(params),
        has_rule=False,
        shared=listed(shared),
        specific=listed(specific),
        retain_graph=False,
        nonfinite=nonfinite,
        parallel=parallel,
        process_group=process_group,
    )
    return Accumulation(call, dtype, None if device is None else torch.device(device))
