"""Losses, gradients and gamma at a batch of points, and the batched arithmetic of the descent loop.

The numbers of a run do not depend on the other runs in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.problems.base import Problem
from paretograd.solvers.min_norm import min_norm_point

#: Points in the dtype of the runs.
Points = NDArray[np.float32] | NDArray[np.float64]

#: Relative rounding error of Gramians that were computed in float64.
EPS = float(np.finfo(np.float64).eps)

#: Up to this many entries, Python's reductions are faster than numpy's.
_FEW = 64


class Evaluation(NamedTuple):
    """Losses, gradients and gamma at B points.

    Attributes:
        points: shape ``(B, n)``; float64, but every value is exact in the dtype of the runs.
        losses: ``(B, m)``.
        J: Jacobians, ``(B, m, n)``.
        G: Gramians, ``(B, m, m)``.
        lengths: norms of the gradients, ``(B, m)``.
        witness: weights on the simplex of the shortest convex combination, ``(B, m)``: MGDA's.
        shortest: this combination, ``(B, n)``.
        gamma: its norm, ``(B,)``.
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
        """Select some of the points."""
        return Evaluation(*(part[rows] for part in self))


def evaluate(problem: Problem, points: Points) -> tuple[Evaluation, NDArray[np.bool_] | None]:
    """Evaluate the problem once at all points ``(B, n)``, given in the dtype of the runs.

    Returns:
        the evaluation of the points where everything is finite, and the mask ``(B,)`` of these points; None if it is
        all of them.
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
    """Return the weights on the simplex that minimise ``|J.T w|`` (eq. PS-quant), ``(B, m)``.

    Two gradients have a closed form, the foot of the perpendicular from the origin to the segment between them. It is
    computed from the gradients, for all B at once. More gradients need one min-norm problem per point.
    """
    B, m, _ = J.shape
    if m == 1:
        return np.ones((B, 1))
    if m == 2:
        side = J[:, 1] - J[:, 0]
        square = inner(side, side)
        if B and not least(square) > 0.0:  # equal gradients: any weights are optimal
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


def _as_double(tensor: Tensor) -> Array:
    array: Points = tensor.detach().numpy()
    return array.astype(np.float64, copy=False)


def combine(weights: Array, J: Array) -> Array:
    """Return ``J.T w`` for every run, ``(B, n)``."""
    rows: Array = weights[:, None] @ J
    return rows[:, 0]


def _inner(a: Array, b: Array) -> Array:
    products: Array = a[:, None, :] @ b[:, :, None]
    return products[:, 0, 0]


#: Inner products of rows, ``(B,)``. Both versions (vecdot needs numpy 2) sum each row in the same order whatever the
#: batch size.
inner: Callable[[Array, Array], Array] = getattr(np, "vecdot", _inner)


def norm(d: Array) -> Array:
    """Return the norms of the rows, ``(B,)``."""
    return np.sqrt(inner(d, d))


def least(values: Array) -> float:
    """Return the minimum of finite values."""
    return float(min(values.ravel().tolist()) if values.size <= _FEW else values.min())


def most(values: Array) -> float:
    """Return the maximum of finite values."""
    return float(max(values.ravel().tolist()) if values.size <= _FEW else values.max())


def all_finite(values: Array) -> bool:
    """Return True if every value is finite; values near 1e308, whose sum overflows, may give False."""
    return math.isfinite(sum(values.ravel().tolist()) if values.size <= _FEW else float(values.sum()))


def all_true(flags: NDArray[np.bool_]) -> bool:
    """Return True if every flag is set."""
    return False not in flags.tolist() if flags.size <= _FEW else bool(flags.all())
