"""CR-MOGM: the weights of any rule, averaged over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from paretograd.aggregators.base import Aggregator, Description
from paretograd.aggregators.memory import Memory, check_count, check_keys
from paretograd.aggregators.wrappers import Wrapper
from paretograd.checks import as_number, shown_value
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Status


class CRMOGM(Wrapper):
    r"""Correlation-reduced gradient manipulation: a moving average of a rule's weights.

    $$ \lambda_t = a\, \lambda_{t-1} + (1 - a)\, w_t, \qquad d_t = J_t^\top \lambda_t, \qquad \lambda_1 = w_1 $$

    Weights computed from a mini-batch depend on the noise of its gradients, which biases d. Averaged weights depend on
    it less: with a that grows to 1, the paper proves convergence to Pareto stationarity for stochastic gradients. The
    price is that d may conflict, even if no direction of the rule does. Averages of weights that are non-negative, or
    on the simplex, are so, too.

    The first step uses the rule's weights as they are. If the rule's weights are all zero, because it found no
    direction, so are those of the step, and the average stays as it was. Where the rule's weights are not unique, the
    smallest are averaged.

    Each call is a step. A batch is one step, and so is a call of `backward`. Each Gramian of a batch and each parameter
    group has an average of its own. `state_dict` saves them. The paper's a is no constant: it starts near 0, where the
    first average does not matter, and grows to 1 as the learning rate falls. To follow it, assign to ``momentum``, for
    example ``1 - lr / first_lr``. The default is the usual one of moving averages.

    Args:
        aggregator: the rule.
        momentum: share a of the weights before, at least 0 and below 1.
    """

    name = "cr-mogm"
    label = "CR-MOGM"
    description = Description(
        formula="w_t = a w_(t-1) + (1 - a) w of the rule",
        reference="Zhou et al. 2022, NeurIPS ('On the Convergence of Stochastic Multi-Objective Gradient ...')",
        paper="not discussed",
        when="Small batches, whose noise makes the weights of a rule jump.",
    )

    def __init__(self, aggregator: Aggregator, momentum: float = 0.9) -> None:
        super().__init__(aggregator)
        self.momentum = momentum
        self._memory: Memory[list[float]] = Memory()
        self.name, self.label = f"cr-mogm({aggregator.name})", f"CR-MOGM({aggregator.label})"  # type: ignore[misc]

    @property
    def momentum(self) -> float:
        """Share of the weights before, at least 0 and below 1."""
        return self._momentum

    @momentum.setter
    def momentum(self, value: float) -> None:
        if not 0.0 <= as_number(value, "momentum") < 1.0:
            raise ParameterError(f"momentum={value:g}: the share of the weights before is at least 0 and below 1")
        self._momentum = value

    @property
    def guarantee(self) -> Guarantee:
        """The cone and the hull, if the rule guarantees them: both are convex. Old weights may conflict."""
        inner = self.aggregator.guarantee
        if self.momentum == 0.0:
            return inner
        moving = inner.beyond_hull  # the average stays as it was if the rule's weights are all zero
        # Where weights are not unique, the smallest do not depend on the order, but rules in the hull return others.
        ordered = inner.in_hull or not self.aggregator._starred_guarantee().equivariant
        return replace(
            Guarantee.shared([inner]),
            non_conflicting=False,
            equivariant=not ordered,
            scale_invariant=False,
            continuous=moving and inner.continuous,
            continuous_inside=moving and inner.continuous_inside,
            recalls_lengths=inner.recalls_lengths or inner.degree != 1.0,
            note="Weights of earlier steps may conflict. For stochastic gradients the momentum has to grow to 1.",
        )

    @contextmanager
    def one_step(self) -> Iterator[None]:
        with self._memory.step(), self.aggregator.one_step():
            yield

    def _turn_to(self, part: int) -> None:
        self._memory.turn_to(part)
        self.aggregator._turn_to(part)

    def _answer(self, G: Array, eps: float) -> Outcome:
        with self.one_step():
            before = self._memory.recall()
            if before is not None:
                check_count(self.label, len(before), len(G))
            outcome = self.aggregator._least_answer(G, eps)
            if not outcome.weights.any():
                self._memory.keep(None)
                return outcome
            if before is not None:
                mixed = self.momentum * np.array(before) + (1.0 - self.momentum) * outcome.weights
                # Weights of earlier steps give a direction even if those of this one cancel all gradients.
                moving = self.momentum > 0.0 and outcome.status is Status.STATIONARY
                outcome = outcome._replace(weights=mixed, status=Status.OPTIMAL if moving else outcome.status)
            self._memory.keep(outcome.weights.tolist())
            return outcome

    def state_dict(self) -> dict[str, Any]:
        """Return the average of every part of a step, and the state of the rule."""
        return {"weights": self._memory.state_dict(), "rule": self.aggregator.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise for the state of another rule, and change nothing."""
        check_keys(self.label, state, {"weights", "rule"})
        kept = {str(int(part)): _weights(values) for part, values in state["weights"].items()}
        self.aggregator.load_state_dict(state["rule"])
        self._memory.load(kept)

    def __repr__(self) -> str:
        return f"CRMOGM({self.aggregator!r}, {shown_value(self.momentum)})"


def _weights(values: list[float]) -> list[float]:
    """Validate the average of one part."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ParameterError(f"CR-MOGM averages vectors of finite weights; got {values!r}")
    found: list[float] = array.tolist()
    return found
