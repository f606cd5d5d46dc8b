"""The descent iteration: functions that advance the state of all runs, and record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.descent.copies import Copies
from paretograd.descent.directions import Directions, directions
from paretograd.descent.evaluation import Evaluation, Points, all_finite, evaluate, least
from paretograd.descent.records import Records
from paretograd.descent.step_sizes import Position, StepSize
from paretograd.descent.stopping import Stop
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem
from paretograd.scalarizations.base import Weighting

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Setting:
    """The arguments of a descent, see `Descent`; and the copies of a rule that needs one for each run."""

    problem: Problem
    aggregator: Aggregator | Weighting
    step_size: StepSize
    steps: int
    stop_gamma: float
    stop_norm: float
    dtype: torch.dtype
    copies: Copies | None = None


class State(NamedTuple):
    """The state of all runs. It is immutable, so that an interrupt never leaves it half updated.

    Attributes:
        step: number of steps taken by the active runs.
        active: indices of the active runs.
        here: the evaluation of their current points.
        lengths: number of steps taken by each stopped run, ``(B,)``.
        reasons: why each run stopped; ``Stop.RUNNING`` for the active ones.
    """

    step: int
    active: Rows
    here: Evaluation
    lengths: NDArray[np.int64]
    reasons: tuple[Stop, ...]

    def retire(self, stops: Mapping[int, Stop]) -> State:
        """Return the state without these runs, given by their index among the active ones."""
        if not stops:
            return self
        reasons, ends = list(self.reasons), self.lengths.copy()
        for row, stop in stops.items():
            run = self.active[row]
            reasons[run], ends[run] = stop, self.step
        kept = np.array([row for row in range(len(self.active)) if row not in stops], dtype=np.intp)
        return self._replace(active=self.active[kept], here=self.here.take(kept), lengths=ends, reasons=tuple(reasons))


def begin(setting: Setting, points: Tensor, records: Records) -> State:
    """Return the state at the starts ``(B, n)``. A run with a non-finite loss or gradient there stops immediately."""
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
    """Return the state with its points ``(len(active), n)`` re-evaluated."""
    with quiet():
        here, _ = evaluate(setting.problem, points.numpy())
    return state._replace(here=here)


def quiet() -> np.errstate:
    """Silence numpy on non-finite numbers, which stop a run anyway; enter it around calls of `step`."""
    return np.errstate(over="ignore", invalid="ignore")


def step(setting: Setting, state: State, records: Records) -> State:
    """Let every active run take a step or stop. A schedule of rules advances by one step, or not at all on failure."""
    if setting.copies is not None:
        with setting.copies.one_step(state.active):
            return _step(setting, state, setting.copies.directions(state.here, state.active), records)
    assert isinstance(setting.aggregator, Aggregator)
    with setting.aggregator.one_step():
        return _step(setting, state, directions(setting.aggregator, state.here, state.active), records)


def _step(setting: Setting, state: State, found: Directions, records: Records) -> State:
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
    """Record the points reached, and retire the runs that are finished."""
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
    """Remove stopped runs from the state and from the directions."""
    if not stops:
        return state, found
    kept = np.array([row for row in range(len(state.active)) if row not in stops], dtype=np.intp)
    parts = (found.weights[kept], found.d[kept], found.norms[kept], found.slopes[kept])
    return state.retire(stops), Directions(*parts, stops={})


def _rounded(points: Array, dtype: torch.dtype) -> Points:
    """Round to the dtype of the runs. For so few numbers, numpy takes a third of torch's time."""
    return points if dtype is torch.float64 else points.astype(np.float32)


def _index(state: State) -> Rows | slice:
    """Return the columns of the active runs; a slice, which numpy writes faster, if these are all."""
    return slice(None) if len(state.active) == len(state.reasons) else state.active
