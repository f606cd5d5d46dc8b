"""A convex combination of the directions of several rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.checks import as_weights, shown_value
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee
from paretograd.solution import SEVERITY, Outcome


class Blend(Aggregator):
    r"""A convex combination of directions, $d = \sum_j a_j d_j$.

    Condition (A) is stable under convex combinations: if $\langle d_j, \nabla F \rangle \ge c_j \|d_j\|^2$ for one
    F, then $\langle d, \nabla F \rangle \ge \min_j c_j \|d\|^2$, because the squared norm is convex. If no part
    conflicts, d does not conflict. If all parts lie in the cone or the convex hull, so does d. UPGrad is a blend of m
    projections.

    Args:
        aggregators: the rules to combine.
        weights: their shares a, divided by their sum; None for equal shares.
    """

    name = "blend"
    label = "Blend"
    description = Description(
        formula="d = sum_j a_j d_j",
        reference="Hu, Ho and Yu 2026 (the paper), below Corollary 2",
        paper="stability of condition (A) under convex combinations",
        when="A compromise between rules, such as MGDA's safety and the mean's speed.",
    )

    def __init__(self, aggregators: Sequence[Aggregator], weights: Sequence[float] | Tensor | None = None) -> None:
        self.aggregators = list(aggregators)
        if not self.aggregators or not all(isinstance(rule, Aggregator) for rule in self.aggregators):
            raise ParameterError(f"Blend takes a list of aggregators, such as [MGDA(), Mean()]; got {aggregators!r}")
        shares = [1.0] * len(self.aggregators) if weights is None else weights
        array = as_weights(shares, "weights")
        if len(array) != len(self.aggregators):
            raise ParameterError(
                f"Blend has {len(self.aggregators)} aggregators, but {len(array)} weights; give one for each"
            )
        self.weights_of_rules = array / array.sum()
        self.needs = frozenset[str]().union(*(rule.needs for rule in self.aggregators))

    @property
    def guarantee(self) -> Guarantee:
        """The properties that all parts guarantee, with the smallest constant."""
        parts = [
            rule.guarantee for rule, share in zip(self.aggregators, self.weights_of_rules, strict=True) if share > 0.0
        ]
        if len(parts) == 1:
            return parts[0]
        # The lengths of the parts, and so their mixture, may depend on the norms of the gradients.
        common, aligned = replace(Guarantee.shared(parts), scale_invariant=False), Guarantee.common_alignment(parts)
        if aligned is None or not common.beyond_hull:
            return replace(common, note="The parts share no condition (A).")
        safe = common.non_conflicting and common.in_hull
        theorem = "thm:cvg_nonconflict" if safe else "thm:PS-cvx"
        return replace(common, theorem=theorem, alignment=aligned.alignment, F=aligned.F)

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:
        for rule in self.aggregators:
            rule.observe(losses)

    @contextmanager
    def one_step(self) -> Iterator[None]:
        with ExitStack() as steps:
            for rule in self.aggregators:
                steps.enter_context(rule.one_step())
            yield

    def _turn_to(self, part: int) -> None:
        for rule in self.aggregators:
            rule._turn_to(part)

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._blend(lambda rule: rule._answer(G, eps))

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._blend(lambda rule: rule._least_answer(G, eps))

    def _blend(self, ask: Callable[[Aggregator], Outcome]) -> Outcome:
        with self.one_step():  # if one part fails, no part counts a step
            outcomes = [ask(rule) for rule in self.aggregators]
        weights = np.einsum("j,jk->k", self.weights_of_rules, np.stack([outcome.weights for outcome in outcomes]))
        return Outcome(
            weights,
            max((outcome.status for outcome in outcomes), key=SEVERITY.index),
            max(outcome.residual for outcome in outcomes),
            sum(outcome.steps for outcome in outcomes),
        )

    def state_dict(self) -> dict[str, Any]:
        return {str(j): state for j, rule in enumerate(self.aggregators) if (state := rule.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for j, rule in enumerate(self.aggregators):
            rule.load_state_dict(state.get(str(j), {}))

    def __repr__(self) -> str:
        return f"Blend({self.aggregators}, {shown_value(self.weights_of_rules)})"
