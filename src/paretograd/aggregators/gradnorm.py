"""GradNorm, which learns weights that balance the lengths of the gradients and the rates of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.aggregators.memory import Memory, check_count, check_keys
from paretograd.checks import as_positive_losses, as_rate, as_weights, observed_losses
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome

#: Least weight after a step, before the division by the mean: the paper's step may make a weight negative.
_LEAST = 1e-6


class Balance(NamedTuple):
    """The weights for the next step, and the losses of the first one, both ``(m,)``."""

    weights: list[float]
    first: list[float]


class GradNorm(Aggregator):
    r"""Gradient normalization: weights that give slow objectives longer gradients.

    $$ G_k = w_k \|g_k\|, \qquad r_k = \frac{f_k / f_k^{(1)}}{\frac1m \sum_j f_j / f_j^{(1)}}, \qquad
       w \leftarrow w - \eta\, \nabla_w \sum_k \big| G_k - \bar G\, r_k^\alpha \big|, \qquad d = J^\top w $$

    with $\bar G = \frac1m \sum_k G_k$, the target $\bar G r_k^\alpha$ taken as a constant, and weights that are then
    divided by their mean. As in the paper, a step uses the weights from before it. The paper takes the norms over the
    last shared layer only; here they are those of all shared parameters. Its algorithm leaves the update of the weights
    open, and its experiments use Adam; here it is a plain step. Such a step could make a weight negative, so each is
    raised to 1e-6 at least before the division.

    Each call is a step. A batch is one step, and so is a call of `backward`. Each Gramian of a batch and each parameter
    group has weights of its own. `state_dict` saves them, and the losses of the first step.

    Args:
        alpha: strength with which the rates of training are balanced; the default is the paper's for NYUv2.
        lr: step size $\eta$ of the weights. The gradient of the weights is as long as the gradients of the losses.
    """

    name = "gradnorm"
    label = "GradNorm"
    needs = frozenset({"gramian", "losses"})
    description = Description(
        formula="w <- w - lr grad_w sum_k |w_k |g_k| - mean_j(w_j |g_j|) r_k^alpha|, mean 1;  d = J.T w",
        reference="Chen et al. 2018, arXiv:1711.02257",
        paper="not discussed",
        when="Tasks that train at different rates; with positive losses.",
    )

    def __init__(self, alpha: float = 1.5, lr: float = 0.025) -> None:
        self.alpha, self.lr = as_rate(alpha, "alpha"), as_rate(lr, "lr")
        self._losses: Array | None = None
        self._memory: Memory[Balance] = Memory()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee for a step: the weights are positive, and follow the past."""
        return Guarantee(
            None,
            beyond_hull=True,
            degree=None,
            continuous=True,
            note="Positive weights with mean one, which depend on the steps before.",
        )

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:
        self._losses = as_positive_losses(losses, self.label)

    @contextmanager
    def one_step(self) -> Iterator[None]:
        inside = self._memory.in_step
        with self._memory.step():
            yield
        if not inside:
            self._losses = None

    def _turn_to(self, part: int) -> None:
        self._memory.turn_to(part)

    def _answer(self, G: Array, eps: float) -> Outcome:
        with self.one_step():
            unit = unit_gramian(G, eps)
            losses, norms = observed_losses(self._losses, self.label, unit.m), unit.expand(unit.norms)
            before = self._memory.recall() or Balance([1.0] * unit.m, losses.tolist())
            check_count(self.label, len(before.weights), unit.m)
            w, rates = np.array(before.weights), losses / np.array(before.first)
            lengths = w * norms
            target = lengths.mean() * (rates / rates.mean()) ** self.alpha
            after = np.maximum(w - self.lr * np.sign(lengths - target) * norms, _LEAST)
            self._memory.keep(before._replace(weights=(after / after.mean()).tolist()))
            return Outcome(w)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the first losses of every part of a step."""
        kept = self._memory.state_dict()
        return {"balances": {part: {"weights": found.weights, "first": found.first} for part, found in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise for the state of another rule, and change nothing."""
        check_keys(self.label, state, {"balances"})
        kept = {part: _balance(found) for part, found in state["balances"].items()}
        self._memory.load(kept)
        self._losses = None


def _balance(found: Mapping[str, Any]) -> Balance:
    """Validate the numbers of one part."""
    weights = as_weights(found["weights"], "weights")
    first = as_weights(found["first"], "first", len(weights))
    return Balance(weights.tolist(), first.tolist())
