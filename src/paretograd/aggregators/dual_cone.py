"""Rules that project each gradient onto the dual cone: UPGrad and Greedy-DCP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_weights
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, outcome_of
from paretograd.solvers.dual_cone import project_and_average, project_gradients

#: c = 1: <d, q> = |d|^2 for a projection d of q, and <d, grad F> >= <d, q> because d conflicts with no gradient.
#: The projection is continuous if the dual cone has interior points, that is, if gamma > 0.
_PROJECTED = Guarantee(
    "thm:PS_proj_cvg", non_conflicting=True, in_cone=True, beyond_hull=True, alignment=1.0, continuous_inside=True
)


class UPGrad(GramianAggregator):
    r"""Unconflicting projection: project every gradient onto the dual cone, then average.

    $$ d = \frac1m \sum_k p_k, \qquad p_k = \mathrm{proj}_{\{d : J d \ge 0\}}(g_k) $$

    Args:
        preference: non-negative weights of the average; None for 1/m each.
    """

    name = "upgrad"
    label = "UPGrad"
    description = Description(
        formula="d = (1/m) sum_k p_k,  p_k = projection of g_k onto {d : J d >= 0}",
        reference="Quinton and Rey 2024, arXiv:2406.16232",
        paper="Table 1, UPGrad; Corollary 2",
        when="A good first choice: no objective goes up, and every gradient contributes in proportion to its norm.",
    )

    def __init__(self, preference: Sequence[float] | Tensor | None = None) -> None:
        self.preference = None if preference is None else as_weights(preference, "preference").tolist()

    @property
    def guarantee(self) -> Guarantee:
        """Corollary 2, with a constant that holds for any preference u.

        F is the sum, as for the uniform preference. Let ``p_k`` be the projection of ``g_k``. It conflicts with no
        gradient, so ``<p_k, grad F> >= <p_k, g_k> = |p_k|^2``. Also ``|sum_k u_k p_k|^2 <= |u|_1 sum_k u_k |p_k|^2``.
        Together they give c = 1 / |u|_1. (For F = sum_k u_k f_k the same proof gives 1/m.)
        """
        if self.preference is None:
            return _PROJECTED
        total = sum(self.preference)
        return replace(
            _PROJECTED,
            beyond_hull=total >= 1.0 - 1e-12,
            alignment=1.0 / max(1.0, total),
            equivariant=False,
            note="" if abs(total - 1.0) < 1e-12 else "The preference does not sum to 1: the step scales with its sum.",
        )

    def _average(self, m: int) -> Array:
        return np.full(m, 1.0 / m) if self.preference is None else as_weights(self.preference, "preference", m)

    def _solve(self, unit: UnitGramian) -> Outcome:
        return outcome_of(project_and_average(unit, self._average(unit.m)))

    def _solve_least(self, unit: UnitGramian) -> Outcome:
        return outcome_of(project_and_average(unit, self._average(unit.m), least=True))


class GreedyDCP(GramianAggregator):
    r"""Greedy aggregation with dual-cone projection: the longest of UPGrad's projected gradients.

    $$ d = p_i, \qquad i = \arg\max_k \|p_k\|, \qquad p_k = \mathrm{proj}_{\{d : J d \ge 0\}}(g_k) $$

    Ties go to the first objective.
    """

    name = "greedy-dcp"
    label = "Greedy-DCP"
    description = Description(
        formula="d = p_i with i = argmax_k |p_k|,  p_k = projection of g_k onto {d : J d >= 0}",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="appendix new_aggr2; Corollary 2",
        when="The largest safe step at every iteration, whichever objective it serves.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of UPGrad, but the order of the objectives breaks ties, at which the direction jumps."""
        return replace(_PROJECTED, equivariant=False, continuous_inside=False, note="Ties go to the first objective.")

    def _solve(self, unit: UnitGramian) -> Outcome:
        found = project_gradients(unit)
        scaled = unit.restrict(found.weights) * unit.norms
        squares = np.maximum(np.einsum("ki,ki->k", scaled @ unit.C, scaled), 0.0)
        # Values that differ only by rounding are ties: the first of them wins on every machine.
        best = int(np.flatnonzero(squares >= squares.max() * (1.0 - 1e-12))[0])
        return outcome_of(found._replace(weights=found.weights[best]))
