"""One step of all runs, as a function from a state to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.descent.directions import Directions, directions
from paretograd.descent.evaluation import Evaluation, Points, all_finite, evaluate, least
from paretograd.descent.records import Records, Stop
from paretograd.descent.step_sizes import Position, StepSize
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Setting:
    """What stays the same over a descent; see `Descent`."""

    problem: Problem
    aggregator: Aggregator
    step_size: StepSize
    steps: int
    stop_gamma: float
    stop_norm: float
    dtype: torch.dtype


class State(NamedTuple):
    """Where all runs stand. It is replaced as a whole, so that an interrupt finds no half of it.

    Attributes:
        step: number of steps taken by the runs that are under way.
        active: numbers of these runs.
        here: their points.
        lengths: steps taken by each run that has stopped, ``(B,)``.
        reasons: why each run has stopped, or that it has not.
    """

    step: int
    active: Rows
    here: Evaluation
    lengths: NDArray[np.int64]
    reasons: tuple[Stop, ...]

    def retire(self, stops: Mapping[int, Stop]) -> State:
        """Without the runs with these numbers among the active ones."""
        if not stops:
            return self
        reasons, ends = list(self.reasons), self.lengths.copy()
        for row, stop in stops.items():
            run = self.active[row]
            reasons[run], ends[run] = stop, self.step
        kept = np.array([row for row in range(len(self.active)) if row not in stops], dtype=np.intp)
        return self._replace(active=self.active[kept], here=self.here.take(kept), lengths=ends, reasons=tuple(reasons))


def begin(setting: Setting, points: Tensor, records: Records) -> State:
    """The state at the starts ``(B, n)``; a run whose start is no place to be stops there."""
    B = len(points)
    with quiet():
        here, good = evaluate(setting.problem, points.numpy())
    good = np.ones(B, dtype=bool) if good is None else good
    reasons = tuple(Stop.RUNNING if fine else Stop.NOT_FINITE for fine in good)
    zeros = np.zeros(B, dtype=np.int64)
    records.arrays["points"][0] = points.double().numpy()
    state = State(0, np.flatnonzero(good), here, zeros, reasons)
    return _arrive(setting, state, records)


def resume(setting: Setting, state: State, points: Tensor) -> State:
    """The state with its points ``(len(active), n)`` evaluated anew."""
    with quiet():
        here, _ = evaluate(setting.problem, points.numpy())
    return state._replace(here=here)


def quiet() -> np.errstate:
    """Numbers that are not finite stop a run; numpy need not warn of them. Who calls `step` enters it."""
    return np.errstate(over="ignore", invalid="ignore")


def step(setting: Setting, state: State, records: Records) -> State:
    """Every active run takes a step, or stops. For a schedule of rules it is one step, and none if anything fails."""
    with setting.aggregator.one_step():
        return _step(setting, state, records)


def _step(setting: Setting, state: State, records: Records) -> State:
    found = directions(setting.aggregator, state.here)
    stops = dict(found.stops)
    if least(found.norms) < setting.stop_norm:
        for row in np.flatnonzero(found.norms < setting.stop_norm).tolist():
            stops.setdefault(row, Stop.NORM)
    state, found = _leave(state, found, stops)
    if not len(state.active):
        return state
    problem, dtype, here = setting.problem, setting.dtype, state.here

    def losses_after(eta: Array, rows: Rows) -> Array:
        moved = _rounded(here.points[rows] - eta[:, None] * found.d[rows], dtype)
        with torch.no_grad():
            return np.asarray(problem.objectives(torch.from_numpy(moved)).double().numpy())

    position = Position(here.losses, here.lengths, found.weights, found.slopes, found.norms, losses_after)
    eta = setting.step_size(position)
    if not all_finite(eta):
        going = np.isfinite(eta)
        eta = eta[going]
        state, found = _leave(state, found, dict.fromkeys(np.flatnonzero(~going).tolist(), Stop.NO_STEP))
        if not len(state.active):
            return state
    there, good = evaluate(problem, _rounded(state.here.points - eta[:, None] * found.d, dtype))
    if good is not None:
        eta = eta[good]
        state, found = _leave(state, found, dict.fromkeys(np.flatnonzero(~good).tolist(), Stop.NOT_FINITE))
        if not len(state.active):
            return state
    t, runs = state.step, _index(state)
    records.reserve(t + 1)
    rows = records.arrays
    rows["weights"][t, runs], rows["slopes"][t, runs] = found.weights, found.slopes
    rows["norms"][t, runs], rows["step_sizes"][t, runs] = found.norms, eta
    rows["gradient_norms"][t, runs] = state.here.lengths
    return _arrive(setting, State(t + 1, state.active, there, state.lengths, state.reasons), records)


def _arrive(setting: Setting, state: State, records: Records) -> State:
    """Write down the points that have been reached, and retire who is at the end."""
    t, here, runs = state.step, state.here, _index(state)
    if not len(state.active):
        return state
    rows = records.arrays
    rows["losses"][t, runs], rows["points"][t, runs], rows["gamma"][t, runs] = here.losses, here.points, here.gamma
    stops: dict[int, Stop] = {}
    if least(here.gamma) < setting.stop_gamma:
        stops.update(dict.fromkeys(np.flatnonzero(here.gamma < setting.stop_gamma).tolist(), Stop.GAMMA))
    if t >= setting.steps:
        for row in range(len(state.active)):
            stops.setdefault(row, Stop.STEPS)
    return state.retire(stops)


def _leave(state: State, found: Directions, stops: Mapping[int, Stop]) -> tuple[State, Directions]:
    if not stops:
        return state, found
    kept = np.array([row for row in range(len(state.active)) if row not in stops], dtype=np.intp)
    parts = (found.weights[kept], found.d[kept], found.norms[kept], found.slopes[kept])
    return state.retire(stops), Directions(*parts, stops={})


def _rounded(points: Array, dtype: torch.dtype) -> Points:
    """In the dtype of the runs. By numpy, which takes a third of the time that torch needs for so few numbers."""
    return points if dtype is torch.float64 else points.astype(np.float32)


def _index(state: State) -> Rows | slice:
    """The active runs' columns; a slice where these are all, which numpy writes to faster."""
    return slice(None) if len(state.active) == len(state.reasons) else state.active
