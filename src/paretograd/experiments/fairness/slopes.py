"""What the Gramians of a step say about its gradients and directions, for S classifiers at once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.solvers.min_norm import min_norm_point

#: Rounding of the Gramians, which are multiplied in float64 whatever precision the gradients have.
EPS = float(np.finfo(np.float64).eps)


def finite(losses: Array, G: Array) -> NDArray[np.bool_]:
    """Which classifiers have finite losses and gradients, ``(S,)``."""
    return np.asarray(np.isfinite(losses).all(axis=1) & np.isfinite(G).all(axis=(1, 2)))


def distance(G: Array) -> float:
    """Gamma: the length of the shortest convex combination of the gradients."""
    weights = min_norm_point(unit_gramian(G, EPS)).weights
    return math.sqrt(max(float(weights @ G @ weights), 0.0))


def conflicting(G: Array, weights: Array, slopes: Array, norms: Array) -> NDArray[np.bool_]:
    """Along which directions some objective goes up, to first order and beyond rounding, ``(S,)``."""
    lengths = np.sqrt(np.maximum(np.einsum("skk->sk", G), 0.0))
    errors, tol = cones.term_errors(lengths, weights), cones.conflict_tolerance(EPS)
    return np.asarray(cones.conflicting(slopes, lengths, norms, tol=tol, errors=errors).any(axis=1))
