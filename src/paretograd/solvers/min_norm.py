"""The point of least norm in the convex hull of the gradients, and its length: the paper's measure of stationarity."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import NotAGramianError
from paretograd.geometry.gramian import Array, as_array
from paretograd.geometry.unit_gramian import UnitGramian, check_gramian, unit_gramian
from paretograd.solution import Point
from paretograd.solvers.nonneg_qp import relative_residual, solve_on_hull


def min_norm_point(unit: UnitGramian) -> Point:
    """Minimise ``|J.T w|`` over the simplex (eq. PS-quant; the dual of MGDA's subproblem).

    Let ``a_k = 1/|g_k|`` up to scale, and y the weights of the *unit* gradients. The problem is ``min y'Cy`` subject to
    ``a'y = 1, y >= 0``. Adding the squared equality to the objective changes only the length of the answer.
    ``min y'Cy + (a'y - 1)^2`` has a solution even at a stationary point, and ``C + aa'`` is regular there if C has a
    single null vector.
    """
    if unit.has_zero_row:
        zero = np.ones(unit.m)
        zero[unit.live] = 0.0
        return Point(zero / zero.sum(), 0.0, 0, stationary=True)
    a = unit.norms[unit.norms.argmin()] / unit.norms
    solution = solve_on_hull(unit.C, a)
    y = solution.a
    weights = y * a
    weights /= y.dot(a)
    return Point(weights, relative_residual(solution), solution.steps, 1.0, _is_zero(unit, y))


def is_stationary(unit: UnitGramian, weights: Array) -> bool:
    """Return True if the combination of the gradients with these weights is zero to rounding, at any scale."""
    y = unit.restrict(weights) * unit.norms
    return not y.any() or _is_zero(unit, y / y.max())


def _is_zero(unit: UnitGramian, y: Array) -> bool:
    """Return True if the combination ``y`` of unit gradients is zero to the rounding of the Gramian's entries.

    Errors of size eps in the cosines change ``y'Cy`` by at most eps times the square of the sum of y.
    """
    y = y / float(np.add.reduce(y))
    square = float(y.dot(unit.C.dot(y)))
    if square < -1e-9 - 64.0 * unit.eps:
        raise NotAGramianError(
            f"not positive semidefinite: weights w >= 0 that sum to 1 have w'Gw = {square:.2g} for rows of norm 1; "
            "it must be at least 0. Compute the Gramian as J @ J.T in one dtype"
        )
    return square <= 16.0 * unit.eps


def stationarity(gramian: Tensor) -> Tensor:
    r"""Distance from Pareto stationarity, $\gamma = \min_{w \in \Delta} \|J^\top w\|$ (eq. PS-quant).

    Zero exactly where some convex combination of the gradients vanishes. A Gramian resolves it down to the
    square root of its rounding error: about 1e-8 of the gradients' norms in float64.

    Args:
        gramian: shape ``(..., m, m)``.

    Returns:
        shape ``(...)``, in the Gramian's dtype and on its device.
    """
    check_gramian(gramian)
    array = as_array(gramian)
    eps = torch.finfo(gramian.dtype).eps
    m = array.shape[-1]
    values = [gamma_of(G, eps) for G in array.reshape(-1, m, m)]
    return torch.tensor(values, dtype=gramian.dtype, device=gramian.device).reshape(array.shape[:-2])


def stationarity_weights(G: Array, eps: float) -> Array:
    """Weights on the simplex that attain gamma, for one Gramian of shape ``(m, m)``."""
    return min_norm_point(unit_gramian(G, eps)).weights


def gamma_of(G: Array, eps: float) -> float:
    """Gamma of one Gramian, whose entries have a relative error of about ``eps``."""
    unit = unit_gramian(G, eps)
    if unit.has_zero_row:
        return 0.0
    scaled = min_norm_point(unit).weights * unit.norms
    size = float(scaled.max())
    scaled /= size
    return size * math.sqrt(max(float(scaled @ unit.C @ scaled), 0.0))
