"""CAGrad: the d with |d - g0| <= c |g0| whose worst slope min_k <d, g_k> is greatest; g0 is the mean
gradient.

Let A be a set of linearly independent rows that are tight at the optimum (slope t) and span its multipliers:
then d = g0 + J_A.T v with v >= 0, |J_A.T v| = r = c |g0| and J_A d = t. So v = G_A^-1 (t 1 - J_A g0), and the
length gives a quadratic equation for t. Conversely a v >= 0 from it whose d has no slope below t is optimal
(KKT). Sets A are tried until one passes this exact check: all of them for few objectives, else those along
the path of the regularised problem

    min over the simplex of  b |J.T w|^2 / 2 + <g0, J.T w>,

which is CAGrad for the b with b |J.T w| = r; b |J.T w| increases with b, so b is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from . import qp
from .fixed import NOTHING, ONE, Fixed, answer, dot, gram, lift, root, solve, times
from .qp import Array, Problem, Start


class NotUniqueError(ValueError):
    """The greatest worst slope is 0 and more than one d has it: no direction is the right answer."""


def cagrad(J: Array, c: float) -> Array:
    """CAGrad's direction, shape (n,).

    At a stationary point the greatest worst slope is 0 for c >= 1, and d = 0, the shortest with it, is
    returned. For c < 1 it is negative and d unique, or else `NotUniqueError`.
    """
    rows = lift(J)
    mean = rows.sum(axis=0) // len(J)
    radius = times(int(lift(c)), root(int(dot(mean, mean))))
    if radius <= NOTHING:
        return answer(mean)
    if c >= 1 and qp.is_stationary(J):
        return np.zeros(J.shape[1])
    G, slopes = gram(rows), dot(rows, mean)
    tried: set[tuple[int, ...]] = set()
    for A in _all_sets(len(J)) if len(J) <= 6 else _sets_on_path(J, G, slopes, radius):
        if A not in tried:
            tried.add(A)
            v = _multipliers(G, slopes, radius, list(A))
            if v is not None:
                return answer(mean + dot(rows[list(A)].T, v))
    raise NotUniqueError("no set of tight gradients determines the direction")


def _multipliers(G: Fixed, slopes: Fixed, radius: int, A: list[int]) -> Fixed | None:
    """v for the set A, or None where A is dependent or fails the optimality conditions."""
    face = G[np.ix_(A, A)]
    x = solve(face, np.array([ONE] * len(A), dtype=object))
    z = solve(face, slopes[A])
    if x is None or z is None:
        return None
    # |J_A.T (t x - z)|^2 = a t^2 - 2 h t + e; the larger root makes sum(v) positive.
    a, h, e = int(x.sum()), int(z.sum()), int(dot(slopes[A], z))
    discriminant = times(h, h) - times(a, e - times(radius, radius))
    if discriminant < 0:
        return None
    t = ((h + root(discriminant)) * ONE) // a
    v = times(t, x) - z
    sizes = np.array([root(g) for g in np.diag(G)], dtype=object)
    if (times(v, sizes[A]) < -times(NOTHING, radius)).any():
        return None
    gap = slopes + dot(G[:, A], v) - t
    # Relative to |g_k| |d - g0|, and to t for a zero row, with room for the error of the solves.
    return v if (gap >= -(times(times(sizes, radius) + abs(t), NOTHING))).all() else None


def _all_sets(m: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, m + 1):
        yield from combinations(range(m), size)


def _sets_on_path(J: Array, G: Fixed, slopes: Fixed, radius: int) -> Iterator[tuple[int, ...]]:
    """Supports of the regularised problem's weights while b is bisected, and these less one row."""
    tau = qp.simplex_problem(J).H[0, 0] - G[0, 0]
    first = int(np.argmin(slopes))
    vertex = np.zeros(len(J), dtype=object)
    vertex[first] = ONE
    start = Start(vertex, [first], [])
    low, high, power = None, None, 0.0
    while abs(power) < 150 and (low is None or high is None or high - low > 1e-9):
        b = int(lift(2.0**power))
        w = qp.minimise(Problem(times(b, G + tau), slopes, on_simplex=True), start)
        w = np.where(w > NOTHING, w, 0)
        A = tuple(int(k) for k in np.flatnonzero(w > 0))
        yield A
        yield from (A[:i] + A[i + 1 :] for i in range(len(A)) if len(A) > 1)
        start = Start(w, list(A), [])
        if times(b, root(int(dot(w, dot(G, w))))) < radius:
            low = power
        else:
            high = power
        if low is not None and high is not None:
            power = (low + high) / 2
        else:
            power += 4 if high is None else -4
