"""Small dense linear algebra with the least overhead: LAPACK through scipy, imported at the first solve.

Importing ``scipy.linalg`` takes a quarter of a second. A user who only imports the package should not pay for it.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

#: The square of a Cholesky pivot is the squared distance of a unit gradient from the span of those before it. Below
#: this it is mostly rounding (1e-16 times the growth over m steps): the matrix counts as singular.
SINGULAR = 1e-11

#: Singular values that differ by less than this factor lose three of sixteen digits by the usual method.
_SIMILAR = 1e-3

#: A row may be chosen next if its squared distance is at least this fraction of the largest. The number is no simple
#: ratio, so that rounding decides no tie between rows with simple entries.
_FAR = 0.37


@cache
def _blas() -> Any:
    from scipy.linalg import blas

    return blas


@cache
def _lapack() -> Any:
    from scipy.linalg import lapack

    return lapack


def add_square(A: Array, a: Array) -> Array:
    """``A + a a'`` for a symmetric A."""
    return _blas().dger(1.0, a, a, a=A.T).T  # type: ignore[no-any-return]


def solve_spd(A: Array, b: Array, singular: float = SINGULAR) -> Array | None:
    """Solve ``A x = b`` for a positive definite A with a diagonal near one, overwriting A; None if A is singular.

    A counts as singular if the square of a pivot is below ``singular``.
    """
    # A.T is column-major, so LAPACK makes no copy and overwrites A, a temporary of the caller.
    factor, x, info = _lapack().dposv(A.T, b, 1, 1)
    pivots = factor.diagonal()
    if info != 0 or pivots[pivots.argmin()] ** 2 < singular:
        return None
    return x  # type: ignore[no-any-return]


def cholesky(A: Array, singular: float = SINGULAR) -> Array | None:
    """Return the lower Cholesky factor of A, with a diagonal near one; None if A is singular, as for `solve_spd`."""
    factor, info = _lapack().dpotrf(A, lower=1, clean=1)
    pivots = factor.diagonal()
    if info != 0 or pivots[pivots.argmin()] ** 2 < singular:
        return None
    return factor  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _shift(m: int, resolution: float) -> Array:
    return (10.0 * resolution) ** 2 * np.eye(m)


def is_regular(A: Array, resolution: float) -> bool:
    """Return True if vectors with these inner products are far from dependent: eigenvalues above (10 resolution)^2."""
    return _lapack().dpotrf(A - _shift(len(A), resolution), 1, 0, 1)[1] == 0  # type: ignore[no-any-return]


def solve_triangular(R: Array, b: Array, *, transposed: bool = False) -> Array:
    """Solve ``R x = b``, or ``R' x = b``, for an upper triangular R."""
    if not len(b):
        return b
    return _lapack().dtrtrs(R, b, trans=int(transposed))[0]  # type: ignore[no-any-return]


def pivoted_cholesky(A: Array, least: float) -> tuple[Array, NDArray[np.intp], int]:
    """Return L with ``L L' = A[order][:, order]`` in its first ``rank`` columns: the largest pivots, down to ``least``.

    Rounding decides ties. `spanning_rows` is slower and decides them by the order of the rows.
    """
    factor, order, rank, _ = _lapack().dpstrf(A, tol=least, lower=1)
    return factor, order - 1, int(rank)


def spd_solver() -> Any:
    """LAPACK's ``dposv(a, b, lower, overwrite_a, overwrite_b)``, for loops in which every microsecond counts."""
    return _lapack().dposv


def solve_scaled_spd(A: Array, b: Array) -> Array:
    """Solve ``A x = b`` for a positive definite A whose diagonal may range over hundreds of decades."""
    scale = 1.0 / np.sqrt(A.diagonal())
    S = A * scale
    S *= scale[:, None]
    right, shift = b * scale, 4e-16 * len(b)
    _, y, info = _lapack().dposv(S, right, lower=1)
    for _ in range(20):
        if info == 0:
            break
        S.ravel()[:: len(b) + 1] += shift  # indefinite by rounding: shift the unit diagonal by as much
        _, y, info = _lapack().dposv(S, right, lower=1)
        shift *= 4.0
    return y * scale  # type: ignore[no-any-return]


def spanning_rows(C: Array, rank: int) -> tuple[Array, Array]:
    """Choose ``rank`` rows that span all m rows with Gramian C, by pivoted Cholesky that prefers early rows.

    Returns:
        coefficients of shape ``(m, rank)`` that express all rows by the chosen ones, and the lower Cholesky factor of
        the Gramian of the chosen ones.
    """
    left, factor = C.copy(), np.empty((len(C), rank))
    chosen = []
    for j in range(rank):
        gaps = left.diagonal()  # squared distances from the span of those chosen
        k = int((gaps >= _FAR * gaps.max()).argmax())
        factor[:, j] = left[:, k] / gaps[k] ** 0.5
        left -= np.outer(factor[:, j], factor[:, j])
        chosen.append(k)
    square = np.tril(factor[chosen])
    coefficients = solve_triangular(square.T, factor.T).T
    coefficients[chosen] = np.eye(rank)
    return coefficients, square


def solve_factored(L: Array, b: Array) -> Array:
    """Solve ``L L' x = b`` for a lower triangular L."""
    return _lapack().dpotrs(L, b, lower=1)[0]  # type: ignore[no-any-return]


def pivoted_qr(A: Array) -> tuple[Array, Array, NDArray[np.intp]]:
    """Return Q with orthonormal columns, R and the columns with ``A[:, columns] = Q R``, by pivoted Householder QR."""
    from scipy.linalg import qr

    return qr(A, mode="economic", pivoting=True)  # type: ignore[no-any-return]


def graded_svd(A: Array) -> tuple[Array, Array, Array]:
    """Return U, s and V with ``A = U diag(s) V'`` for a square A whose columns may have very different norms.

    One-sided Jacobi finds every singular value to full relative accuracy if A is a well-conditioned matrix times a
    diagonal one. The usual method loses those below 1e-16 of the largest. It is quicker, and its answer is kept if all
    values are of similar size.
    """
    U, values, transposed, info = _lapack().dgesdd(A)
    if info == 0 and values[-1] >= _SIMILAR * values[0]:
        return U, values, transposed.T
    # The columns need full accuracy ("C"), no small value counts as noise, and A is neither transposed nor perturbed.
    values, U, V, scales, _, info = _lapack().dgejsv(A, joba=0, jobu=0, jobv=0, jobr=0, jobt=1, jobp=1)
    if info != 0:
        raise np.linalg.LinAlgError(f"Jacobi's method did not converge: dgejsv returned {info}")
    return U, values * (scales[0] / scales[1]), V
