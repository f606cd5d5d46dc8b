"""PCGrad, PCGrad+, IMTL-G and ConFIG, literally as defined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .fixed import ONE, Fixed, answer, dot, gram, independent, lift, over, root, solve, to_float
from .float64 import unit_rows
from .qp import Array, Point


def pcgrad(J: Array, orders: Sequence[Sequence[int]] | None = None, reduction: str = "mean") -> Array:
    """PCGrad's direction: every gradient is once made orthogonal to each gradient that it conflicts with.

    Args:
        orders: for each k the order in which the other gradients are met (k itself may be there, it changes
            nothing); 0, 1, ..., m - 1 for every k by default, as in the paper.
        reduction: "mean" (the paper) or "sum" (the original).
    """
    m = len(J)
    units = unit_rows(J)[0]
    fixed = J.copy()
    for k in range(m):
        for i in range(m) if orders is None else orders[k]:
            fixed[k] += max(0.0, -float(units[i] @ fixed[k])) * units[i]
    total = fixed.sum(axis=0)
    return np.asarray(total / m if reduction == "mean" else total)


class SlowError(ArithmeticError):
    """Alternating projections had not converged when the sweeps ran out."""


def pcgrad_plus(J: Array, *, tolerance: float = 1e-13, sweeps: int = 100_000) -> Array:
    """PCGrad+ (alg:pcgrad+): sweeps over the gradients in order until none conflicts by more than the
    tolerance.

    A conflict is measured relative to the projected gradient, or to the gradient itself once that has shrunk
    by the tolerance (its limit is then 0). Convergence is linear with a rate r given by the angles, so that
    the error is about tolerance / (1 - r).
    """
    units = unit_rows(J)[0]
    fixed = J.copy()
    for k, start in enumerate(np.linalg.norm(J, axis=1)):
        for _ in range(sweeps):
            size = float(np.linalg.norm(fixed[k]))
            if size <= tolerance * start or (units @ fixed[k] >= -tolerance * size).all():
                break
            for unit in units:
                fixed[k] += max(0.0, -float(unit @ fixed[k])) * unit
        else:
            raise SlowError(f"gradient {k} still conflicts after {sweeps} sweeps")
    return np.asarray(fixed.mean(axis=0))


def _least_squares(rows: Fixed, target: Fixed) -> tuple[Fixed, Fixed]:
    """(d, l) with d = pinv(rows) target and l = pinv(rows rows.T) target, so that d = rows.T l.

    From the full-rank factorisation rows = M C, C independent rows: pinv = C.T (C C.T)^-1 (M.T M)^-1 M.T.
    The rank is exact, where a float64 pinv must guess it from a threshold.
    """
    G = gram(rows)
    chosen = independent(G)
    if not chosen:
        return np.zeros(rows.shape[1], dtype=object), np.zeros(len(rows), dtype=object)
    core = G[np.ix_(chosen, chosen)]

    def divide(H: Fixed, b: Fixed) -> Fixed:
        x = solve(H, b)
        assert x is not None, "the rows were chosen to be independent"
        return x

    if len(chosen) == len(rows):
        weights = divide(G, target)
        return dot(rows.T, weights), weights
    M = np.stack([divide(core, G[chosen, k]) for k in range(len(rows))])
    MM = dot(M.T, M)
    slopes = divide(MM, dot(M.T, target))
    d = dot(rows[chosen].T, divide(core, slopes))
    return d, dot(M, divide(MM, divide(core, slopes)))


def imtl_g(J: Array) -> Point:
    """IMTL-G: weights pinv(G) n, n the gradient norms, divided by their sum (of either sign)."""
    rows = lift(J)
    norms = np.array([root(g) for g in np.diag(gram(rows))], dtype=object)
    d, weights = _least_squares(rows, norms)
    total = int(weights.sum())
    if to_float(abs(total)) <= 1e-100:
        if any(weights):
            raise ZeroDivisionError("the weights of IMTL-G sum to zero")
        return Point(answer(weights), answer(d))
    return Point(answer(over(weights, total)), answer(over(d, total)))


def config(J: Array) -> Array:
    """ConFIG: (sum_k <g_k, u>) u, u the direction of pinv(U) 1, U the unit rows (zero ones stay zero)."""
    rows = lift(J)
    norms = np.array([root(g) or ONE for g in np.diag(gram(rows))], dtype=object)
    d = _least_squares(over(rows, norms[:, None]), np.array([ONE] * len(J), dtype=object))[0]
    size = root(int(dot(d, d)))
    if to_float(size) <= 1e-100:
        return np.zeros(J.shape[1])
    u = over(d, size)
    return answer((u * int(dot(rows, u).sum())) // ONE)
