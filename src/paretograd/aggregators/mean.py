"""Linear scalarisation: fixed weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.checks import as_weights
from paretograd.geometry.gramian import Array
from paretograd.geometry.validation import check_finite, plain_size
from paretograd.guarantees import MEAN, Guarantee, Surrogate
from paretograd.solution import Outcome


class Mean(Aggregator):
    r"""The average gradient, or a fixed weighting (eq. ls_update).

    $$ d = \frac1m \sum_k g_k \qquad\text{or}\qquad d = \sum_k \omega_k g_k $$

    Args:
        weights: non-negative, one per objective; None for 1/m each.
    """

    name = "mean"
    label = "Mean"
    description = Description(
        formula="d = (1/m) sum_k g_k",
        reference="linear scalarisation; folklore",
        paper="eq. ls_update; Table 1, LS (Uniform)",
        when="The baseline. Cheapest; may increase an objective whose gradient is small or outvoted.",
    )

    def __init__(self, weights: Sequence[float] | Tensor | None = None) -> None:
        self._fixed = None if weights is None else as_weights(weights, "weights")

    @property
    def guarantee(self) -> Guarantee:
        """Gradient descent on F itself: (A) holds with equality, c = 1."""
        if self._fixed is None:
            return Guarantee("thm:PS-cvx", in_hull=True, alignment=1.0, F=MEAN)
        beyond = bool(self._fixed.sum() >= 1.0 - 1e-12)
        return Guarantee(
            "thm:PS-cvx" if beyond else "thm:PS-fd",
            in_cone=True,
            in_hull=bool(abs(self._fixed.sum() - 1.0) <= 1e-12),
            beyond_hull=beyond,
            alignment=1.0,
            F=Surrogate(tuple(self._fixed.tolist())),
            equivariant=False,
        )

    def weights(self, gramian: Tensor) -> Tensor:
        m = plain_size(gramian)
        if m == 0 or self._fixed is not None:
            return super().weights(gramian)
        uniform = np.empty(m, dtype=np.float32)
        uniform.fill(1.0 / m)
        return torch.from_numpy(uniform)

    def _answer(self, G: Array, eps: float) -> Outcome:
        m = len(G)
        check_finite(G)
        if self._fixed is None:
            return Outcome(np.full(m, 1.0 / m))
        return Outcome(as_weights(self._fixed, "weights", m).copy())

    def __repr__(self) -> str:
        return "Mean()" if self._fixed is None else f"Mean(weights={self._fixed.tolist()})"
