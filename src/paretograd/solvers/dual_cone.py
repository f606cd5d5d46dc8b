"""Projection onto the dual cone ``{d : J d >= 0}`` of directions that conflict with no gradient.

Residuals are in units of the longest gradient projected; ``growth`` is one plus the largest multiplier.
"""

from __future__ import annotations

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.active_set import smallest
from paretograd.solvers.nonneg_qp import largest, solve_nonneg_qp
from paretograd.solvers.support import solve_shared_qps


def project_dual_cone(unit: UnitGramian, u: Array, *, least: bool = False) -> Point:
    """Project ``J.T u`` onto the dual cone: ``min v'Gv  subject to  v >= u`` (prop. PS_proj).

    With v = u + a this is ``min a'Ga/2 + (Gu)'a, a >= 0``. Row norms only rescale u and a. The solver sees only the
    cosines, so that rows of very different norms lose no digits.

    Args:
        unit: the Gramian.
        u: weights, shape ``(m,)``.
        least: return the smallest weights if they are not unique.
    """
    C, norms = unit.C, unit.norms
    scaled = unit.restrict(u) * norms
    size = float(np.abs(scaled).max(initial=0.0))
    if size == 0.0:
        return Point(u, 0.0, 0)
    scaled /= size
    q = C @ scaled
    if q.min() >= 0.0:
        return Point(u, 0.0, 0)
    found = solve_nonneg_qp(C, q, unit.resolution)
    if least:
        found = smallest(C, found, norms, unit.resolution)
    weights = u + unit.expand(found.a * (size / norms))
    return Point(weights, found.residual, found.steps, 1.0 + largest(found.a))


def lift_slopes(unit: UnitGramian, slopes: Array, *, bounded: bool = True, least: bool = False) -> Point:
    """Return the least multipliers ``v >= 0`` for which ``slopes + G v >= 0``: ``min v'Gv/2 + slopes'v, v >= 0``.

    If the slopes are ``J u``, then ``u + J.T v`` is the projection of u onto the dual cone. If they are ``J u - b``, it
    is the projection onto ``{d : J d >= b}``, which may be empty.

    Args:
        unit: the Gramian G.
        slopes: shape ``(m,)``.
        bounded: there are such multipliers. If not, the residual may be infinite.
        least: return the smallest multipliers if they are not unique.
    """
    q = unit.restrict(slopes) / unit.norms
    size = float(np.abs(q).max(initial=0.0))
    if size == 0.0 or q.min() >= 0.0:
        return Point(np.zeros(unit.m), 0.0, 0)
    found = solve_nonneg_qp(unit.C, q / size, unit.resolution, bounded=bounded)
    if least and found.residual < np.inf:
        found = smallest(unit.C, found, unit.norms, unit.resolution)
    return Point(unit.expand(found.a * (size / unit.norms)), found.residual, found.steps, 1.0 + largest(found.a))


def project_gradients(unit: UnitGramian) -> Point:
    """Project every gradient onto the dual cone: row k of the weights, shape ``(m, m)``, is for gradient k."""
    added, residual, steps, growth = _additions(unit, least=False)
    V = np.eye(unit.m)
    if steps:
        added *= unit.norms[:, None]
        added /= unit.norms
        V += unit.expand(unit.expand(added).T).T
    return Point(V, residual, steps, growth)


def project_and_average(unit: UnitGramian, u: Array, *, least: bool = False) -> Point:
    """The projections of all gradients, weighted by ``u`` and summed."""
    added, residual, steps, growth = _additions(unit, least)
    if not steps:
        return Point(u, 0.0, 0)
    # The weighted gradient k is u_k |g_k| times its unit vector, so this factor also scales what its projection adds.
    extra = np.dot(unit.restrict(u) * unit.norms, added)
    extra /= unit.norms
    return Point(u + unit.expand(extra), residual, steps, growth)


def _additions(unit: UnitGramian, least: bool) -> tuple[Array, float, int, float]:
    """For every unit gradient k, ``a >= 0`` such that its projection is ``J.T (e_k + a)`` in unit gradients."""
    flat = unit.C.ravel()
    if not len(flat) or flat[flat.argmin()] >= 0.0:
        return unit.C, 0.0, 0, 1.0
    added, residual, steps = solve_shared_qps(unit.C, None, unit.resolution, unit.norms if least else None)
    flat = added.ravel()
    return added, residual, steps, 1.0 + float(flat[flat.argmax()])
