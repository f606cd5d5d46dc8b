"""Rules with equal projections on all unit gradients: IMTL-G and ConFIG."""

from __future__ import annotations

import math

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Status
from paretograd.solvers.lapack import pivoted_qr, solve_factored, solve_triangular, spanning_rows
from paretograd.solvers.rank import rounding, spectrum, weights_if_independent, without_rounding


def _impartial(unit: UnitGramian) -> Array:
    """Return ``pinv(G) n`` with ``n_k = |g_k|``, up to scale.

    If the gradients are dependent, r of them span the others: ``J = D M B`` with the norms in D and unit rows in B, and
    ``pinv(G) = pinv(D M)' inv(B B') pinv(D M)``. Coefficients of M below the rounding error are set to zero. The norms
    may range over many decades, and a long gradient would amplify such coefficients to the size of a short one.
    """
    y = weights_if_independent(unit)
    if y is not None:
        return np.asarray(y * (unit.norms.min() / unit.norms))
    # Sort by decreasing norm: the given order then has no effect, and Householder's method is accurate row by row.
    order = np.argsort(-unit.norms, kind="stable")
    norms = unit.norms[order] / (math.sqrt(unit.norms.min()) * math.sqrt(unit.norms.max()))
    values, vectors = spectrum(unit)
    vectors = vectors[order]
    M, factor = spanning_rows((vectors * values) @ vectors.T, len(values))
    Q, R, columns = pivoted_qr(without_rounding(M, unit) * norms[:, None])
    slopes = np.empty(len(values))
    slopes[columns] = solve_triangular(R, Q.T @ norms)
    y = solve_factored(factor, without_rounding(slopes, unit))
    weights = np.empty(len(norms))
    weights[order] = Q @ solve_triangular(R, y[columns], transposed=True)
    return weights


class IMTLG(GramianAggregator):
    r"""Impartial multi-task learning: the direction with equal projections on all unit gradients.

    $$ w = (J J^\top)^\dagger\, n, \quad n_k = \|g_k\|, \qquad\text{then } w \leftarrow w / \textstyle\sum_k w_k $$

    The last division may flip the sign, and d may conflict with every gradient (the paper's counter-example).
    """

    name = "imtl-g"
    label = "IMTL-G"
    description = Description(
        formula="w = (J J.T)^+ n with n_k = |g_k|, then w <- w / sum(w)",
        reference="Liu et al. 2021, ICLR ('Towards Impartial Multi-task Learning')",
        paper="appendix IMTL-G; Table 1",
        when="For comparison. It may conflict with all gradients at once: check its certificate.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: in general d is neither in the cone nor in the dual cone."""
        return Guarantee(None, note="The paper's counter-example conflicts with all gradients.")

    def _solve(self, unit: UnitGramian) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.zeros(unit.m), Status.STATIONARY)
        weights = _impartial(unit)
        total, size = float(weights.sum()), float(np.abs(weights).sum())
        if abs(total) <= rounding(unit) * size:
            return Outcome(np.zeros(unit.m), Status.DEGENERATE, 1.0, 1)
        return Outcome(unit.expand(weights / total), Status.OPTIMAL, 0.0, 1)


class ConFIG(GramianAggregator):
    r"""Conflict-free inverse gradients: equal angles to all gradients, and the sum of their projections as length.

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
        """Condition (A) with equality: ``<d, sum_k g_k> = (sum_k <g_k, u>)^2 = |d|^2``.

        Theorem 1 applies with Gamma = |d|. It says nothing about gamma, because |d| may be smaller. Only for linearly
        independent gradients is d sure not to conflict.
        """
        return Guarantee(
            "thm:PS-fd",
            alignment=1.0,
            note="Theorem 1 bounds |d|, which may be smaller than gamma. Non-conflicting only where the gradients are "
            "linearly independent.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.zeros(unit.m), Status.STATIONARY)
        y = weights_if_independent(unit)
        if y is not None:  # all slopes are one
            weights = y * (unit.norms.sum() / y.sum() / unit.norms)
            return Outcome(unit.expand(weights), Status.OPTIMAL, 0.0, 1)
        values, vectors = spectrum(unit)
        shares = vectors.sum(axis=0)
        slopes = without_rounding(vectors @ shares, unit)
        if not slopes.any():
            return Outcome(np.zeros(unit.m), Status.DEGENERATE, 1.0, 1)
        length = float(unit.norms @ slopes)
        if abs(length) <= rounding(unit) * float(unit.norms @ np.abs(slopes)):
            return Outcome(np.zeros(unit.m), Status.OPTIMAL, 0.0, 1)
        y = vectors @ (shares / values)
        # A coefficient that is only rounding would become the largest weight if its gradient were by far the shortest.
        y[np.abs(y) <= min(rounding(unit), 8.0 * unit.eps / float(values.min())) * np.abs(y).max()] = 0.0
        y *= length / float(shares @ (shares / values))
        return Outcome(unit.expand(y / unit.norms), Status.OPTIMAL, 0.0, 1)
