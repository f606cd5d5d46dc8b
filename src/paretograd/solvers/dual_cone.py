"""Projection onto the dual cone ``{d : J d >= 0}`` of directions that conflict with no gradient."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array, UnitGramian
from paretograd.solvers.nonneg_qp import factor, nnls, solve_nonneg_qp
from paretograd.solvers.support import solve_shared_qps


class Projection(NamedTuple):
    """Weights ``v`` with ``J.T v`` the projection; same shape as the weights that were projected."""

    weights: Array
    residual: float
    steps: int


def project_dual_cone(unit: UnitGramian, u: Array) -> Projection:
    """Project ``J.T u`` onto the dual cone: ``min v'Gv  subject to  v >= u`` (prop. PS_proj).

    With v = u + a this is ``min a'Ga/2 + (Gu)'a, a >= 0``. Row norms only rescale u and a: the unit
    gradients' cosines are all that the solver sees, so that rows of very different norms lose no digits.

    Args:
        unit: the Gramian.
        u: weights, shape ``(m,)``.
    """
    C, norms = unit.C, unit.norms
    scaled = unit.restrict(u) * norms
    size = float(np.abs(scaled).max(initial=0.0))
    if size == 0.0:
        return Projection(u, 0.0, 0)
    scaled /= size
    q = C @ scaled
    if q.min() >= 0.0:
        return Projection(u, 0.0, 0)

    def by_nnls() -> Array:
        R = factor(C)
        return nnls(R, -R @ scaled)

    found = solve_nonneg_qp(C, q, by_nnls)
    return Projection(u + unit.expand(found.a * (size / norms)), found.residual, found.steps)


def project_gradients(unit: UnitGramian) -> Projection:
    """Project every gradient onto the dual cone: row k of the weights, shape ``(m, m)``, is for gradient k."""
    V = np.eye(unit.m)
    flat = unit.C.ravel()
    if not len(flat) or flat[flat.argmin()] >= 0.0:
        return Projection(V, 0.0, 0)
    added, residual, steps = solve_shared_qps(unit.C, None)
    added *= unit.norms[:, None]
    added /= unit.norms
    if unit.live is None:
        V += added
    else:
        V[np.ix_(unit.live, unit.live)] += added
    return Projection(V, residual, steps)
