"""Simplex, cone and dual cone: membership of weights and of the direction they give. Pure functions on arrays."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array


def in_simplex(weights: Array, tol: float = 1e-12, cap: float = np.inf) -> bool:
    """Whether weights are non-negative, at most ``cap``, and sum to one."""
    total_ok = abs(float(weights.sum()) - 1.0) <= tol * len(weights)
    return bool(total_ok and weights.min() >= -tol and weights.max() <= cap * (1.0 + tol))


def in_cone(weights: Array, tol: float = 1e-12) -> bool:
    """Whether ``J.T w`` is a conic combination of the gradients as it stands: w >= 0."""
    return bool(weights.min(initial=0.0) >= -tol * np.abs(weights).max(initial=0.0))


def norm(G: Array, weights: Array) -> float:
    """``|J.T w|``, without overflow or underflow on the way."""
    lengths = np.sqrt(G.diagonal())
    size = float((np.abs(weights) * lengths).max(initial=0.0))
    if size == 0.0:
        return 0.0
    scaled = weights / size
    return size * math.sqrt(max(float(scaled @ G @ scaled), 0.0))


def slopes(G: Array, weights: Array) -> Array:
    """``<d, g_k>`` for every objective: the rate at which each one goes down along ``-d``."""
    return G @ weights


def conflicts(G: Array, weights: Array, tol: float) -> NDArray[np.intp]:
    """Objectives that go up along ``-d``: ``<d, g_k> < 0`` beyond rounding.

    Rounding is ``tol |d| |g_k|``, plus that of the sum ``J.T w`` itself, which matters where d is much shorter
    than the gradients it is made of.
    """
    lengths = np.sqrt(G.diagonal())
    summed = float((np.abs(weights) * lengths).sum())
    slack = lengths * (tol * norm(G, weights) + 1e-15 * len(weights) * summed)
    return np.flatnonzero(slopes(G, weights) < -slack)


def gamma_bracket(G: Array, witness: Array) -> tuple[float, float]:
    """Bounds on gamma from any weights on the simplex: ``min_k (G w)_k / |J.T w| <= gamma <= |J.T w|``.

    The upper bound is the definition of a minimum; the lower one holds as every point of the hull has an inner
    product of at least ``min_k <d, g_k>`` with ``d = J.T w``.
    """
    upper = norm(G, witness)
    lower = float(slopes(G, witness).min()) / upper if upper > 0.0 else 0.0
    return min(max(lower, 0.0), upper), upper
