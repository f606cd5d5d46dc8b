"""Krum and Multi-Krum, which follow the gradients that are closest to others."""

from __future__ import annotations

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_count
from paretograd.errors import ParameterError
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome
from paretograd.solvers.krum import nearest_to_their_neighbours


class Krum(GramianAggregator):
    r"""The gradient that is closest to its nearest neighbours, or the mean of several such gradients (Multi-Krum).

    $$ d = \frac1s \sum_{k \in S} g_k, \qquad S = \text{the } s \text{ smallest of }
       \sum_{i \in N_k} \|g_k - g_i\|^2 $$

    $N_k$ are the $m - f - 2$ gradients nearest to $g_k$, and f is the number of gradients that an attacker may have
    made up. The paper requires $m \ge 2f + 3$. Gradients whose sums differ by no more than rounding tie, and the first
    of them wins.

    Args:
        attackers: the number f of hostile objectives; None for the most that m allows, $(m - 3) / 2$ rounded down.
        selected: the number s of gradients to average; None for $m - f$. If it exceeds m, it counts as m.
    """

    name = "krum"
    label = "Krum"
    description = Description(
        formula="d = mean of the s gradients with the least sum of |g_k - g_i|^2 over the m - f - 2 nearest g_i",
        reference="Blanchard et al. 2017, arXiv:1703.02757",
        paper="not discussed",
        when="Some gradients may be hostile, and the others are alike, as in federated learning.",
    )

    def __init__(self, attackers: int | None = None, selected: int | None = 1) -> None:
        self.attackers = None if attackers is None else as_count(attackers, "attackers", 0)
        self.selected = None if selected is None else as_count(selected, "selected", 1)

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee beyond the convex hull: one gradient may conflict with any other."""
        note = "It follows some of the gradients. Ties go to the first objective."
        return Guarantee(None, in_hull=True, equivariant=False, note=note)

    def _solve(self, unit: UnitGramian) -> Outcome:
        m = unit.m
        attackers = max((m - 3) // 2, 0) if self.attackers is None else self.attackers
        if attackers and m < 2 * attackers + 3:
            raise ParameterError(
                f"Krum with attackers={attackers} needs m >= {2 * attackers + 3} gradients; got m={m}. "
                "attackers=None takes the most that m allows"
            )
        count = min(m - attackers if self.selected is None else self.selected, m)
        weights = np.zeros(m)
        weights[nearest_to_their_neighbours(unit, max(m - attackers - 2, 0), count)] = 1.0 / count
        return Outcome(weights)
