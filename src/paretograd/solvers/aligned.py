"""The inverse square root of a Gramian, applied to a vector: what Aligned-MTL needs."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solvers.lapack import graded_svd, pivoted_qr, solve_triangular, spanning_rows
from paretograd.solvers.rank import factor_if_independent, rounding, spectrum, without_rounding

Scale = Literal["min", "median", "rmse"]


def align(unit: UnitGramian, preference: Array, scale: Scale) -> Array:
    r"""Return $\sigma\, G^{-1/2} p$, with the pseudo-inverse if the gradients are dependent.

    Eigenvalues of G itself would lose the short gradients if norms range over more than eight decades. So let r of the
    rows span the others: ``J = D M B`` with the norms in D, unit rows in B, and ``B B' = L L'``. Householder's method
    on the sorted rows gives ``D M = Q R``, accurate row by row, and one-sided Jacobi ``R L = V S A'``, in which only
    the well-conditioned L limits the accuracy. The non-zero spectrum of G is then S squared, with the vectors QV. If
    the gradients are independent, M is the identity, and so is Q.

    The weights w are those in the span of Q with ``J.T w = sigma B' inv(L') A V'Q'p``: there is no division by a small
    singular value.

    Args:
        unit: the Gramian, with at least one gradient that is not zero.
        preference: p, shape ``(m,)``.
        scale: which singular value sigma is: the smallest, the median, or the root of the mean square.
    """
    norms = unit.norms / (math.sqrt(unit.norms.min()) * math.sqrt(unit.norms.max()))
    p = unit.restrict(preference)
    L = factor_if_independent(unit)
    if L is not None:
        A, S, V = graded_svd(L.T * norms)
        return unit.expand(solve_triangular(L.T, _chosen(S, scale) * (A @ (p @ V))) / norms)
    order = np.argsort(-norms, kind="stable")
    values, vectors = spectrum(unit)
    vectors = vectors[order]
    M, L = spanning_rows((vectors * values) @ vectors.T, len(values))
    Q, R, columns = pivoted_qr(without_rounding(M, unit) * norms[order, None])
    A, S, V = graded_svd((R @ L[columns]).T)
    shares = V.T @ (Q.T @ p[order])
    if np.linalg.norm(shares) <= rounding(unit) * np.linalg.norm(p):  # J.T p is zero, and so is the direction
        return np.zeros(unit.m)
    sums = solve_triangular(L.T, _chosen(S, scale) * (A @ shares))
    weights = np.empty(len(p))
    weights[order] = Q @ solve_triangular(R, sums[columns], transposed=True)
    return unit.expand(weights)


def _chosen(S: Array, scale: Scale) -> float:
    """Return the singular value for a scale. S is sorted in decreasing order."""
    if scale == "min":
        return float(S[-1])
    if scale == "median":  # the lower of two middle ones, as in the original code
        return float(S[len(S) // 2])
    return float(S[0] * math.sqrt(np.square(S / S[0]).mean()))
