"""Directions of a batch of runs: the aggregator's solver, or a closed form for two objectives.

The solvers handle any number of objectives, one Gramian at a time. For two objectives, the weights of the paper's rules
have short formulas, which handle all runs at once. They agree with the solvers to rounding. Gramians for which the
formulas lose accuracy, such as those of nearly opposite gradients, go to the solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.dual_cone import UPGrad
from paretograd.aggregators.mixed import Mixed
from paretograd.aggregators.named import MGDA, DualProj, Mean
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.power import NashMTL
from paretograd.descent.evaluation import EPS, Evaluation, all_true, combine, inner, least, most, norm
from paretograd.descent.stopping import Stop
from paretograd.geometry.gramian import Array
from paretograd.solution import Status

_REASONS = {Status.STATIONARY: Stop.STATIONARY, Status.DEGENERATE: Stop.DEGENERATE}

#: Relative to the gradients that it combines, a direction shorter than this is rounding error: a Gramian resolves no
#: shorter one (see `paretograd.solvers.min_norm`).
_ZERO = 4.0 * math.sqrt(EPS)

#: Runs without a direction: their index in the batch, and the reason.
Stops = dict[int, Stop]

#: A closed form: Gramians ``(B, 2, 2)`` and norms of the gradients ``(B, 2)`` to weights ``(B, 2)``.
Formula = Callable[[Array, Array], Array]

#: The squares of norms between this and its inverse neither underflow nor overflow.
_SHORT = 1e-70
#: Gradients with a cosine below this go to the solver.
_OPPOSITE = -1.0 + 1e-6


class Directions(NamedTuple):
    """``d = J.T w`` for B runs.

    Attributes:
        weights: ``(B, m)``; NaN if d is no combination of the gradients.
        d: ``(B, n)``.
        norms: ``|d|``, ``(B,)``.
        slopes: ``<g_k, d>``, ``(B, m)``.
        stops: the runs without a direction.
    """

    weights: Array
    d: Array
    norms: Array
    slopes: Array
    stops: Stops


def directions(aggregator: Aggregator, here: Evaluation, runs: NDArray[np.intp]) -> Directions:
    """Aggregate the gradients of every run; call it within the aggregator's `one_step`.

    Args:
        aggregator: the rule.
        here: the runs where they are.
        runs: their numbers, by which a rule keeps what it learned of each.
    """
    weights, stops = _weigh(aggregator, here, runs)
    if weights is here.witness:
        return measured(here, weights, here.shortest, here.gamma, stops)
    d = combine(weights, here.J)
    return measured(here, weights, d, norm(d), stops)


def measured(here: Evaluation, weights: Array, d: Array, norms: Array, stops: Stops) -> Directions:
    """Return directions with their slopes. Runs whose direction is zero stop.

    Args:
        here: the runs where they are.
        weights: ``(B, m)``; NaN where d is no combination of the gradients.
        d: the directions, ``(B, n)``.
        norms: their norms, ``(B,)``.
        stops: the runs that stop for another reason.
    """
    moving = norms > _ZERO * inner(np.abs(weights), here.lengths)
    if not all_true(moving):
        moving |= np.isnan(weights).any(axis=1) & (norms > 0.0)
        for run in np.flatnonzero(~moving).tolist():
            stops.setdefault(run, Stop.STATIONARY)
    slopes: Array = here.J @ d[:, :, None]
    return Directions(weights, d, norms, slopes[:, :, 0], stops)


def _weigh(aggregator: Aggregator, here: Evaluation, runs: NDArray[np.intp]) -> tuple[Array, Stops]:
    """Return the weights ``(B, m)``, computed by the fastest exact method."""
    if isinstance(aggregator, Mixed):
        return aggregator._act(lambda rule: _weigh(rule, here, runs))
    if type(aggregator) is MGDA:  # its direction is the shortest combination, known from computing gamma
        return here.witness, {}
    closed = closed_form(aggregator) if here.losses.shape[1] == 2 else None
    if closed is None:
        weights, left = np.empty(here.losses.shape), list(range(len(here.G)))
    else:
        usable = closed_form_applies(here.G, here.lengths)
        if all_true(usable):
            return closed(here.G, here.lengths), {}
        weights, left = np.empty(here.losses.shape), np.flatnonzero(~usable).tolist()
        weights[usable] = closed(here.G[usable], here.lengths[usable])
    stops: Stops = {}
    for run in left:
        aggregator._turn_to(int(runs[run]))
        outcome = aggregator._outcome(here.G[run], EPS)
        weights[run] = outcome.weights
        if outcome.status in _REASONS:
            stops[run] = _REASONS[outcome.status]
    return weights, stops


def closed_form(aggregator: Aggregator) -> Formula | None:
    """Return the rule's closed form for two objectives; None if it has none with these parameters."""
    if isinstance(aggregator, Normalized):
        base = closed_form(aggregator.aggregator)
        return None if base is None else lambda G, lengths: _normalized(base(G, lengths))
    if type(aggregator) is Mean and aggregator.s.weights is None:
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


def closed_form_applies(G: Array, lengths: Array) -> NDArray[np.bool_]:
    """Return the mask of the Gramians ``(B, 2, 2)`` for which the closed forms are accurate."""
    usable: NDArray[np.bool_] = G[:, 0, 1] > _OPPOSITE * lengths[:, 0] * lengths[:, 1]
    if not (least(lengths) > _SHORT and most(lengths) < 1.0 / _SHORT):
        usable &= (lengths.min(axis=1) > _SHORT) & (lengths.max(axis=1) < 1.0 / _SHORT)
    return usable


def _upgrad(G: Array, lengths: Array) -> Array:
    """If the gradients conflict, projecting g_0 adds ``-<g_0, g_1> / |g_1|^2`` times g_1; likewise for g_1."""
    return 0.5 + np.maximum(-0.5 * G[:, 0, 1:], 0.0) / (lengths * lengths)


def _dualproj(G: Array, lengths: Array) -> Array:
    """Project the mean onto ``<g_k, d> >= 0`` for the gradient, at most one, that it conflicts with."""
    return np.maximum(-0.5 * G[:, 0, 1:] / (lengths * lengths), 0.5)


def _nash(G: Array, lengths: Array, scale: float) -> Array:
    """By symmetry, both ``w_k |g_k|`` are equal; their square is ``1 / (1 + cosine)``, before scaling."""
    cosine = G[:, 0, 1] / (lengths[:, 0] * lengths[:, 1])
    return scale / (lengths * np.sqrt(1.0 + cosine)[:, None])


def _normalized(weights: Array) -> Array:
    return weights / (weights[:, 0] + weights[:, 1])[:, None]
