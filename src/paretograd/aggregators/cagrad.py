"""CAGrad: conflict-averse gradient descent."""

from __future__ import annotations

import math

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_number
from paretograd.errors import ParameterError
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import MEAN, Guarantee
from paretograd.solution import Outcome, outcome_of
from paretograd.solvers.cagrad import conflict_averse_point


class CAGrad(GramianAggregator):
    r"""The best worst-case decrease within a ball around the mean gradient.

    $$ d = \arg\max_d\; \min_k \langle d, g_k \rangle
       \quad\text{subject to}\quad \|d - g_0\| \le c \|g_0\|, \qquad g_0 = \tfrac1m \sum_k g_k $$

    that is $d = g_0 + c \|g_0\|\, g_w / \|g_w\|$ with $g_w = J^\top w$ for w in the simplex. (The
    paper's formula drops the division by $\|g_w\|$.) Where the worst decrease does not fix d, at Pareto
    stationary points, d is the point nearest to $g_0$.

    Args:
        c: radius of the ball in units of the mean gradient's norm. 0 is the mean; from 1 on, no objective
            goes up.
    """

    name = "cagrad"
    label = "CAGrad"
    description = Description(
        formula="d = argmax of min_k <d, g_k> subject to |d - g0| <= c |g0|,  g0 = (1/m) sum_k g_k",
        reference="Liu et al. 2021, arXiv:2110.14048",
        paper="Table 1, CAGrad; Corollary 1",
        when="Stay close to the mean's solution while helping the worst-off objective; c sets how far.",
    )

    def __init__(self, c: float = 0.5) -> None:
        self.c = as_number(c, "c")
        if not 0.0 <= self.c < math.inf:
            raise ParameterError(f"c={c:g}: the radius is a finite number >= 0 (0 is the mean, >= 1 non-conflicting)")

    @property
    def guarantee(self) -> Guarantee:
        """For c <= 1, |d - g0| <= c|g0| and |d| <= (1+c)|g0| give <d, g0> >= |d|^2 / (1+c)."""
        if self.c <= 1.0:
            return Guarantee(
                "thm:PS-cvx",
                non_conflicting=self.c == 1.0,
                in_cone=True,
                beyond_hull=True,
                alignment=1.0 / (1.0 + self.c),
                F=MEAN,
            )
        return Guarantee(
            "thm:PS-fd",
            non_conflicting=True,
            in_cone=True,
            beyond_hull=True,
            note="With step 1/(L |w|_1), that is the starred variant with a constant step.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        return self._point(unit, least=False)

    def _solve_least(self, unit: UnitGramian) -> Outcome:
        return self._point(unit, least=True)

    def _point(self, unit: UnitGramian, least: bool) -> Outcome:
        m = unit.m
        found = conflict_averse_point(unit, np.full(m, 1.0 / m), self.c, least=least)
        return outcome_of(found)
