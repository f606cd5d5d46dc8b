"""`Descent`: the descent loop as an object that you can advance, inspect, save and resume."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.checks import as_number, whole_number
from paretograd.descent import loop
from paretograd.descent.copies import Copies, check_descends, needs_copies
from paretograd.descent.records import NAMES, Box, Records
from paretograd.descent.step_sizes import Constant, StepSize, as_step_size
from paretograd.descent.stopping import Stop, interrupts_between_steps
from paretograd.descent.trajectory import Trajectory
from paretograd.disk import from_json, to_json
from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem
from paretograd.scalarizations.base import Weighting

#: Version of the dictionary that `Descent.state_dict` returns.
_FORMAT = 1

_DTYPES = (torch.float32, torch.float64)

#: Number of points of the Pareto front stored with a trajectory, for its plot.
_FRONT = 200


class Descent:
    """The iteration ``w_{t+1} = w_t - eta_t d_t`` (eq. fd) from several starts at once.

    One call of the problem evaluates all runs; a run that stops leaves the batch. A run in a batch is bit-identical to
    the same run alone, with two exceptions. A rule that draws random numbers draws different ones for a run alone. And
    a problem may round differently in a batch, as matrix products do; element-wise operations do not.

    A rule that sees more than Gramians is copied for each run, and stays as it is. The losses at the end of a step are
    those with which `FAMO` updates its logits, and a step is an epoch of `DWA`.

    Args:
        problem: the problem to minimise.
        aggregator: the rule that combines the gradients into one direction, or weights the losses by their values.
        lr: a number, or a step-size rule of `paretograd.descent` such as ``Smooth()`` or ``Armijo()``.
        steps: maximum number of steps.
        seeds: one run per seed, from `Problem.start`; (0,) by default.
        starts: starting points ``(B, n)`` to use instead; seeds, if given, then only name the runs.
        stop_gamma: stop a run at the first point whose gamma is below this.
        stop_norm: stop a run at the first point whose direction is shorter than this.
        dtype: dtype of points, losses and gradients; directions are always summed in float64.
    """

    def __init__(
        self,
        problem: Problem,
        aggregator: Aggregator | Weighting,
        lr: float | StepSize,
        steps: int,
        *,
        seeds: Iterable[int] | None = None,
        starts: Tensor | Sequence[Sequence[float]] | None = None,
        stop_gamma: float | None = None,
        stop_norm: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        check_descends(aggregator, problem.name)
        self.lr = as_step_size(lr)
        points, self.seeds = _starting_points(problem, seeds, starts, dtype)
        self._setting = loop.Setting(
            problem,
            aggregator,
            self.lr.bind(problem, aggregator),
            whole_number("descend", "steps", steps, least=0),
            _threshold(stop_gamma, "stop_gamma"),
            _threshold(stop_norm, "stop_norm"),
            dtype,
            Copies(aggregator, len(points)) if needs_copies(aggregator) else None,
        )
        self._records = Records(len(points), problem.m, problem.n)
        self._state = loop.begin(self._setting, points, self._records)
        self._box = Box(problem, len(points))
        self._box.watch(self._records.arrays["points"], 0)

    @property
    def step(self) -> int:
        """Number of steps taken by the active runs; after the end, by the longest run."""
        return self._state.step

    @property
    def running(self) -> int:
        """Number of active runs."""
        return len(self._state.active)

    @property
    def done(self) -> bool:
        """True if every run has stopped."""
        return not self.running

    @property
    def gamma(self) -> Array:
        """Gamma of the active runs."""
        return self._state.here.gamma.copy()

    def advance(self, steps: int = 1) -> int:
        """Take up to this many steps with every active run; returns the number of steps taken.

        Ctrl-C takes effect after the current step, so that the runs can be saved and resumed. A second Ctrl-C takes
        effect immediately.
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
        """Return the trajectory so far.

        Args:
            unfinished: the stop reason to give to active runs.
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
            **_description(setting),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint, as a flat dictionary of arrays, integers and strings."""
        state = self._state
        return {
            "format": _FORMAT,
            "step": state.step,
            "settings": to_json(self._settings()),
            "aggregator": to_json(self._rule.state_dict()),
            "reasons": to_json({"codes": [reason.name for reason in state.reasons]}),
            "lengths": state.lengths.copy(),
            "left_box": self._box.left.copy(),
            **self._records.upto(state.step),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue, bit-identically, from a saved state; raises, and changes nothing, if it is another descent's."""
        problem, B = self._setting.problem, len(self._state.reasons)
        wanted = {"format", "step", "settings", "aggregator", "reasons", "lengths", "left_box", *NAMES}
        if set(state) != wanted:
            odd = sorted(wanted.symmetric_difference(state))
            raise InputError(f"a descent's state has the keys {', '.join(sorted(wanted))}; missing or unknown: {odd}")
        if int(state["format"]) != _FORMAT:
            raise InputError(f"the state has format {state['format']}; this version reads format {_FORMAT}")
        theirs, ours = from_json(str(state["settings"])), self._settings()
        differing = [key for key in ours if theirs.get(key) != ours[key]]
        if differing:
            pairs = "; ".join(f"{key}: {theirs.get(key)} in the state, {ours[key]} here" for key in differing)
            raise ParameterError(f"the state belongs to another descent ({pairs}); resume with the same arguments")
        T = int(state["step"])
        records = Records(B, problem.m, problem.n)
        records.load({name: state[name] for name in NAMES}, T)
        if not np.array_equal(records.arrays["points"][0], self._records.arrays["points"][0]):
            raise ParameterError("the state belongs to a descent from other starts; resume with the same arguments")
        reasons = tuple(Stop[name] for name in from_json(str(state["reasons"]))["codes"])
        active = np.array([run for run in range(B) if reasons[run] is Stop.RUNNING], dtype=np.intp)
        points = torch.from_numpy(records.arrays["points"][T, active]).to(self._setting.dtype)
        ends, left = (np.array(state[key], dtype=np.int64).reshape(B) for key in ("lengths", "left_box"))
        fresh = loop.resume(self._setting, loop.State(T, active, self._state.here, ends, reasons), points)
        self._rule.load_state_dict(from_json(str(state["aggregator"])))
        self._records, self._state = records, fresh
        self._box.left, self._box.seen = left, T

    @property
    def _rule(self) -> Any:
        """The rule or its copies, which have the state."""
        return self._setting.aggregator if self._setting.copies is None else self._setting.copies

    def _settings(self) -> dict[str, Any]:
        """Return the settings that a saved and a resumed descent must share."""
        setting = self._setting
        return {
            "problem": repr(setting.problem),
            "aggregator": repr(setting.aggregator),
            "lr": repr(self.lr),
            "steps": setting.steps,
            "stop_gamma": setting.stop_gamma,
            "stop_norm": setting.stop_norm,
            "dtype": str(setting.dtype),
            "seeds": list(self.seeds),
        }


def _threshold(value: float | None, what: str) -> float:
    """Validate the threshold of a stop rule; None disables the rule and returns 0."""
    if value is None:
        return 0.0
    number = as_number(value, what)
    if not 0.0 <= number < math.inf:
        raise ParameterError(f"{what}={number:g}: it must be finite and at least 0, or None to disable the rule")
    return number


def _starting_points(
    problem: Problem,
    seeds: Iterable[int] | None,
    starts: Tensor | Sequence[Sequence[float]] | None,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the starts ``(B, n)`` in the dtype of the runs, and their seeds (empty if only starts were given)."""
    if dtype not in _DTYPES:
        raise DTypeError(f"dtype={dtype}: runs are computed in torch.float32 or torch.float64")
    names = _seeds(seeds) if seeds is not None else (0,) if starts is None else ()
    if starts is None:
        return problem.starts(names).to(dtype), names
    try:
        points = torch.as_tensor(starts, device="cpu").detach().to(dtype=dtype, copy=True)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"starts must be a tensor or a list of lists of shape (B, n); got {starts!r}") from None
    if points.ndim == 1:
        points = points.unsqueeze(0)
    if points.ndim != 2 or points.shape[1] != problem.n or not len(points):
        raise ShapeError(
            f"{problem.name} has n = {problem.n} variables, so starts must have shape (B, {problem.n}), one row per "
            f"run; got {tuple(points.shape)}"
        )
    if not bool(torch.isfinite(points).all()):
        raise InputError("starts contain NaN or infinity; every run must start at a finite point")
    if names and len(names) != len(points):
        raise ShapeError(f"there are {len(points)} starts but {len(names)} seeds to name them; give one seed per start")
    return points, names


def _seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    listed = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if not listed:
        raise ParameterError("seeds is empty; give at least one, such as seeds=(0,)")
    return tuple(whole_number("descend", "seed", seed, least=None) for seed in listed)


def _description(setting: loop.Setting) -> dict[str, Any]:
    """Return the facts about problem and rule with which a saved trajectory can be certified and plotted."""
    problem, promise, front = setting.problem, setting.aggregator.guarantee, setting.problem.pareto_front
    return {
        "problem": problem.name,
        "label": problem.label,
        "smoothness": problem.smoothness,
        "convex": problem.convex,
        "least": tuple(problem.least),
        "aggregator": setting.aggregator.label,
        "guarantee": replace(promise, F=promise.F.at(problem.m), hypotheses=(), alternatives=()),
        "dtype": str(setting.dtype).removeprefix("torch."),
        "front": front(_FRONT).double().numpy() if front is not None else np.empty((0, problem.m)),
    }
