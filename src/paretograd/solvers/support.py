"""Many non-negative quadratic programs with one matrix: ``min a'Ha/2 + u'Ha, a >= 0`` for each row u of U.

UPGrad projects m gradients onto the same dual cone. The m problems share their matrix, so the guess of the supports (a
few steps of ADMM with one shared inverse) and the check are products of whole matrices. Only the solve on each guessed
support is separate, and usually needed once. Problems that do not settle, or whose multipliers are so large that they
may be noise, go to the active-set method one by one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.solvers.active_set import NonnegSolution, active_set, smallest
from paretograd.solvers.lapack import is_regular, spd_solver
from paretograd.solvers.nonneg_qp import TOL, TRUSTED, is_resolved, largest

#: Largest m for which one batched call on masked matrices beats a loop over the supports.
_MASKED = 12


def solve_shared_qps(
    H: Array, U: Array | None, resolution: float, norms: Array | None = None
) -> tuple[Array, float, int]:
    """Minimise ``a'Ha/2 + u'Ha`` over ``a >= 0`` for every row u of U.

    Args:
        H: positive semidefinite with unit diagonal, shape ``(m, m)``.
        U: shape ``(k, m)``; None for the identity.
        resolution: of the matrix, see `UnitGramian`.
        norms: of the gradients, to return the smallest solution if it is not unique; None for any solution.

    Returns:
        the solutions, shape ``(k, m)``; their largest violation of the optimality conditions; the number of rounds.
    """
    Q = H if U is None else U @ H
    guess = _guess_supports(H, U)
    A, residual, rounds, left = _pivot(H, Q, guess, resolution)
    for k in left:
        found = active_set(H, Q[k], resolution, guess[k])
        A[k], residual, rounds = found.a, max(residual, found.residual), rounds + found.steps
    if norms is not None and not is_regular(H, resolution):
        slope = A.dot(H)
        slope += Q
        for k in range(len(A)):
            A[k] = smallest(H, NonnegSolution(A[k], slope[k], 0.0, 0), norms, resolution, independent=False).a
    return A, residual, rounds


@lru_cache(maxsize=64)
def _identities(m: int, tenths: int) -> tuple[Array, Array, Array]:
    """``I``, ``rho I`` and ``2 rho I`` for the penalty rho, given in tenths."""
    eye = np.eye(m)
    return eye, 0.1 * tenths * eye, 0.2 * tenths * eye


def _guess_supports(H: Array, U: Array | None) -> NDArray[np.bool_]:
    """A few steps of ADMM, over-relaxed to the limit (Peaceman-Rachford), towards all solutions at once.

    With penalty rho, ``T = a + dual`` is updated by ``T <- 2 (H + rho I)^-1 (rho |T| - H u) - |T|``, and
    the support is where T > 0. It is only a guess, so single precision suffices for the larger products.
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


def _pivot(H: Array, Q: Array, inside: NDArray[np.bool_], resolution: float) -> tuple[Array, float, int, list[int]]:
    """Block principal pivoting on all problems at once.

    Args:
        H: the matrix.
        Q: linear terms, one row per problem.
        inside: a guess of the supports.
        resolution: of the matrix. If the matrix is close to singular, large solutions are checked.

    Returns:
        solutions; their largest violation of the optimality conditions; rounds; the problems left over.
    """
    left: list[int] = []
    answers = todo = None
    residual, regular = 0.0, False
    for rounds in range(1, 13):
        try:
            A = _solve_on(H, Q, inside)
        except np.linalg.LinAlgError:
            break
        slope = A.dot(H)
        slope += Q
        flat = A.ravel()
        size = float(flat[flat.argmax()])
        error = largest(np.minimum(slope, A))  # zero at the optimum, where a or its slope is
        if answers is None or todo is None:
            regular = size > TRUSTED and is_regular(H, resolution)
            if error <= TOL * (1.0 + size) and (regular or size <= TRUSTED):
                return np.maximum(A, 0.0, out=A), error, rounds, left
            answers, todo = np.zeros_like(Q), np.arange(len(Q))
        sizes = A.max(axis=1)
        wrong = np.where(inside, A, slope) < -TOL * (1.0 + sizes[:, None])
        noise = ~np.isfinite(sizes)
        if not regular:
            for row in (sizes > TRUSTED).nonzero()[0]:
                noise[row] = not is_resolved(H, inside[row], resolution)
        good = ~(noise | wrong.any(axis=1))
        if good.any():
            residual = max(residual, largest(np.minimum(A[good], slope[good])))
            answers[todo[good]] = np.maximum(A[good], 0.0)
        left += todo[noise].tolist()
        again = ~(good | noise)
        todo, Q, inside = todo[again], Q[again], inside[again] ^ wrong[again]
        if not len(todo):
            return answers, residual, rounds, left
    if answers is None or todo is None:
        return np.zeros_like(Q), residual, rounds, list(range(len(Q)))
    return answers, residual, rounds, left + todo.tolist()


def _solve_on(H: Array, Q: Array, inside: NDArray[np.bool_]) -> Array:
    """For each row, solve ``H a = -q`` on its support and put zeros elsewhere; NaN if H is singular there."""
    k, m = Q.shape
    if m <= _MASKED:
        signed = inside * -1.0
        S = H * signed[:, None, :]
        S *= signed[:, :, None]
        S.reshape(k, -1)[:, :: m + 1] = 1.0
        return np.linalg.solve(S, (Q * signed)[:, :, None])[:, :, 0]
    # Separate Cholesky solves are as fast as any batched call, and each has just the size that it needs.
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
                values[start:end] = np.nan
        start = end
    A = np.zeros((k, m))
    A.ravel()[place] = values
    return A
