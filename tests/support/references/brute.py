"""Brute force for a handful of objectives: try every face, keep the best point that is feasible.

No optimality condition, no pivoting rule, no tolerance that matters: a face's own minimiser is computed in
fixed point, faces of dependent rows are skipped (by Caratheodory some face of independent rows holds the
solution too).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from .fixed import NOTHING, ONE, Fixed, answer, dot, gram, lift, over, root, solve, times
from .qp import Array, Point, simplex_problem

MOST = 6  # objectives; 3^6 faces


def _check(J: Array) -> None:
    if len(J) > MOST:
        raise ValueError(f"brute force over the faces of m={len(J)} objectives; at most {MOST}")


def _subsets(m: int, smallest: int) -> Iterator[list[int]]:
    for size in range(smallest, m + 1):
        yield from (list(subset) for subset in combinations(range(m), size))


def min_norm_point(J: Array, cap: float | None = None) -> Point:
    """The least norm over all faces of the (capped) simplex: weights at 0, at the cap, or free."""
    _check(J)
    m = len(J)
    H, _, _, top = simplex_problem(J, cap)
    best: tuple[int, Fixed] | None = None
    for kinds in product("0f" if top is None else "0fc", repeat=m):
        free = [k for k in range(m) if kinds[k] == "f"]
        capped = [k for k in range(m) if kinds[k] == "c"]
        w = np.zeros(m, dtype=object)
        if capped:
            w[capped] = top
        if free:
            face = H[np.ix_(free, free)]
            x, y = solve(face, -dot(H, w)[free]), solve(face, np.array([ONE] * len(free), dtype=object))
            if x is None or y is None:
                continue
            w[free] = x + times(over(ONE - w.sum() - x.sum(), y.sum()), y)
        feasible = w.min() >= -NOTHING and (top is None or w.max() <= top + NOTHING)
        if feasible and abs(w.sum() - ONE) <= NOTHING:
            value = int(dot(w, dot(H, w)))
            if best is None or value < best[0]:
                best = value, w
    assert best is not None, "the capped simplex has a vertex"
    return Point(answer(best[1]), answer(dot(lift(J).T, best[1])))


def project_dual_cone(J: Array, q: Array) -> Array:
    """The nearest feasible point among the projections of q onto {d : <g_k, d> = 0 for k in A}, over all sets
    A.

    The projection onto the cone is one of them, with A its active constraints, and no feasible point is
    nearer.
    """
    _check(J)
    rows, target = lift(J), lift(q)
    G, b = gram(rows), dot(rows, target)
    best: tuple[int, Fixed] | None = None
    for A in _subsets(len(J), 0):
        x = solve(G[np.ix_(A, A)], -b[A])
        if x is None:
            continue
        move = dot(rows[A].T, x) if A else np.zeros(len(q), dtype=object)
        slopes = dot(rows, target + move)
        # What counts as zero is relative to |g_k| |q|.
        sizes = [times(root(g), root(int(dot(target, target)))) for g in np.diag(G)]
        if all(s >= -times(NOTHING, z) - 1 for s, z in zip(slopes, sizes, strict=True)):
            length = int(dot(move, move))
            if best is None or length < best[0]:
                best = length, target + move
    assert best is not None, "0 is in the cone"
    return answer(best[1])
