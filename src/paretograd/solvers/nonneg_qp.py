"""One quadratic program behind most of the rules: ``min a'Ha/2 + q'a  subject to  a >= 0``.

H is positive semidefinite with a diagonal near one. Two methods, both checked by the same optimality conditions:

1. block principal pivoting (Judice and Pires 1994): guess which entries are positive, solve for them by Cholesky,
   exchange *all* entries of the wrong sign at once. A handful of factorisations at any m, where an active-set
   method takes one for each entry; but it needs H to be regular on the supports it meets;
2. Lawson and Hanson's NNLS, from scipy, on a factor of H, where H is singular or pivoting does not settle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solvers.lapack import solve_spd

#: Rounding allowed in a sign test, for values of order one: a few dozen units of float64.
TOL = 4e-15


#: From this m on, a few products with H that guess the support cost less than the factorisations they save.
_GUESSED = 64


class NonnegSolution(NamedTuple):
    """``a`` with the violation of the optimality conditions, relative to the size of the terms."""

    a: Array
    residual: float
    steps: int


def solve_nonneg_qp(
    H: Array, q: Array, least_squares: Callable[[], Array], *, free: NDArray[np.bool_] | None = None
) -> NonnegSolution:
    """Minimise ``a'Ha/2 + q'a`` over ``a >= 0``; the problem must be bounded below.

    Args:
        H: shape ``(m, m)``.
        q: shape ``(m,)``, a sum of terms of order one.
        least_squares: called where pivoting fails; returns the solution of the same problem by `nnls`.
        free: a guess of the positive entries, such as the last solve's.
    """
    found = _block_pivot(H, q, free)
    if found is not None:
        return found
    a = least_squares()
    slope = H @ a
    slope += q
    return NonnegSolution(a, nonneg_residual(a, slope), int(np.count_nonzero(a)))


def nonneg_residual(a: Array, slope: Array) -> float:
    """Largest entry of ``min(a, slope)``, which is zero at the optimum, relative to ``1 + |a|``."""
    return largest(np.minimum(a, slope)) / (1.0 + largest(a))


def largest(values: Array) -> float:
    """Largest magnitude (``argmax`` is a quicker way to it than ``max`` for small arrays)."""
    flat = np.abs(values).ravel()
    return float(flat[flat.argmax()])


def factor(H: Array) -> Array:
    """R with orthogonal rows and ``R'R = H``; eigenvalues that are rounding are dropped."""
    values, vectors = np.linalg.eigh(H)
    keep = values > 1e-15 * len(values) * values[-1]
    return np.asarray((vectors[:, keep] * np.sqrt(values[keep])).T)


def nnls(A: Array, b: Array) -> Array:
    """The ``x >= 0`` that minimises ``|A x - b|``, for columns of A of norm about one.

    scipy's Lawson-Hanson steps off an optimal face now and then where many optimality conditions hold with
    equality: its answer is checked, and if need be asked for again with b rescaled, which breaks the ties.
    """
    from scipy.optimize import nnls as lawson_hanson

    best, error = np.zeros(A.shape[1]), np.inf
    if (A.T @ b).max() <= TOL * (1.0 + np.abs(b).max()):
        return best
    for scale in (1.0, 1e3, 1e-3, 1e7):
        try:
            x = lawson_hanson(A, scale * b, maxiter=30 * A.shape[1])[0] / scale
        except RuntimeError:  # too many iterations: the caller's residual will say so
            continue
        residual = nonneg_residual(x, A.T @ (A @ x - b))
        if residual < error:
            best, error = x, residual
        if error <= TOL * (8 + A.shape[1]):
            break
    return best


def least_distance(H: Array, q: Array) -> Array:
    """Minimise ``a'Ha/2 + q'a`` over ``a >= 0`` for a singular H, by NNLS.

    With ``q = -R'b`` it is ``min |R a - b|``. Where q is not in the range of H, it takes Lawson and Hanson's
    least-distance form: ``min |R y|^2 + (p'y + 1)^2, y >= 0`` with p = q up to scale, and ``a = y / (1 + p'y)``.
    """
    size = float(np.abs(q).max())
    if size == 0.0:
        return np.zeros_like(q)
    p = q / size
    R = factor(H)
    b = -(R @ p) / np.einsum("ij,ij->i", R, R)
    if np.abs(p + R.T @ b).max() <= 1e-13 * len(q):
        return size * nnls(R, b)
    y = nnls(np.vstack([R, p]), np.append(np.zeros(len(R)), -1.0))
    left = 1.0 + float(p @ y)
    return y * (size / left) if left > 0.0 else np.zeros_like(q)


def _block_pivot(H: Array, q: Array, free: NDArray[np.bool_] | None) -> NonnegSolution | None:
    """Block principal pivoting; None where a factorisation fails or the exchanges do not settle."""
    m = len(q)
    inside = free
    if inside is None:
        inside = q < 0.0 if m < _GUESSED else _guess_support(H, q)
    fewest, patience = m + 1, 4
    for step in range(1, m + 20):
        a = np.zeros(m)
        rows = inside.nonzero()[0]
        if len(rows):
            part = solve_spd(H.copy() if len(rows) == m else H.take(rows, 0).take(rows, 1), -q.take(rows))
            if part is None:
                return None
            a[rows] = part
        slope = H.dot(a)
        slope += q
        wrong = np.where(inside, a, slope) < -TOL * (1.0 + largest(a))
        count = int(np.count_nonzero(wrong))
        if count == 0:
            residual = nonneg_residual(a, slope)
            return NonnegSolution(np.maximum(a, 0.0, out=a), residual, step)
        if count < fewest:
            fewest, patience = count, 4
        elif patience > 0:
            patience -= 1
        else:  # exchange one entry only: slower, but finite for a positive definite H
            last = wrong.nonzero()[0][-1]
            wrong = np.zeros(m, dtype=bool)
            wrong[last] = True
        inside = inside ^ wrong
    return None


def _guess_support(H: Array, q: Array) -> NDArray[np.bool_]:
    """Which entries are positive: two runs of a few conjugate-gradient steps, the second on the support of the first.

    A few steps do, as the cosines of gradients have few large eigenvalues and the others close together.
    """
    inside = q < 0.0
    # The point and its slope move along (p, Hp): one array each, so that one call moves both.
    state, move = np.zeros((2, len(q))), np.empty((2, len(q)))
    (a, slope), (p, Hp) = state, move
    for steps in (3, 4):
        a *= inside
        np.add(H.dot(a), q, out=slope)
        mask = inside.astype(np.float64)
        np.multiply(slope, mask, out=p)
        square = float(p.dot(p))
        for _ in range(steps):
            H.dot(p, out=Hp)
            curvature = float(p.dot(Hp))
            if not curvature > 0.0:
                break
            state -= (square / curvature) * move
            r = slope * mask
            square, last = float(r.dot(r)), square
            p *= square / last
            p += r
        inside = np.where(inside, a, -slope) > 0.0
    return np.asarray(inside)
