"""`TrainingLosses`: several losses for a framework whose training loop differentiates one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.aggregators.batches import CrossAggregator
from paretograd.autograd.accumulation import Accumulation, accumulate
from paretograd.autograd.backward import backward
from paretograd.autograd.call import check_rule, rule_of
from paretograd.autograd.step import Step
from paretograd.errors import InputError, ParameterError
from paretograd.scalarizations.base import Weighting

Rule = Aggregator | AggregatorModule | Weighting


class TrainingLosses:
    """The losses of a training step, behind their sum.

    The framework receives `total`, scales it as it scales any loss, and hands the result to `backward`. There, each
    loss gets the same factor, and the rule is applied once for each optimizer step, to all micro-batches together.

    Attributes:
        rule: the rule, as the module or the weighting that holds its state.
        step: the last step; None before the first.
        values: the value of each loss in that step, as a mean over its micro-batches.
    """

    def __init__(self, rule: Rule) -> None:
        plain = rule_of(rule)
        if not isinstance(plain, Weighting):
            check_rule(plain)
        if isinstance(plain, CrossAggregator):
            raise ParameterError(
                f"rule={plain!r} needs several independent batches in a step, which a trainer does not give. Use "
                "another rule, or a training loop of your own with paretograd.backward"
            )
        self.rule: AggregatorModule | Weighting = rule.as_module() if isinstance(rule, Aggregator) else rule
        self.step: Step | None = None
        self.values: dict[str, Tensor] = {}
        self._pending: tuple[dict[str, Tensor], Tensor] | None = None
        self._rows: Accumulation | None = None
        self._sums: dict[str, Tensor] = {}

    @property
    def count(self) -> int:
        """Number of micro-batches whose gradients wait for the optimizer step."""
        return 0 if self._rows is None else self._rows.count

    def clear(self) -> None:
        """Forget what waits for the optimizer step."""
        self._pending, self._rows, self._sums = None, None, {}

    def total(self, losses: Any) -> Tensor:
        """Return the sum of the losses as one scalar; remember the losses if it has a graph.

        Args:
            losses: scalars by name.
        """
        if not isinstance(losses, Mapping) or not losses:
            raise InputError(
                f"several losses are needed as a dictionary, such as {{'depth': ..., 'segmentation': ...}}; got "
                f"{'an empty dictionary' if isinstance(losses, Mapping) else f'a {type(losses).__name__}'}"
            )
        named = {str(name): loss for name, loss in losses.items()}
        bad = [name for name, loss in named.items() if not isinstance(loss, Tensor) or loss.numel() != 1]
        if bad:
            raise InputError(f"losses[{bad[0]!r}] is no scalar tensor; reduce it, such as with .mean()")
        dtype = reduce(torch.promote_types, (loss.dtype for loss in named.values()), torch.float32)
        device = next(iter(named.values())).device
        total = torch.stack([loss.reshape(()).to(device, dtype) for loss in named.values()]).sum()
        if total.requires_grad:
            self._pending = (named, total)
        return total

    def backward(self, loss: Tensor, *, last: bool, scaled: bool) -> None:
        """Differentiate the losses behind ``loss``, and fill ``.grad`` if the optimizer steps next.

        Args:
            loss: the last `total`, times any factor.
            last: True for the last micro-batch before the optimizer step.
            scaled: True if a ``GradScaler`` scaled the loss. It skips steps that are not finite.
        """
        if self._pending is None:
            raise InputError(_FOREIGN)
        (losses, total), self._pending = self._pending, None
        (factor,) = torch.autograd.grad(loss, total, allow_unused=True)
        if factor is None:
            raise InputError(_FOREIGN)
        if scaled:
            self._check_degree()
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach()
        found = losses
        if bool(factor != 1.0):  # two scalars are promoted, so that a large factor does not overflow a loss in float16
            found = {name: value.reshape(()) * factor.to(value.device) for name, value in losses.items()}
        count = self.count + 1
        try:
            if last and self._rows is None:
                self.step = backward(found, self.rule, nonfinite="propagate" if scaled else "raise")
            else:
                self._accumulate(found, last, scaled)
        except BaseException:
            self.clear()
            raise
        if last:
            self.values = {name: value / count for name, value in self._sums.items()}
            self.clear()

    def _accumulate(self, losses: dict[str, Tensor], last: bool, scaled: bool) -> None:
        """Add the gradients of a micro-batch to those before it, and apply the rule if it is the last."""
        if isinstance(self.rule, Weighting):
            raise ParameterError(
                f"rule={self.rule!r} takes its weights from the losses of the whole batch, but the trainer accumulates "
                "micro-batches. Let each be a step, or use a rule that sees gradients, such as paretograd.UPGrad() or "
                "paretograd.Mean(weights=...)"
            )
        self._rows = self._rows or accumulate(nonfinite="propagate" if scaled else "raise")
        self._rows.add(losses)
        if last:
            self.step = self._rows.step(self.rule)

    def _check_degree(self) -> None:
        """Raise if unscaling the direction does not undo the scaling of the losses."""
        rule = rule_of(self.rule)
        if rule.guarantee.degree != 1.0 or rule.guarantee.recalls_lengths:
            raise ParameterError(
                f"rule={rule!r} does not scale with the losses, or remembers their scale, so a GradScaler cannot undo "
                "its factor. Use a rule of degree one (rule.guarantee.degree) without such a memory, or bfloat16, "
                "which needs no scaler"
            )

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step, with ``mo/loss/NAME`` for every loss; nothing before the first."""
        if self.step is None:
            return {}
        return self.step.metrics() | {f"mo/loss/{name}": float(value) for name, value in self.values.items()}


_FOREIGN = (
    "the loss to differentiate is not the sum that stands for the dictionary of losses. Return the dictionary itself, "
    "or its sum unchanged, from the training step"
)
