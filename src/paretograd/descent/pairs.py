"""Rules in closed form for two objectives, for all runs at once.

The solvers of the rules are made for any number of objectives and take one Gramian after the other. For two, the
weights of the paper's rules are short formulas, which cost five runs as much as one. They agree with the solvers to
rounding (the tests say so); where rounding is delicate, as for gradients that are all but opposite, the solver answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.dual_cone import DualProj, UPGrad
from paretograd.aggregators.mean import Mean
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.power import NashMTL
from paretograd.descent.small import least, most
from paretograd.geometry.gramian import Array

#: Gramians ``(B, 2, 2)`` and norms of the gradients ``(B, 2)`` to weights ``(B, 2)``.
Formula = Callable[[Array, Array], Array]

#: Norms between this and its inverse are far from the ends of float64, squared, too.
_SHORT = 1e-70
#: Cosines below are left to the solvers.
_OPPOSITE = -1.0 + 1e-6


def formula(aggregator: Aggregator) -> Formula | None:
    """The closed form of a rule for two objectives; None for other rules and other parameters."""
    if isinstance(aggregator, Normalized):
        inner = formula(aggregator.aggregator)
        return None if inner is None else lambda G, lengths: _normalized(inner(G, lengths))
    if type(aggregator) is Mean and aggregator._fixed is None:
        return lambda G, lengths: np.full((len(G), 2), 0.5)
    if type(aggregator) is UPGrad and aggregator.preference is None:
        return _upgrad
    if type(aggregator) is DualProj and aggregator.preference is None:
        return _dualproj
    if type(aggregator) is NashMTL:
        longest = aggregator.max_norm
        scale = 1.0 if longest is None else min(1.0, longest / math.sqrt(2.0))
        return lambda G, lengths: _nash(G, lengths, scale)
    return None


def plain(G: Array, lengths: Array) -> NDArray[np.bool_]:
    """Which Gramians ``(B, 2, 2)`` the formulas are good for."""
    usable: NDArray[np.bool_] = G[:, 0, 1] > _OPPOSITE * lengths[:, 0] * lengths[:, 1]
    if not (least(lengths) > _SHORT and most(lengths) < 1.0 / _SHORT):
        usable &= (lengths.min(axis=1) > _SHORT) & (lengths.max(axis=1) < 1.0 / _SHORT)
    return usable


def _upgrad(G: Array, lengths: Array) -> Array:
    """The projection of g_0 adds ``-<g_0, g_1> / |g_1|^2`` times g_1 where the two conflict, and so for g_1."""
    return 0.5 + np.maximum(-0.5 * G[:, 0, 1:], 0.0) / (lengths * lengths)


def _dualproj(G: Array, lengths: Array) -> Array:
    """The mean's projection onto ``<g_k, d> >= 0`` for the k, at most one, with which it conflicts."""
    return np.maximum(-0.5 * G[:, 0, 1:] / (lengths * lengths), 0.5)


def _nash(G: Array, lengths: Array, scale: float) -> Array:
    """``w_k |g_k|`` is the same for both by symmetry, and its square is ``1 / (1 + cosine)``; times ``scale``."""
    cosine = G[:, 0, 1] / (lengths[:, 0] * lengths[:, 1])
    return scale / (lengths * np.sqrt(1.0 + cosine)[:, None])


def _normalized(weights: Array) -> Array:
    return weights / (weights[:, 0] + weights[:, 1])[:, None]
