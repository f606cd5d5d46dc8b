"""The rule's directions at the points of a batch of runs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.mgda import MGDA
from paretograd.aggregators.mixed import Mixed
from paretograd.descent import pairs
from paretograd.descent.evaluation import EPS, Evaluation, combine, inner, norm
from paretograd.descent.small import all_true
from paretograd.descent.stops import Stop
from paretograd.geometry.gramian import Array
from paretograd.solution import Status

_REASONS = {Status.STATIONARY: Stop.STATIONARY, Status.DEGENERATE: Stop.DEGENERATE}

#: A direction shorter than this, relative to the gradients that it sums, is rounding: a Gramian resolves no less (as
#: `paretograd.solvers.min_norm` has it).
_ZERO = 4.0 * math.sqrt(EPS)

#: For each run that has nowhere to go: its number in the batch, and why.
Stops = dict[int, Stop]


class Directions(NamedTuple):
    """``d = J.T w`` for B runs.

    Attributes:
        weights: ``(B, m)``.
        d: ``(B, n)``.
        norms: ``|d|``, ``(B,)``.
        slopes: ``<g_k, d>``, ``(B, m)``.
        stops: of the runs that have nowhere to go.
    """

    weights: Array
    d: Array
    norms: Array
    slopes: Array
    stops: Stops


def directions(aggregator: Aggregator, here: Evaluation) -> Directions:
    """The rule's answer for every run; the caller holds the rule's `one_step`."""
    weights, stops = _weigh(aggregator, here)
    if weights is here.witness:
        d, norms = here.shortest, here.gamma
    else:
        d = combine(weights, here.J)
        norms = norm(d)
    moving = norms > _ZERO * inner(np.abs(weights), here.lengths)
    if not all_true(moving):
        for run in np.flatnonzero(~moving).tolist():
            stops.setdefault(run, Stop.STATIONARY)
    slopes: Array = here.J @ d[:, :, None]
    return Directions(weights, d, norms, slopes[:, :, 0], stops)


def _weigh(aggregator: Aggregator, here: Evaluation) -> tuple[Array, Stops]:
    """Weights ``(B, m)``, by the quickest way that is exact."""
    if isinstance(aggregator, Mixed):
        return aggregator._act(lambda rule: _weigh(rule, here))
    if type(aggregator) is MGDA:  # its direction is what gamma is the length of
        return here.witness, {}
    short = pairs.formula(aggregator) if here.losses.shape[1] == 2 else None
    if short is None:
        weights, left = np.empty(here.losses.shape), list(range(len(here.G)))
    else:
        plain = pairs.plain(here.G, here.lengths)
        if all_true(plain):
            return short(here.G, here.lengths), {}
        weights, left = np.empty(here.losses.shape), np.flatnonzero(~plain).tolist()
        weights[plain] = short(here.G[plain], here.lengths[plain])
    stops: Stops = {}
    for run in left:
        outcome = aggregator._outcome(here.G[run], EPS)
        weights[run] = outcome.weights
        if outcome.status in _REASONS:
            stops[run] = _REASONS[outcome.status]
    return weights, stops
