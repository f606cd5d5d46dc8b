"""GradNorm, which learns weights that balance the lengths of the gradients and the rates of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.checks import as_positive_losses, as_rate, observed_losses
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome

#: Least weight after a step, before the division by the mean: the paper's step may make a weight negative.
_LEAST = 1e-6


class GradNorm(Aggregator):
    r"""Gradient normalization: weights that give slow objectives longer gradients.

    $$ G_k = w_k \|g_k\|, \qquad r_k = \frac{f_k / f_k^{(1)}}{\frac1m \sum_j f_j / f_j^{(1)}}, \qquad
       w \leftarrow w - \eta\, \nabla_w \sum_k \big| G_k - \bar G\, r_k^\alpha \big|, \qquad d = J^\top w $$

    with $\bar G = \frac1m \sum_k G_k$, the target $\bar G r_k^\alpha$ taken as a constant, and weights that are then
    divided by their mean. As in the paper, a step uses the weights from before it. The paper takes the norms over the
    last shared layer only; here they are those of all shared parameters. Its algorithm leaves the update of the weights
    open, and its experiments use Adam; here it is a plain step. Such a step could make a weight negative, so each is
    raised to 1e-6 at least before the division.

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
        self._w: Array | None = None
        self._first: Array | None = None
        self._losses: Array | None = None

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

    def observe(self, losses: Tensor | Sequence[float]) -> None:
        self._losses = as_positive_losses(losses, self.label)

    def _answer(self, G: Array, eps: float) -> Outcome:
        unit = unit_gramian(G, eps)
        losses, norms = observed_losses(self._losses, self.label, unit.m), unit.expand(unit.norms)
        first = losses if self._first is None else self._first
        w = np.ones(unit.m) if self._w is None else self._w
        self._losses, self._first = None, first
        rates = losses / first
        lengths = w * norms
        target = lengths.mean() * (rates / rates.mean()) ** self.alpha
        after = np.maximum(w - self.lr * np.sign(lengths - target) * norms, _LEAST)
        self._w = after / after.mean()
        return Outcome(w)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": _plain(self._w), "first": _plain(self._first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        found = [None if state[key] is None else np.array(state[key], dtype=np.float64) for key in ("weights", "first")]
        (self._w, self._first), self._losses = found, None


def _plain(values: Array | None) -> list[float] | None:
    return None if values is None else values.tolist()
