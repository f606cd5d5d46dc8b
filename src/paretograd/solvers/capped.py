"""The point of least norm in the convex hull of the gradients when no weight may exceed a cap."""

from __future__ import annotations

import numpy as np

from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solvers.min_norm import MinNorm, min_norm_point
from paretograd.solvers.spectral import spectral_min_norm_point


def capped_min_norm_point(unit: UnitGramian, cap: float) -> MinNorm:
    """Minimise ``|J.T w|`` over ``{w in the simplex, w <= cap}`` (the dual of the CVaR subproblem).

    The capped simplex is the permutahedron of ``(cap, ..., cap, rest, 0, ..., 0)``.

    Args:
        unit: the Gramian.
        cap: C in the paper, at least 1/m (the caller checks).
    """
    plain = min_norm_point(unit)
    if plain.weights.max() <= cap:
        return plain
    full = min(int(1.0 / cap * (1.0 + 1e-14)), unit.m)
    spectrum = np.zeros(unit.m)
    spectrum[:full] = cap
    if full < unit.m:
        spectrum[full] = max(1.0 - full * cap, 0.0)
    return spectral_min_norm_point(unit, spectrum, plain)
