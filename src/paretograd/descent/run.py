"""The descent loop as an object: advance, look, save, resume."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.checks import as_number
from paretograd.descent import loop
from paretograd.descent.facts import facts_of
from paretograd.descent.interrupts import interrupts_between_steps
from paretograd.descent.records import NAMES, Box, Records, Stop
from paretograd.descent.starts import starting_points
from paretograd.descent.step_sizes import Constant, StepSize, as_step_size
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import InputError, ParameterError
from paretograd.geometry.gramian import Array
from paretograd.plain import from_json, to_json
from paretograd.problems.base import Problem
from paretograd.problems.checks import whole_number

#: Version of what `Descent.state_dict` returns.
_FORMAT = 1


class Descent:
    """The iteration ``w_{t+1} = w_t - eta_t d_t`` (eq. fd) from several starts at once.

    All runs are evaluated by one call of the problem; a run that stops leaves the batch. A run in a batch is bit by
    bit what it is alone, with two exceptions: a rule that draws random numbers draws others for a run alone, and a
    problem may round differently in a batch, as matrix products do (element by element it does not).

    Args:
        problem: what to minimise.
        aggregator: the rule that makes one direction of the gradients.
        lr: a number, or a rule of `paretograd.descent` such as ``Smooth()`` or ``Armijo()``.
        steps: at most this many.
        seeds: one run for each, from `Problem.start`; (0,) by default.
        starts: starting points ``(B, n)`` instead; seeds, if given, then only name the runs.
        stop_gamma: stop a run at the first point whose gamma is below this.
        stop_norm: stop a run at the first point whose direction is shorter than this.
        dtype: of the points, losses and gradients; directions are summed in float64 in any case.
    """

    def __init__(
        self,
        problem: Problem,
        aggregator: Aggregator,
        lr: float | StepSize,
        steps: int,
        *,
        seeds: Iterable[int] | None = None,
        starts: Tensor | Sequence[Sequence[float]] | None = None,
        stop_gamma: float | None = None,
        stop_norm: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.lr = as_step_size(lr)
        self._setting = loop.Setting(
            problem,
            aggregator,
            self.lr.bind(problem, aggregator),
            whole_number("descend", "steps", steps, least=0),
            _limit(stop_gamma, "stop_gamma"),
            _limit(stop_norm, "stop_norm"),
            dtype,
        )
        points, self.seeds = starting_points(problem, seeds, starts, dtype)
        self._records = Records(len(points), problem.m, problem.n)
        self._state = loop.begin(self._setting, points, self._records)
        self._box = Box(problem, len(points))
        self._box.watch(self._records.arrays["points"], 0)

    @property
    def step(self) -> int:
        """Steps taken by the runs that are under way; in the end, by the longest one."""
        return self._state.step

    @property
    def running(self) -> int:
        """How many runs are under way."""
        return len(self._state.active)

    @property
    def done(self) -> bool:
        """Whether every run has stopped."""
        return not self.running

    @property
    def gamma(self) -> Array:
        """Gamma of the runs that are under way."""
        return self._state.here.gamma.copy()

    def advance(self, steps: int = 1) -> int:
        """Take up to this many steps with every run that has not stopped; returns how many were taken.

        Ctrl-C waits for the end of a step, so that what was done can be saved and resumed; a second one does not wait.
        """
        begun = self._state.step
        with interrupts_between_steps() as interrupt, loop.quiet():
            for _ in range(steps):
                if self.done or interrupt.came:
                    break
                self._state = loop.step(self._setting, self._state, self._records)
        self._box.watch(self._records.arrays["points"], self._state.step)
        return self._state.step - begun

    def trajectory(self, unfinished: Stop = Stop.RUNNING) -> Trajectory:
        """What was recorded so far.

        Args:
            unfinished: the reason given for runs that are under way.
        """
        state, setting = self._state, self._setting
        T = state.step
        ends = state.lengths.copy()
        ends[state.active] = T
        recorded: dict[str, Any] = dict(self._records.upto(T))
        return Trajectory(
            **recorded,
            lengths=ends,
            left_box=self._box.left.copy(),
            reasons=tuple(unfinished if reason is Stop.RUNNING else reason for reason in state.reasons),
            seeds=self.seeds,
            lr=f"{self.lr.lr:g}" if isinstance(self.lr, Constant) else repr(self.lr),
            **facts_of(setting.problem, setting.aggregator, self._setting.dtype),
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint must keep, as a flat dictionary of arrays, whole numbers and text."""
        state = self._state
        return {
            "format": _FORMAT,
            "step": state.step,
            "settings": to_json(self._settings()),
            "aggregator": to_json(self._setting.aggregator.state_dict()),
            "reasons": to_json({"codes": [reason.name for reason in state.reasons]}),
            "lengths": state.lengths.copy(),
            "left_box": self._box.left.copy(),
            **self._records.upto(state.step),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, bit by bit; raises, with nothing changed, on another descent's state."""
        problem, B = self._setting.problem, len(self._state.reasons)
        wanted = {"format", "step", "settings", "aggregator", "reasons", "lengths", "left_box", *NAMES}
        if set(state) != wanted:
            odd = sorted(wanted.symmetric_difference(state))
            raise InputError(f"the state of a descent holds {', '.join(sorted(wanted))}; missing or unknown: {odd}")
        if int(state["format"]) != _FORMAT:
            raise InputError(f"the state has format {state['format']}; this version reads format {_FORMAT}")
        theirs, ours = from_json(str(state["settings"])), self._settings()
        differing = [key for key in ours if theirs.get(key) != ours[key]]
        if differing:
            pairs = "; ".join(f"{key}: {theirs.get(key)} in the state, {ours[key]} here" for key in differing)
            raise ParameterError(f"the state is that of another descent ({pairs}); resume with the same arguments")
        T = int(state["step"])
        records = Records(B, problem.m, problem.n)
        records.load({name: state[name] for name in NAMES}, T)
        if not np.array_equal(records.arrays["points"][0], self._records.arrays["points"][0]):
            raise ParameterError("the state is that of other starts; resume with the same arguments")
        reasons = tuple(Stop[name] for name in from_json(str(state["reasons"]))["codes"])
        active = np.array([run for run in range(B) if reasons[run] is Stop.RUNNING], dtype=np.intp)
        points = torch.from_numpy(records.arrays["points"][T, active]).to(self._setting.dtype)
        ends, left = (np.array(state[key], dtype=np.int64).reshape(B) for key in ("lengths", "left_box"))
        fresh = loop.resume(self._setting, loop.State(T, active, self._state.here, ends, reasons), points)
        self._setting.aggregator.load_state_dict(from_json(str(state["aggregator"])))
        self._records, self._state = records, fresh
        self._box.left, self._box.seen = left, T

    def _settings(self) -> dict[str, Any]:
        """What a resumed descent must have in common with the one that was saved."""
        setting = self._setting
        return {
            "problem": repr(setting.problem),
            "aggregator": repr(setting.aggregator),
            "lr": repr(self.lr),
            "steps": setting.steps,
            "stop_gamma": setting.stop_gamma,
            "stop_norm": setting.stop_norm,
            "dtype": str(self._setting.dtype),
            "seeds": list(self.seeds),
        }


def _limit(value: float | None, what: str) -> float:
    """A stop rule's threshold; 0 where there is none."""
    if value is None:
        return 0.0
    number = as_number(value, what)
    if not 0.0 <= number < math.inf:
        raise ParameterError(f"{what}={number:g}: it must be finite and at least 0, or None for no such rule")
    return number
