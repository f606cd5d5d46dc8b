"""The point of least norm in the convex hull of the gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paretograd.errors import NotAGramianError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Outcome, Status
from paretograd.solvers.nonneg_qp import relative_residual, solve_on_hull
from paretograd.solvers.tolerance import status_of


class MinNorm(NamedTuple):
    """Weights on the (capped) simplex, and whether the point of least norm is zero to rounding."""

    weights: Array
    residual: float
    steps: int
    stationary: bool


def outcome_of(found: MinNorm) -> Outcome:
    """The outcome of a rule whose weights are the point's."""
    status = Status.STATIONARY if found.stationary else status_of(found.residual, len(found.weights))
    return Outcome(found.weights, status, found.residual, found.steps)


def min_norm_point(unit: UnitGramian) -> MinNorm:
    """Minimise ``|J.T w|`` over the simplex (eq. PS-quant; the dual of MGDA's subproblem).

    With ``a_k = 1/|g_k|`` (up to scale) and y the weights of the *unit* gradients, the problem is
    ``min y'Cy`` subject to ``a'y = 1, y >= 0``. Squaring the equality into the objective changes only the
    length of the answer: ``min y'Cy + (a'y - 1)^2`` has a solution even where the point is stationary, and
    ``C + aa'`` stays regular there when C has a single null vector.
    """
    if unit.has_zero_row:
        zero = np.ones(unit.m)
        zero[unit.live] = 0.0
        return MinNorm(zero / zero.sum(), 0.0, 0, stationary=True)
    a = unit.norms[unit.norms.argmin()] / unit.norms
    solution = solve_on_hull(unit.C, a)
    y = solution.a
    weights = y * a
    weights /= y.dot(a)
    return MinNorm(weights, relative_residual(solution), solution.steps, is_zero(unit, y))


def is_zero(unit: UnitGramian, y: Array) -> bool:
    """Whether the combination ``y`` of unit gradients vanishes to the rounding of the Gramian's entries.

    Errors of size eps in the cosines change ``y'Cy`` by at most eps times the square of the sum of y.
    """
    y = y / float(np.add.reduce(y))
    square = float(y.dot(unit.C.dot(y)))
    if square < -1e-9 - 64.0 * unit.eps:
        raise NotAGramianError(
            f"not positive semidefinite: weights w >= 0 that sum to 1 have w'Gw = {square:.2g} for rows of norm 1, "
            "where a square belongs. Compute the Gramian as J @ J.T in one dtype"
        )
    return square <= 16.0 * unit.eps
