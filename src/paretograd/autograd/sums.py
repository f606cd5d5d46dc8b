"""`Sums`: rows of the Jacobian that add up over micro-batches, with the samples over which they are means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paretograd.autograd.call import Plan
from paretograd.autograd.rows import Rows
from paretograd.errors import ParameterError, ShapeError

Gradients = Iterable[tuple[int, list[tuple[Tensor, Tensor]]]]


class Sums:
    """The rows of some micro-batches, added up.

    Attributes:
        rows: the rows of m losses; m is 0 before the first micro-batch.
        names: the names of the losses, if they have any.
        params: the parameters that some loss reaches, by ``id``.
        reached: for each of them, by ``id``, a bit for every loss that reaches it.
        compiled: those of compiled models, by ``id``.
        samples: number of samples of each loss; None if they are not counted.
        each: True if a micro-batch gave another number for each loss.
        device: device of the losses.
        count: number of micro-batches.
    """

    def __init__(self, dtype: torch.dtype | None, device: torch.device | None) -> None:
        """Hold nothing yet.

        Args:
            dtype: dtype of the rows; None for that of each parameter.
            device: device of the rows; None for that of each parameter.
        """
        self._dtype, self._place = dtype, device
        self.device = torch.device("cpu")
        self.rows = Rows(0, self.device)
        self.names: tuple[str, ...] | None = None
        self.params: dict[int, Tensor] = {}
        self.reached: dict[int, int] = {}
        self.compiled: set[int] = set()
        self.samples: list[int] | None = None
        self.each = False
        self.count = 0
        self._units: list[int] = []  # number of samples for which a row counts once

    @property
    def m(self) -> int:
        """Number of losses."""
        return self.rows.m

    def check(self, plan: Plan) -> None:
        """Raise if a micro-batch does not match the ones before it."""
        samples, names = plan.call.samples, plan.call.names
        if len(plan.groups) > 1:
            raise ParameterError(f"accumulate aggregates all params together; got {len(plan.groups)} groups")
        if isinstance(samples, list) and len(samples) != plan.m:
            raise ParameterError(f"samples has {len(samples)} numbers for {plan.m} losses")
        if not self.m:
            return
        if plan.m != self.m:
            raise ShapeError(f"this micro-batch has {plan.m} losses, the ones before it {self.m}")
        if names != self.names:
            raise ParameterError(f"this micro-batch has losses named {names}, the ones before it {self.names}")
        if (samples is None) != (self.samples is None):
            raise ParameterError("give samples for every micro-batch or for none")

    def add(self, plan: Plan, found: Gradients, samples: Sequence[int] | None) -> None:
        """Add a micro-batch.

        Args:
            plan: its losses and parameters.
            found: the gradients of each loss.
            samples: number of samples over which each loss is a mean. Rows are weighted by them.
        """
        if not self.m:
            self.rows, self.device, self.names = Rows(plan.m, self._place or plan.device), plan.device, plan.call.names
            if samples is not None:
                self.samples, self._units = [0] * plan.m, [max(count, 1) for count in samples]
        for k, pairs in found:
            factor = 1.0 if samples is None else samples[k] / self._units[k]
            for param, grad in pairs:
                row = grad.to(self._place or grad.device, self._dtype or param.dtype)
                self.rows.give(param, k, row if factor == 1.0 else row * factor)
        for param in (*plan.common, *plan.own):
            self.params[id(param)] = param
            self.reached[id(param)] = self.reached.get(id(param), 0) | plan.reached[id(param)]
        self.compiled |= plan.compiled
        if samples is not None and self.samples is not None:
            self.samples = [old + new for old, new in zip(self.samples, samples, strict=True)]
            self.each |= isinstance(plan.call.samples, list)
        self.count += 1

    def check_rows(self) -> None:
        """Raise if there was no micro-batch."""
        if not self.m:
            raise ParameterError("there are no rows yet: call add(losses) for each micro-batch first")

    def check_counts(self) -> None:
        """Raise if samples are counted and there are none for some loss."""
        empty = [k for k, count in enumerate(self.samples or ()) if not count]
        if empty:
            shown = ", ".join(str(k) if self.names is None else repr(self.names[k]) for k in empty)
            raise ParameterError(f"samples: no micro-batch has samples for objective {shown}")

    def average(self) -> None:
        """Turn weighted sums into the gradients of means over all samples so far. More may be added later."""
        if self.samples is not None:
            whole = [max(count, 1) for count in self.samples]
            self.rows.scale([unit / count for unit, count in zip(self._units, whole, strict=True)])
            self._units = whole
