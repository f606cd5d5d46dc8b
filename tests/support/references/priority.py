"""Priority-constrained descent: a set of active constraints that satisfies all optimality conditions, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from scipy.optimize import nnls

from .classic import SlowError
from .fixed import NOTHING, ONE, Fixed, answer, dot, gram, lift, over, root, solve, times
from .qp import Array

#: Constraints whose subsets are all tried.
_FEW = 7


def pcd(J: Array, tau: float | list[float], averages: Array | None = None) -> Array:
    """The direction, of the length of the first gradient.

    Args:
        J: one gradient per row, the primary one first.
        tau: the share of progress, or one for each gradient but the first.
        averages: of the squared norms; those of J by default.
    """
    rows = lift(J)
    squares = np.diag(gram(rows)) if averages is None else lift(averages)
    rows = np.stack([over(row, root(int(v))) if v else row for row, v in zip(rows, squares, strict=True)])
    G = gram(rows)
    if G[0, 0] == 0:
        return np.zeros(J.shape[1])
    others = [k for k in range(1, len(J)) if G[k, k] > 0]
    shares = np.zeros(len(J))
    shares[1:] = tau
    needed = times(lift(shares), np.diag(G))
    for A in _sets(J, rows, others, shares[others]):
        multipliers = solve(G[np.ix_(A, A)], (needed - G[0])[A])
        if multipliers is None or (multipliers < 0).any():
            continue
        d = rows[0] + (dot(rows[A].T, multipliers) if A else 0)
        length = root(int(dot(d, d)))
        slack = [times(times(root(int(G[k, k])), length) + ONE, NOTHING) for k in others]
        if all(s >= -z for s, z in zip((dot(rows, d) - needed)[others], slack, strict=True)):
            if length <= NOTHING:
                return np.zeros(J.shape[1])
            return answer(over(d, length)) * float(np.linalg.norm(J[0]))
    if len(others) > _FEW:
        raise SlowError("the active constraints were not found")
    return J[0].copy()  # some set would satisfy the conditions if there were a feasible direction


def _sets(J: Array, rows: Fixed, others: list[int], shares: Array) -> Iterator[list[int]]:
    if len(others) <= _FEW:
        for size in range(len(others) + 1):
            yield from (list(A) for A in combinations(others, size))
        return
    floats = np.array([answer(row) for row in rows])
    A = floats[others]
    b = shares * (A**2).sum(axis=1) - A @ floats[0]
    # Least-distance programming (Lawson and Hanson): the residual of this problem gives the step from g_1.
    u, _ = nnls(np.vstack([A.T, b]), np.append(np.zeros(A.shape[1]), 1.0), maxiter=100 * len(A))
    yield [others[k] for k in np.flatnonzero(u > 1e-12 * u.max(initial=0.0))]
