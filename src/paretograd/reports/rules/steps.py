"""Steps of a rule in a counter-example: the gradients and losses that it sees, and the direction that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.batches import CrossAggregator
from paretograd.aggregators.registry import get, read_rule
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.registry import SCALARIZERS, scalarizer

#: A rule of the table: one that needs the gradients, or one that sees the losses only.
Rule: TypeAlias = Aggregator | Weighting


@dataclass(frozen=True)
class Step:
    """Gradients and losses of a step, float64.

    Attributes:
        jacobian: J, shape ``(m, n)``. If there are several batches, that of the last one.
        losses: values of the losses, shape ``(m,)``.
        batches: the Jacobians of earlier batches of the same step, for a rule that needs several.
        learned: numbers that a rule has learned, one for each loss; None for those at the start.
    """

    jacobian: Tensor
    losses: Tensor
    batches: tuple[Tensor, ...] = ()
    learned: Tensor | None = None

    def times(self, factors: Tensor) -> Step:
        """Return the step with each loss multiplied by a factor, shape ``(m,)``: its value and its gradients."""
        rows = factors[:, None]
        batches = tuple(rows * J for J in self.batches)
        return replace(self, jacobian=rows * self.jacobian, losses=factors * self.losses, batches=batches)

    def ordered(self, order: Sequence[int]) -> Step:
        """Return the step with the objectives in another order, and all that belongs to them."""
        index = list(order)
        learned = None if self.learned is None else self.learned[index]
        batches = tuple(J[index] for J in self.batches)
        return Step(self.jacobian[index], self.losses[index], batches, learned)


def make_rule(text: str, m: int) -> Rule:
    """Return a new instance of a rule, as `paretograd.get` or `paretograd.scalarizer` reads it, for m objectives."""
    written = read_rule(text)
    cls = SCALARIZERS.get(written.name)
    if cls is None:
        return get(text)
    size = {"m": m} if "m" in signature(cls).parameters else {}
    return scalarizer(text, **size).double()


def direction(rule: Rule, steps: Sequence[Step]) -> Tensor:
    """Return the direction of the last step, shape ``(n,)``, after the others.

    Between two steps, `FAMO` sees the losses of the next one, and `DWA` begins another epoch.
    """
    for step, after in pairwise(steps):
        _taken(rule, step)
        if isinstance(rule, Weighting):
            rule._continue(after.losses)
    return _taken(rule, steps[-1])


def _taken(rule: Rule, step: Step) -> Tensor:
    if isinstance(rule, Weighting):
        if step.learned is not None:
            for parameter in rule.parameters():
                parameter.data.copy_(step.learned)
        return rule.weights(step.losses) @ step.jacobian
    if isinstance(rule, CrossAggregator):
        given = (*step.batches, step.jacobian)
        return rule([*[step.jacobian] * (3 - len(given)), *given])
    if "losses" in rule.needs:
        rule.observe(step.losses)
    return rule(step.jacobian)
