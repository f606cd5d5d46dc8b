"""Aligned-MTL, which replaces the gradients by orthogonal vectors of one length before it adds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_weights
from paretograd.errors import ParameterError
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import MEAN, Guarantee, Surrogate
from paretograd.solution import Outcome, Status
from paretograd.solvers.aligned import Scale, align


class AlignedMTL(GramianAggregator):
    r"""Independent component alignment: make all singular values of the Jacobian equal, then take the mean.

    $$ w = \sigma\, (J J^\top)^{-1/2} p, \qquad d = J^\top w $$

    With the singular value decomposition $J = U S V^\top$ this is $d = \sigma V U^\top p$. If the gradients are
    dependent, only the non-zero part of the spectrum counts, as in the paper.

    With ``scale="min"`` condition (A) holds with c = 1 for $F = \sum_k p_k f_k$ and every Jacobian:
    $\langle d, \nabla F \rangle = \sigma\, p^\top U S U^\top p \ge \sigma^2 \|U^\top p\|^2 = \|d\|^2$. But no theorem
    covers the rule, because its steps have no lower bound: if the gradients are independent and p is uniform, then
    $\|d\| = \sigma / \sqrt m \le \gamma$. So the rule slows down where gradients become dependent, which may be far
    from any stationary point. Weights may be negative, and d may conflict.

    In the paper, p is given. The authors' code has ones for p, and so a direction m times as long as our default.

    Args:
        scale: the singular value sigma: ``"min"``, the smallest non-zero one (the paper); ``"median"``; or ``"rmse"``,
            the root of their mean square. The last two are options of the original code.
        preference: non-negative weights p of the objectives; None for 1/m each.
    """

    name = "aligned-mtl"
    label = "Aligned-MTL"
    description = Description(
        formula="w = s (J J.T)^(-1/2) p,  s = smallest singular value of J,  d = J.T w",
        reference="Senushkin et al. 2023, arXiv:2305.19000",
        paper="not discussed",
        when="You want given shares p of objectives whose gradients differ in length. It may conflict.",
    )

    def __init__(self, scale: Scale = "min", preference: Sequence[float] | Tensor | None = None) -> None:
        if scale not in get_args(Scale):
            raise ParameterError(f"scale={scale!r}: use 'min' (the paper), 'median' or 'rmse'")
        self.scale = scale
        self.preference = None if preference is None else as_weights(preference, "preference").tolist()

    @property
    def guarantee(self) -> Guarantee:
        """Condition (A) with c = 1 for the smallest singular value, but no theorem: there is no bound |d| >= gamma."""
        F = MEAN if self.preference is None else Surrogate(tuple(self.preference))
        aligned = self.scale == "min"
        return Guarantee(
            None,
            alignment=1.0 if aligned else None,
            F=F,
            equivariant=self.preference is None,
            note="(A) holds with c = 1, but steps vanish where gradients become dependent: |d| <= gamma is usual."
            if aligned
            else "Condition (A) holds for scale=min only.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        m = unit.m
        p = np.full(m, 1.0 / m) if self.preference is None else as_weights(self.preference, "preference", m)
        if not len(unit.norms):
            return Outcome(np.zeros(m), Status.STATIONARY)
        return Outcome(align(unit, p, self.scale), Status.OPTIMAL, 0.0, 1)
