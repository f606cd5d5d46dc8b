"""Projection onto the dual cone {d : J d >= 0}, and the rules made of it: UPGrad, DualProj, Greedy-DCP.

The projection of q is q + J.T l, where l >= 0 minimises |q + J.T l| (Moreau). Row norms do not change the
cone, so rows are first scaled by powers of two to norms near 1, which is exact. Everything is in fixed point,
one rounding at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import float64
from .fixed import BITS, NOTHING, Fixed, answer, dot, gram, lift, lower, root, times
from .qp import Array, Problem, Start, minimise_from


class Cone(NamedTuple):
    """The rows of J scaled to norms near 1 (zero rows left out), their Gramian, and the rows in float64."""

    rows: Fixed
    G: Fixed
    floats: Array

    @classmethod
    def of(cls, J: Array) -> Cone:
        norms = float64.unit_rows(J)[1]
        J = J[norms > 0] * 2.0 ** -np.round(np.log2(norms[norms > 0]))[:, None]
        rows = lift(J)
        return cls(rows, gram(rows), J)


def _project(cone: Cone, q: Fixed) -> Fixed:
    m = len(cone.rows)
    size = root(int(dot(q, q)))
    if m == 0 or size == 0:
        return q
    # A target of norm near 1, so that the tolerances of `minimise` are relative to it.
    shift = size.bit_length() - BITS
    unit = q >> shift if shift > 0 else q << -shift
    problem = Problem(cone.G, dot(cone.rows, unit))
    guess = float64.project_nnls(cone.floats, lower(unit)) if m > 6 else None
    multipliers = minimise_from(problem, guess, Start(np.zeros(m, dtype=object), [], []))
    d = unit + dot(cone.rows.T, multipliers)
    return d << shift if shift > 0 else d >> -shift


def project_dual_cone(J: Array, q: Array) -> Array:
    """The point of {d : J d >= 0} nearest to q, shape (n,)."""
    return answer(_project(Cone.of(J), lift(q)))


def projected_gradients(J: Array) -> Array:
    """The projection of every row of J onto the dual cone, shape (m, n)."""
    return answer(_projected(J))


def _projected(J: Array) -> Fixed:
    cone = Cone.of(J)
    return np.stack([_project(cone, g) for g in lift(J)])


def upgrad(J: Array, preference: Array | None = None) -> Array:
    """UPGrad's direction: the mean of the projected gradients, or their sum weighted by the preference."""
    weights = np.full(len(J), 1.0) if preference is None else preference
    total = dot(lift(weights), _projected(J))
    return answer(total // len(J) if preference is None else total)


def dualproj(J: Array, preference: Array | None = None) -> Array:
    """DualProj's direction: the projection of the mean gradient, or of the preference-weighted sum."""
    rows = lift(J)
    q = rows.sum(axis=0) // len(J) if preference is None else dot(lift(preference), rows)
    return answer(_project(Cone.of(J), q))


def greedy_dcp(J: Array) -> Array:
    """Greedy-DCP's direction: the longest projected gradient, the first of equals."""
    projected = _projected(J)
    lengths = [int(dot(p, p)) for p in projected]
    enough = max(lengths) - times(max(lengths), NOTHING)
    return answer(next(p for p, length in zip(projected, lengths, strict=True) if length >= enough))
