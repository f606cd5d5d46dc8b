"""The min-norm point over a permutahedron by Wolfe's algorithm (1976) in fixed point.

The least of <v, x> over all permutations v of the spectrum is found by sorting (the rearrangement inequality).
Wolfe's method keeps a few vertices (the corral) and the point of least norm of their affine hull; it stops only
where no vertex lies below the plane through the point d and orthogonal to it, to 1e-100: then
``|d - exact|^2 <= <d, d> - min <d, J.T v>``, so that the answer certifies itself, however it was found.
"""

from __future__ import annotations

import numpy as np

from . import float64
from .fixed import NOTHING, ONE, Fixed, answer, dot, gram, lift, over, root, solve, times
from .qp import Array, Point


def spectral_min_norm_point(J: Array, spectrum: Array) -> Point:
    """The point of least norm in {J.T w : w in the hull of all permutations of the spectrum}.

    The direction is unique; the weights are one valid choice.

    Args:
        J: shape (m, n).
        spectrum: shape (m,), non-increasing and non-negative; divided by its sum, which may be off by rounding.
    """
    G = gram(lift(J))
    mu = lift(np.sort(spectrum)[::-1])
    mu = over(mu, mu.sum())
    guess = _guess(J, spectrum) if len(J) > 5 else None
    w = _wolfe(G, mu, guess)
    if w is None:  # the vertices that float64 chose depend on each other
        w = _wolfe(G, mu, None)
    assert w is not None, "a corral that was built one vertex after the other is independent"
    return Point(answer(w), answer(dot(lift(J).T, w)))


def _lowest(x: Fixed) -> tuple[int, ...]:
    """The order of the rows in which the spectrum has the least product with x: smallest slope first."""
    return tuple(int(k) for k in np.argsort(x, kind="stable"))


def _vertex(mu: Fixed, order: tuple[int, ...]) -> Fixed:
    v = np.zeros(len(mu), dtype=object)
    v[list(order)] = mu
    return v


def _wolfe(G: Fixed, mu: Fixed, guess: list[tuple[int, ...]] | None) -> Fixed | None:
    """The weights; None where the guessed vertices are affinely dependent."""
    squares = [g for g in np.diag(G) if g > 0]
    if not squares:
        return mu.copy()
    tau = min(squares)  # a constant on the affine hull; makes independent what is affinely independent
    sizes = np.array([root(g) for g in np.diag(G)], dtype=object)
    V = np.stack([_vertex(mu, order) for order in guess or [_lowest(sizes)]])
    GV = dot(G, V.T)  # column i: slopes of vertex i
    share = np.array([ONE // len(V)] * len(V), dtype=object)
    fresh = guess is not None
    for _ in range(400 + 100 * len(mu)):
        if not fresh:
            w, x = dot(share, V), dot(GV, share)
            v = _vertex(mu, _lowest(x))
            # Slopes are sums of products of sizes; what is below NOTHING of them is the arithmetic's own error.
            terms = times(int(times(w, sizes).sum()), int(times(w, sizes).sum()))
            if dot(w, x) - dot(v, x) <= times(NOTHING, terms):
                return w
            V, GV = np.vstack([V, v]), np.column_stack([GV, dot(G, v)])
            share = np.append(share, 0)
        fresh = False
        found = _descend(V, GV, share, tau)
        if found is None:
            return None
        V, GV, share = found
    raise ArithmeticError(f"Wolfe's method did not finish for m={len(mu)}")


def _descend(V: Fixed, GV: Fixed, share: Fixed, tau: int) -> tuple[Fixed, Fixed, Fixed] | None:
    """Move to the affine minimiser of the corral, dropping vertices that the way there leaves behind."""
    inner = dot(V, GV) + tau
    while True:
        u = solve(inner, np.array([ONE] * len(share), dtype=object))
        if u is None:
            return None
        u = over(u, u.sum())
        if (u > 0).all():
            return V, GV, u
        step = min(over(s, s - t) for s, t in zip(share, u, strict=True) if t <= 0 and s > t)
        share = share + times(step, u - share)
        keep = (u > 0) | (share > ONE >> 600)
        if keep.all():
            keep[int(np.argmin(share))] = False
        V, GV, share, inner = V[keep], GV[:, keep], share[keep], inner[np.ix_(keep, keep)]
        share = over(np.maximum(share, 0), np.maximum(share, 0).sum())


def _guess(J: Array, spectrum: Array) -> list[tuple[int, ...]] | None:
    """The vertices that the same method ends with in float64 (many times faster for many objectives)."""
    rows = float64.thin(J).T
    norms = float64.unit_rows(J)[1]
    if not norms.any():
        return None
    mu = np.sort(spectrum)[::-1] / spectrum.sum()
    lowest = np.argsort(norms, kind="stable")
    rows = rows / max(float((mu * norms[lowest]).max()), 1e-300)
    orders, points, share = [tuple(lowest.tolist())], [mu @ rows[lowest]], np.ones(1)
    for _ in range(20 * len(mu)):
        P = np.array(points)
        d = share @ P
        order = np.argsort(rows @ d, kind="stable")
        point = mu @ rows[order]
        if d @ d - d @ point <= 1e-14 * d @ d or tuple(order.tolist()) in orders:
            break
        orders, points, share = [*orders, tuple(order.tolist())], [*points, point], np.append(share, 0.0)
        while True:
            P = np.array(points)
            try:
                u = np.linalg.solve(P @ P.T + 1.0, np.ones(len(P)))
            except np.linalg.LinAlgError:
                return None
            u /= u.sum()
            if (u > 1e-13).all():
                share = u
                break
            low = u <= 1e-13
            step = float((share[low] / np.maximum(share[low] - u[low], 1e-300)).min())
            share = share + min(step, 1.0) * (u - share)
            keep = ~low | (share > 1e-13)
            if keep.all():
                keep[int(np.argmin(np.where(low, share, np.inf)))] = False
            orders, points = (
                [o for o, k in zip(orders, keep, strict=True) if k],
                [p for p, k in zip(points, keep, strict=True) if k],
            )
            share = share[keep] / share[keep].sum()
    return orders
