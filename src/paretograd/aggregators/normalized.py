"""The starred variant of a rule, whose weights are divided by the sum of their magnitudes."""

from __future__ import annotations

from paretograd.aggregators.base import Aggregator, Description
from paretograd.aggregators.wrappers import Wrapper
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Status


class Normalized(Wrapper):
    r"""A rule rescaled so that the magnitudes of its weights sum to one (appendix "Methods").

    $$ w \leftarrow w / \|w\|_1 $$

    Only the length of the direction changes. If the weights are non-negative, the direction then lies in the convex
    hull of the gradients. This removes the dynamic step size of rules such as Nash-MTL, whose direction has the same
    length at any distance from stationarity. A non-conflicting direction in the cone becomes one that Theorem 2 covers
    with a constant step.

    Args:
        aggregator: the rule to normalize.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator if not isinstance(aggregator, Normalized) else aggregator.aggregator)
        self.name = f"{self.aggregator.name}*"  # type: ignore[misc]
        self.label = f"{self.aggregator.label}*"  # type: ignore[misc]
        inner = self.aggregator.description
        self.description = Description(  # type: ignore[misc]
            formula=f"{inner.formula}; then w <- w / |w|_1",
            reference=inner.reference,
            paper="appendix 'Methods' (starred variants)",
            when=f"{inner.when} Starred: the step size alone sets the length of the step.",
        )

    @property
    def guarantee(self) -> Guarantee:
        return self.aggregator._starred_guarantee()

    def _answer(self, G: Array, eps: float) -> Outcome:
        outcome = self.aggregator._least_answer(G, eps)
        size = float(abs(outcome.weights).sum())
        if size > 0.0:
            return outcome._replace(weights=outcome.weights / size)
        return outcome._replace(status=Status.DEGENERATE) if outcome.status is Status.OPTIMAL else outcome

    def __repr__(self) -> str:
        return f"{self.aggregator!r}.normalized()"
