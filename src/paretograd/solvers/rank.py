"""The rank of the gradients, decided on their cosines, for rules whose formula holds a pseudo-inverse."""

from __future__ import annotations

import numpy as np

from paretograd.geometry.cones import FLOAT32_ROWS
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solvers.lapack import cholesky, solve_spd

#: If all squared Cholesky pivots exceed this, the rank is full, for any order of the rows.
_INDEPENDENT = 1e-6


def weights_if_independent(unit: UnitGramian) -> Array | None:
    """Return weights y of the unit gradients with ``C y = 1``, or None if C may be singular."""
    return solve_spd(unit.C.copy(), np.ones(len(unit.norms)), _singular(unit))


def factor_if_independent(unit: UnitGramian) -> Array | None:
    """Return the lower Cholesky factor of C, or None if C may be singular."""
    return cholesky(unit.C, _singular(unit))


def _singular(unit: UnitGramian) -> float:
    """Return the squared distance from the span of others below which a unit gradient may lie in it."""
    return max(_INDEPENDENT, 100.0 * unit.resolution**2)


def spectrum(unit: UnitGramian) -> tuple[Array, Array]:
    """Return the positive eigenvalues of C and their vectors. The rank does not depend on the order of the rows."""
    values, vectors = np.linalg.eigh(unit.C)
    kept = values > max(unit.resolution**2, len(values) * unit.eps)
    return values[kept], vectors[:, kept]


def rounding(unit: UnitGramian) -> float:
    """Return the rounding error of slopes, coefficients and sums of order one, from the rows or the Gramian."""
    return max(FLOAT32_ROWS, 8.0 * unit.eps)


def without_rounding(values: Array, unit: UnitGramian) -> Array:
    """Return the values, with those below the rounding error set to zero."""
    return np.where(np.abs(values) > rounding(unit), values, 0.0)
