"""Aligned-MTL, from the eigenvalues of the exact Gramian with hundreds of digits."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np

from .fixed import Fixed
from .qp import Array

#: Products of float64 numbers are exact, and eigenvalues that are zero come out below 1e-300 of the largest.
_mp = mpmath.MPContext()
_mp.dps = 700


def aligned_mtl(J: Array | Fixed, scale: str = "min", preference: Array | None = None) -> Array:
    """The direction ``sigma V U.T p`` of ``J = U S V.T``; zero singular values do not count.

    Args:
        J: floats, or fractions in an array of objects.
        scale: which singular value sigma is.
        preference: p; 1/m each by default.
    """
    m = len(J)
    p = [_mp.mpf(1) / m] * m if preference is None else [_mp.mpf(float(x)) for x in preference]
    rows = _mp.matrix([[_exact(x) for x in row] for row in J.tolist()])
    values, U = _mp.eigsy(rows * rows.T)
    squares = [(values[j], j) for j in range(m) if values[j] > abs(values[m - 1]) * _mp.mpf(10) ** -300]
    if not squares:
        return np.zeros(J.shape[1])
    sizes = [square for square, _ in squares]  # in increasing order
    chosen = {"min": sizes[0], "median": sizes[(len(sizes) - 1) // 2], "rmse": _mp.fsum(sizes) / len(sizes)}[scale]
    weights = _mp.matrix(m, 1)
    for square, j in squares:
        share = _mp.fsum(U[k, j] * p[k] for k in range(m)) * _mp.sqrt(chosen / square)
        for k in range(m):
            weights[k] += share * U[k, j]
    return np.array([float(x) for x in rows.T * weights])


def _exact(value: float | Fraction) -> mpmath.mpf:
    numerator, denominator = value.as_integer_ratio()
    return _mp.mpf(numerator) / denominator
