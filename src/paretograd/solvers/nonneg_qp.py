"""One quadratic program behind most of the rules: ``min a'Ha/2 + q'a  subject to  a >= 0``.

H is positive semidefinite with a diagonal near one. There are two methods, checked by the same optimality conditions:

1. block principal pivoting (Judice and Pires 1994): guess which entries are positive, solve for them by Cholesky,
   exchange *all* entries of the wrong sign at once. It takes a handful of factorisations at any m, whereas an
   active-set method takes one per entry. But it needs H to be regular on every support that it visits;
2. an active-set method that reveals the rank, used if H is singular, if pivoting does not settle, or if the answer is
   so large that it may be noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solvers.active_set import NonnegSolution, active_set
from paretograd.solvers.lapack import SINGULAR, add_square, solve_spd

#: Rounding allowed in a sign test of values of order one: a few dozen units of float64.
TOL = 4e-15

#: Multipliers up to this keep the effect of float32 rounding, 1e-7, on the direction below 1e-5.
TRUSTED = 30.0

#: A relative residual above this is more than rounding: scipy's method failed, as it can on matrices of small integers.
_LOST = 1e-11

#: Unit gradients that differ by less count as equal for a point of a hull, whose weights are small in any case.
_UNLIKE = 1e-7

#: From this m on, guessing the support with a few products with H costs less than the factorisations it saves.
_GUESSED = 64


def solve_nonneg_qp(
    H: Array, q: Array, resolution: float, *, free: NDArray[np.bool_] | None = None, bounded: bool = True
) -> NonnegSolution:
    """Minimise ``a'Ha/2 + q'a`` over ``a >= 0``. If the problem is unbounded below, the residual is infinite.

    Args:
        H: shape ``(m, m)``.
        q: shape ``(m,)``, a sum of terms of order one.
        resolution: of the matrix, see `UnitGramian`.
        free: a guess of the positive entries, such as those of the last solve.
        bounded: the problem is known to be bounded below.
    """
    found = _block_pivot(H, q, free, max(SINGULAR, resolution**2))
    if found is not None and (largest(found.a) <= TRUSTED or is_resolved(H, found.a > 0.0, resolution)):
        return found
    return active_set(H, q, resolution, bounded=bounded)


def solve_on_hull(C: Array, a: Array, free: NDArray[np.bool_] | None = None, noise: float = 0.0) -> NonnegSolution:
    """Minimise ``y'Cy + (a'y - 1)^2`` over ``y >= 0``: the point of least norm with ``a'y = 1``, up to its length.

    If C is singular, the problem is solved on a factor of C. Entries of a below 1e-8 would be lost in ``C + aa'``, and
    they decide which of the vanishing combinations is short.

    Args:
        C: cosines, shape ``(m, m)``.
        a: shape ``(m,)``, at most one.
        free: a guess of the positive entries.
        noise: added to the diagonal of C if the cosines are not known more precisely.
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

    scipy's Lawson-Hanson method sometimes leaves an optimal face if many optimality conditions hold with equality. So
    its answer is checked, and if necessary computed again with b rescaled, which breaks the ties.
    """
    from scipy.optimize import nnls as lawson_hanson

    best, error = np.zeros(A.shape[1]), np.inf
    for scale in (1.0, 1e3, 1e-3, 1e7):
        try:
            x = lawson_hanson(A, scale * b, maxiter=30 * A.shape[1])[0] / scale
        except RuntimeError:  # too many iterations: the caller's residual shows it
            continue
        residual = largest(np.minimum(x, A.T @ (A @ x - b))) / (1.0 + largest(x))
        if residual < error:
            best, error = x, residual
        if error <= TOL * (8 + A.shape[1]):
            break
    return best


def relative_residual(found: NonnegSolution) -> float:
    """The residual relative to ``1 + |a|``, for an answer whose length does not matter."""
    return found.residual / (1.0 + largest(found.a))


def is_resolved(H: Array, inside: NDArray[np.bool_], resolution: float) -> bool:
    """Return True if every vector of a support is farther than the resolution from the span of the others."""
    rows = inside.nonzero()[0]
    try:
        inverse = np.linalg.inv(H[np.ix_(rows, rows)])  # with the inverse squared distances on its diagonal
    except np.linalg.LinAlgError:
        return False
    squares = inverse.diagonal()
    return bool(squares.min() > 0.0 and squares.max() <= resolution**-2)


def largest(values: Array) -> float:
    """Largest magnitude (for small arrays, ``argmax`` is faster than ``max``)."""
    flat = np.abs(values).ravel()
    return float(flat[flat.argmax()])


def factor(H: Array) -> Array:
    """Return R with orthogonal rows and ``R'R = H``, without eigenvalues that are rounding."""
    values, vectors = np.linalg.eigh(H)
    keep = values > 1e-15 * len(values) * values[-1]
    return np.asarray((vectors[:, keep] * np.sqrt(values[keep])).T)


def _block_pivot(H: Array, q: Array, free: NDArray[np.bool_] | None, singular: float) -> NonnegSolution | None:
    """Block principal pivoting; None if a factorisation fails or the exchanges do not settle."""
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
        else:  # exchange one entry only: slower, but it ends for a positive definite H
            last = wrong.nonzero()[0][-1]
            wrong = np.zeros(m, dtype=bool)
            wrong[last] = True
        inside = inside ^ wrong
    return None


def _guess_support(H: Array, q: Array) -> NDArray[np.bool_]:
    """Guess the positive entries by two runs of conjugate-gradient steps, the second on the support of the first.

    A few steps suffice, because cosines of gradients have few large eigenvalues and a cluster of others.
    """
    inside = q < 0.0
    # The point and its slope move along (p, Hp). Stacking them lets one call move both.
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
