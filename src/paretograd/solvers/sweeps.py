"""Cyclic projections of every gradient onto the half-spaces of the others, on the Gramian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

#: Largest m for which the m^3 numbers of all rows in all orders are gathered at once.
_GATHERED = 48


class Sweep(NamedTuple):
    """Treated gradients: row k holds the coefficients of gradient k's current version, and its slopes."""

    coefficients: Array
    slopes: Array

    @classmethod
    def start(cls, C: Array) -> Sweep:
        """Every gradient as it is."""
        return cls(np.eye(len(C)), C)


def sweep_in_order(C: Array, start: Sweep) -> Sweep:
    """One pass over i = 1..m; all gradients k are treated side by side, as they do not affect each other."""
    A, X = start.coefficients.copy(), start.slopes.copy()
    for i in range(len(C)):
        lift = np.maximum(-X[:, i], 0.0)
        A[:, i] += lift
        X += lift[:, None] * C[i]
    return Sweep(A, X)


def sweep_shuffled(C: Array, start: Sweep, orders: NDArray[np.intp]) -> Sweep:
    """One pass in which gradient k meets the others in the order ``orders[k]``."""
    m = len(C)
    X = start.slopes.copy()
    flat = X.ravel()
    # Gradient k meets each other one once, so that all coefficients can be added in the end.
    places = orders + m * np.arange(m)[:, None]
    lifts = np.empty((m, m))
    gathered = C[orders] if m <= _GATHERED else None
    for step in range(m):
        lift = np.maximum(-flat.take(places[:, step]), 0.0)
        lifts[:, step] = lift
        X += lift[:, None] * (C[orders[:, step]] if gathered is None else gathered[:, step])
    A = start.coefficients.copy()
    A.ravel()[places] += lifts
    return Sweep(A, X)
