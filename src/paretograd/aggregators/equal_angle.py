"""Rules that ask for equal projections on all unit gradients: IMTL-G and ConFIG."""

from __future__ import annotations

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.geometry.gramian import Array, UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Status
from paretograd.solvers.lapack import solve_psd, solve_spd


def _equal_angle(unit: UnitGramian) -> tuple[Array, Array | None]:
    """Weights y of the unit gradients with ``C y = 1``; where C is singular, pinv's, and C's null vectors."""
    ones = np.ones(len(unit.norms))
    y = solve_spd(unit.C.copy(), ones)
    return (y, None) if y is not None else solve_psd(unit.C, ones, cutoff=8.0 * len(ones) * unit.eps)


def _impartial(unit: UnitGramian) -> Array:
    """``pinv(G) n`` with ``n_k = |g_k|``, up to scale: the shortest weights of least error where G is singular."""
    inverse = unit.norms.min() / unit.norms
    y, null = _equal_angle(unit)
    if null is None:
        return np.asarray(y * inverse)
    if np.abs(unit.C @ y - 1.0).max() <= 1e-7:
        # Equal projections exist; among the weights that give them, y / norms + null vectors, take the shortest.
        free = null * inverse[:, None]
        shift, *_ = np.linalg.lstsq(free, -y * inverse, rcond=None)
        return np.asarray(y * inverse + free @ shift)
    lengths = unit.norms / unit.norms.max()
    return solve_psd(unit.C * lengths * lengths[:, None], lengths, cutoff=8.0 * len(lengths) * unit.eps)[0]


class IMTLG(GramianAggregator):
    r"""Impartial multi-task learning: the direction with equal projections on all unit gradients.

    $$ w = (J J^\top)^\dagger\, n, \quad n_k = \|g_k\|, \qquad\text{then } w \leftarrow w / \textstyle\sum_k w_k $$

    The last division may flip the sign: d can conflict with every gradient (the paper's counter-example).
    """

    name = "imtl-g"
    label = "IMTL-G"
    description = Description(
        formula="w = (J J.T)^+ n with n_k = |g_k|, then w <- w / sum(w)",
        reference="Liu et al. 2021, ICLR ('Towards Impartial Multi-task Learning')",
        paper="appendix IMTL-G; Table 1",
        when="To compare with. It may conflict with all gradients at once: check its certificate.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """None: neither in the cone nor in the dual cone in general."""
        return Guarantee(None, note="The paper's counter-example conflicts with all gradients.")

    def _solve(self, unit: UnitGramian) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.zeros(unit.m), Status.STATIONARY)
        weights = _impartial(unit)
        total, size = float(weights.sum()), float(np.abs(weights).sum())
        if abs(total) <= 4.0 * unit.eps * size or size == 0.0:
            return Outcome(np.zeros(unit.m), Status.DEGENERATE, 1.0, 1)
        return Outcome(unit.expand(weights / total), Status.OPTIMAL, 0.0, 1)


class ConFIG(GramianAggregator):
    r"""Conflict-free inverse gradients: equal angles to all gradients, with the length of their projections.

    $$ u = \frac{\hat J^\dagger \mathbf 1}{\|\hat J^\dagger \mathbf 1\|}, \qquad
       d = \Big(\sum_k \langle g_k, u \rangle\Big)\, u $$

    where the rows of $\hat J$ are the unit gradients.
    """

    name = "config"
    label = "ConFIG"
    description = Description(
        formula="d = (sum_k <g_k, u>) u,  u = unit vector along pinv(unit gradients) 1",
        reference="Liu et al. 2025, arXiv:2408.11104",
        paper="appendix IMTL-G (remark)",
        when="Physics-informed networks, with gradients that are linearly independent.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """None in general: conflict-free only where the gradients are linearly independent."""
        return Guarantee(None, note="Non-conflicting only where the gradients are linearly independent.")

    def _solve(self, unit: UnitGramian) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.zeros(unit.m), Status.STATIONARY)
        y, _ = _equal_angle(unit)
        slopes = unit.C @ y
        square = float(y @ slopes)
        if square <= 4.0 * unit.eps * float(np.abs(y).sum()) ** 2:
            return Outcome(np.zeros(unit.m), Status.DEGENERATE, 1.0, 1)
        scale = float(unit.norms @ slopes) / square
        return Outcome(unit.expand(y * (scale / unit.norms)), Status.OPTIMAL, 0.0, 1)
