"""Losses, gradients and gamma at the points of a batch of runs; a run's numbers do not depend on who else is in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.descent.small import all_finite, least
from paretograd.geometry.gramian import Array, unit_gramian
from paretograd.problems.base import Problem
from paretograd.solvers.min_norm import min_norm_point

#: Numbers in the dtype of the runs.
Points = NDArray[np.float32] | NDArray[np.float64]

#: Rounding of Gramians that were multiplied in float64.
EPS = float(np.finfo(np.float64).eps)


class Evaluation(NamedTuple):
    """What is known of B points.

    Attributes:
        points: shape ``(B, n)``, float64; every number is one of the run's dtype.
        losses: ``(B, m)``.
        J: Jacobians, ``(B, m, n)``.
        G: Gramians, ``(B, m, m)``.
        lengths: norms of the gradients, ``(B, m)``.
        witness: weights on the simplex whose combination is the shortest, ``(B, m)``: MGDA's.
        shortest: that combination, ``(B, n)``.
        gamma: its length, ``(B,)``.
    """

    points: Array
    losses: Array
    J: Array
    G: Array
    lengths: Array
    witness: Array
    shortest: Array
    gamma: Array

    def take(self, rows: NDArray[np.intp]) -> Evaluation:
        """Some of the points."""
        return Evaluation(*(part[rows] for part in self))


def evaluate(problem: Problem, points: Points) -> tuple[Evaluation, NDArray[np.bool_] | None]:
    """Losses, gradients and gamma at points ``(B, n)`` in the dtype of the runs, all by one call of the problem.

    Returns:
        the evaluation of the points where everything is finite, and which these are, ``(B,)``; None for all.
    """
    values, rows = problem.jacobian(torch.from_numpy(points))
    at, losses, J = points.astype(np.float64, copy=False), _as_double(values), _as_double(rows)
    G: Array = J @ J.transpose(0, 2, 1)
    good: NDArray[np.bool_] | None = None
    if not (all_finite(losses) and all_finite(G)):
        good = np.asarray(np.isfinite(losses).all(axis=1) & np.isfinite(G).all(axis=(1, 2)))
        at, losses, J, G = at[good], losses[good], J[good], G[good]
    witness = shortest_weights(J, G)
    shortest = combine(witness, J)
    lengths = np.sqrt(G.diagonal(axis1=1, axis2=2))
    return Evaluation(at, losses, J, G, lengths, witness, shortest, norm(shortest)), good


def shortest_weights(J: Array, G: Array) -> Array:
    """Weights on the simplex that minimise ``|J.T w|`` (eq. PS-quant), ``(B, m)``.

    For two gradients it is the foot of the perpendicular on the segment between them, from the gradients themselves
    and for all B at once; for more, one min-norm problem for each.
    """
    B, m, _ = J.shape
    if m == 1:
        return np.ones((B, 1))
    if m == 2:
        side = J[:, 1] - J[:, 0]
        square = inner(side, side)
        if B and not least(square) > 0.0:  # equal gradients: any weights will do
            square = np.where(square > 0.0, square, math.inf)
        weights = np.empty((B, 2))
        first = np.divide(inner(side, J[:, 1]), square, out=weights[:, 0])
        np.minimum(np.maximum(first, 0.0, out=first), 1.0, out=first)
        np.subtract(1.0, first, out=weights[:, 1])
        return weights
    found = np.empty((B, m))
    for i in range(B):
        found[i] = min_norm_point(unit_gramian(G[i], EPS)).weights
    return found


def combine(weights: Array, J: Array) -> Array:
    """``J.T w`` for every run, ``(B, n)``."""
    rows: Array = weights[:, None] @ J
    return rows[:, 0]


def _inner(a: Array, b: Array) -> Array:
    products: Array = a[:, None, :] @ b[:, :, None]
    return products[:, 0, 0]


#: Inner products of rows, ``(B,)``. By matmul or what replaces it since numpy 2, row by row: the sum's order is that of
#: a run alone.
inner: Callable[[Array, Array], Array] = getattr(np, "vecdot", _inner)


def norm(d: Array) -> Array:
    """Lengths of rows, ``(B,)``."""
    return np.sqrt(inner(d, d))


def _as_double(tensor: Tensor) -> Array:
    array: Points = tensor.detach().numpy()
    return array.astype(np.float64, copy=False)
