"""One quadratic program behind most of the rules: ``min a'Ha/2 + q'a  subject to  a >= 0``.

H is positive semidefinite with a diagonal near one. Two methods, both checked by the same optimality conditions:

1. block principal pivoting (Judice and Pires 1994): guess which entries are positive, solve for them by Cholesky,
   exchange *all* entries of the wrong sign at once. A handful of factorisations at any m, where an active-set
   method takes one for each entry; but it needs H to be regular on the supports it meets;
2. an active-set method that reveals the rank, where H is singular, pivoting does not settle, or the answer is so
   large that it may be noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solvers.active_set import NonnegSolution, active_set
from paretograd.solvers.lapack import SINGULAR, add_square, solve_spd

#: Rounding allowed in a sign test, for values of order one: a few dozen units of float64.
TOL = 4e-15

#: Multipliers up to this keep the rounding of float32 rows, 1e-7, below 1e-5 in the direction that they combine.
TRUSTED = 30.0

#: A relative residual above this is no rounding: scipy's method got lost, as it does on matrices of small integers.
_LOST = 1e-11

#: Unit gradients that differ by less are alike for a point of a hull, whose weights stay small whatever they are.
_UNLIKE = 1e-7

#: From this m on, a few products with H that guess the support cost less than the factorisations they save.
_GUESSED = 64


def solve_nonneg_qp(
    H: Array, q: Array, resolution: float, *, free: NDArray[np.bool_] | None = None, bounded: bool = True
) -> NonnegSolution:
    """Minimise ``a'Ha/2 + q'a`` over ``a >= 0``; where the problem is unbounded below, the residual is infinite.

    Args:
        H: shape ``(m, m)``.
        q: shape ``(m,)``, a sum of terms of order one.
        resolution: of the matrix, see `UnitGramian`.
        free: a guess of the positive entries, such as the last solve's.
        bounded: the problem is known to be bounded below.
    """
    found = _block_pivot(H, q, free, max(SINGULAR, resolution**2))
    if found is not None and (largest(found.a) <= TRUSTED or is_resolved(H, found.a > 0.0, resolution)):
        return found
    return active_set(H, q, resolution, bounded=bounded)


def solve_on_hull(C: Array, a: Array, free: NDArray[np.bool_] | None = None, noise: float = 0.0) -> NonnegSolution:
    """Minimise ``y'Cy + (a'y - 1)^2`` over ``y >= 0``: the point of least norm with ``a'y = 1``, up to its length.

    Where C is singular, it is solved on a factor: entries of a below 1e-8 would be lost in ``C + aa'``, and they tell
    which of the combinations that vanish is a short one.

    Args:
        C: cosines, shape ``(m, m)``.
        a: shape ``(m,)``, at most one.
        free: a guess of the positive entries.
        noise: a square that is added to every vector's, for cosines that are known to no more.
    """
    H = add_square(C, a)
    found = _block_pivot(H, -a, free, SINGULAR)
    if found is not None:
        return found
    R = np.vstack([factor(C), math.sqrt(noise) * np.eye(len(C)), a] if noise else [factor(C), a])
    y = nnls(R, np.append(np.zeros(len(R) - 1), 1.0))
    slope = H @ y - a
    found = NonnegSolution(y, slope, largest(np.minimum(y, slope)), int(np.count_nonzero(y)))
    if relative_residual(found) <= _LOST:
        return found
    other = active_set(H, -a, _UNLIKE)
    return min(found, other, key=relative_residual)


def nnls(A: Array, b: Array) -> Array:
    """The ``x >= 0`` that minimises ``|A x - b|``, for columns of A of norm about one.

    scipy's Lawson-Hanson steps off an optimal face now and then where many optimality conditions hold with
    equality: its answer is checked, and if need be asked for again with b rescaled, which breaks the ties.
    """
    from scipy.optimize import nnls as lawson_hanson

    best, error = np.zeros(A.shape[1]), np.inf
    for scale in (1.0, 1e3, 1e-3, 1e7):
        try:
            x = lawson_hanson(A, scale * b, maxiter=30 * A.shape[1])[0] / scale
        except RuntimeError:  # too many iterations: the caller's residual will say so
            continue
        residual = largest(np.minimum(x, A.T @ (A @ x - b))) / (1.0 + largest(x))
        if residual < error:
            best, error = x, residual
        if error <= TOL * (8 + A.shape[1]):
            break
    return best


def relative_residual(found: NonnegSolution) -> float:
    """The residual relative to ``1 + |a|``, for an answer that counts up to its length only."""
    return found.residual / (1.0 + largest(found.a))


def is_resolved(H: Array, inside: NDArray[np.bool_], resolution: float) -> bool:
    """Return True if every vector of a support is farther than the resolution from the span of the others."""
    rows = inside.nonzero()[0]
    try:
        inverse = np.linalg.inv(H[np.ix_(rows, rows)])  # its diagonal holds the inverse squares of these distances
    except np.linalg.LinAlgError:
        return False
    squares = inverse.diagonal()
    return bool(squares.min() > 0.0 and squares.max() <= resolution**-2)


def largest(values: Array) -> float:
    """Largest magnitude (``argmax`` is a quicker way to it than ``max`` for small arrays)."""
    flat = np.abs(values).ravel()
    return float(flat[flat.argmax()])


def factor(H: Array) -> Array:
    """R with orthogonal rows and ``R'R = H``; eigenvalues that are rounding are dropped."""
    values, vectors = np.linalg.eigh(H)
    keep = values > 1e-15 * len(values) * values[-1]
    return np.asarray((vectors[:, keep] * np.sqrt(values[keep])).T)


def _block_pivot(H: Array, q: Array, free: NDArray[np.bool_] | None, singular: float) -> NonnegSolution | None:
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
            part = solve_spd(H.copy() if len(rows) == m else H.take(rows, 0).take(rows, 1), -q.take(rows), singular)
            if part is None:
                return None
            a[rows] = part
        slope = H.dot(a)
        slope += q
        wrong = np.where(inside, a, slope) < -TOL * (1.0 + largest(a))
        count = int(np.count_nonzero(wrong))
        if count == 0:
            residual = largest(np.minimum(a, slope))
            return NonnegSolution(np.maximum(a, 0.0, out=a), slope, residual, step)
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
