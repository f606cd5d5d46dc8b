"""Many non-negative quadratic programs with one matrix: ``min a'Ha/2 + u'Ha, a >= 0`` for each row u of U.

UPGrad projects m gradients onto the same dual cone. What the m problems share is the matrix, so everything
that can be a product of whole matrices is one: the guess of the supports (a few steps of ADMM with one shared
inverse) and the check. Only the solve on each guessed support is separate, and mostly once. Where the matrix is
singular, each problem is solved by NNLS on one shared factor.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solvers.lapack import spd_solver
from paretograd.solvers.nonneg_qp import TOL, factor, largest, nnls, nonneg_residual

#: Largest m for which one batched call on masked matrices beats a loop over the supports.
_MASKED = 12
#: Coefficients beyond this say that the matrix is singular, or close enough to leave the case to NNLS.
_LARGE = 1e4


def solve_shared_qps(H: Array, U: Array | None) -> tuple[Array, float, int]:
    """Minimise ``a'Ha/2 + u'Ha`` over ``a >= 0`` for every row u of U.

    Args:
        H: positive semidefinite with unit diagonal, shape ``(m, m)``.
        U: shape ``(k, m)``; None for the identity.

    Returns:
        the solutions, shape ``(k, m)``; their largest residual; the number of rounds.
    """
    Q = H if U is None else U @ H
    A, settled, residual, rounds = _pivot(H, Q, _guess_supports(H, U))
    if settled is not None:
        R = factor(H)
        rest = (~settled).nonzero()[0]
        for k in rest:
            A[k] = nnls(R, -R[:, k] if U is None else -R @ U[k])
            rounds += 1
        residual = max(residual, nonneg_residual(A[rest], A[rest] @ H + Q[rest]))
    return A, residual, rounds


@lru_cache(maxsize=64)
def _identities(m: int, tenths: int) -> tuple[Array, Array, Array]:
    """``I``, ``rho I`` and ``2 rho I`` for a penalty of so many tenths."""
    eye = np.eye(m)
    return eye, 0.1 * tenths * eye, 0.2 * tenths * eye


def _guess_supports(H: Array, U: Array | None) -> NDArray[np.bool_]:
    """A few steps of ADMM, over-relaxed to the limit (Peaceman-Rachford), towards all solutions at once.

    With penalty rho, ``T = a + dual`` is updated by ``T <- 2 (H + rho I)^-1 (rho |T| - H u) - |T|``, and
    the support is where T > 0. It is only a guess, so that single precision does for the larger products.
    """
    m, flat = len(H), H.ravel()
    # The best penalty is the size of most eigenvalues. Gradients in camps make one large eigenvalue, which the
    # sum of squares shows (m without it); what it takes from the trace m is what the others lack.
    tenths = max(2, round(10.0 - 10.0 * math.sqrt(max(float(flat.dot(flat)) - m, 0.0)) / m))
    eye, penalty, twice = _identities(m, tenths)
    inverse = spd_solver()(H + penalty, twice, 1, 1)[1]  # 2 rho (H + rho I)^-1, regular as the penalty is
    inverse -= eye
    base = inverse - eye  # -2 H (H + rho I)^-1
    if U is not None:
        base = np.dot(U, base)
    if m > 16:
        base, inverse = base.astype(np.float32), inverse.astype(np.float32)
    T = 0.5 * base
    for _ in range(3 if m <= 16 else 5 if m <= 64 else 7):
        T = np.abs(T).dot(inverse)
        T += base
    return np.asarray(T > 0.0)


def _pivot(H: Array, Q: Array, inside: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_] | None, float, int]:
    """Block principal pivoting on all problems at once; says which of them settled (None: all)."""
    answers = todo = None
    settled, residual, rounds = None, 0.0, 0
    while rounds < 12:
        rounds += 1
        try:
            A = _solve_on(H, Q, inside)
        except np.linalg.LinAlgError:
            break
        slope = A.dot(H)
        slope += Q
        flat = A.ravel()
        size = float(flat[flat.argmax()])
        if not size <= _LARGE:
            break
        error = largest(np.minimum(slope, A))  # zero at the optimum, where a or its slope is
        allowed = TOL * (1.0 + size)
        if error > allowed:
            wrong = np.where(inside, A, slope) < -allowed
        if error <= allowed or not np.count_nonzero(wrong):
            residual = max(residual, error / (1.0 + size))
            np.maximum(A, 0.0, out=A)
            if answers is not None:
                answers[todo], A = A, answers
            return A, None, residual, rounds
        if answers is None or todo is None or settled is None:
            answers, todo, settled = np.zeros_like(Q), np.arange(len(Q)), np.zeros(len(Q), dtype=bool)
        bad = wrong.any(axis=1)
        good = ~bad
        if good.any():
            residual = max(residual, nonneg_residual(A[good], slope[good]))
            answers[todo[good]], settled[todo[good]] = np.maximum(A[good], 0.0), True
        todo, Q, inside = todo[bad], Q[bad], inside[bad] ^ wrong[bad]
    if answers is None:
        return np.zeros_like(Q), np.zeros(len(Q), dtype=bool), residual, rounds
    return answers, settled, residual, rounds


def _solve_on(H: Array, Q: Array, inside: NDArray[np.bool_]) -> Array:
    """For each row, solve ``H a = -q`` on its support and put zeros elsewhere."""
    k, m = Q.shape
    if m <= _MASKED:
        signed = inside * -1.0
        S = H * signed[:, None, :]
        S *= signed[:, :, None]
        S.reshape(k, -1)[:, :: m + 1] = 1.0
        return np.linalg.solve(S, (Q * signed)[:, :, None])[:, :, 0]
    # One Cholesky solve after the other is as fast as any batched call, and each has just the size it needs.
    place = inside.ravel().nonzero()[0]
    column = place % m
    values = Q.take(place)
    np.negative(values, out=values)
    solve, start = spd_solver(), 0
    for end in np.cumsum(np.count_nonzero(inside, axis=1)).tolist():
        if end > start:
            rows = column[start:end]
            info = solve(H.take(rows, 0).take(rows, 1).T, values[start:end], 1, 1, 1)[2]  # in place
            if info != 0:
                raise np.linalg.LinAlgError
        start = end
    A = np.zeros((k, m))
    A.ravel()[place] = values
    return A
