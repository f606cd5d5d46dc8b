"""Training one classifier for each seed with one rule, by full-batch steps of constant size (eq. fd)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.named import MGDA
from paretograd.autograd.recorded import recorded
from paretograd.descent import Stop
from paretograd.disk import from_json, to_json
from paretograd.errors import InputError
from paretograd.experiments.fairness.ensemble import Ensemble, Piece, gramians, sort_rows
from paretograd.experiments.work import full_or_tf32
from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.problems.fairness import Rows, classifier
from paretograd.problems.fairness.objectives import Gaps
from paretograd.solvers.min_norm import min_norm_point

#: Rounding of the Gramians, which are multiplied in float64 whatever precision the gradients have.
EPS = float(np.finfo(np.float64).eps)
#: Records of every step, and how many numbers each has for a seed.
_RECORDS = {"losses": 3, "gamma": 1, "norms": 1, "weights": 3, "slopes": 3}


def finite(losses: Array, G: Array) -> NDArray[np.bool_]:
    """Return True for each classifier with finite losses and gradients, ``(S,)``."""
    return np.asarray(np.isfinite(losses).all(axis=1) & np.isfinite(G).all(axis=(1, 2)))


def distance(G: Array) -> float:
    """Gamma: the length of the shortest convex combination of the gradients."""
    weights = min_norm_point(unit_gramian(G, EPS)).weights
    return math.sqrt(max(float(weights @ G @ weights), 0.0))


def conflicting(G: Array, weights: Array, slopes: Array, norms: Array) -> NDArray[np.bool_]:
    """Return True for each direction that raises some objective, to first order and beyond rounding, ``(S,)``."""
    lengths = np.sqrt(np.maximum(np.einsum("skk->sk", G), 0.0))
    errors, tol = cones.term_errors(lengths, weights), cones.conflict_tolerance(EPS)
    return np.asarray(cones.conflicting(slopes, lengths, norms, tol=tol, errors=errors).any(axis=1))


class Stepper:
    """Evaluates losses and Gramians of an ensemble, and moves its parameters.

    Nothing but `fetch` waits for the device, so that the host can do something else meanwhile.

    Attributes:
        ensemble: the classifiers; `move` changes their parameters.
        previous: parameters before the last move.
        earlier: parameters before the move before it.
    """

    def __init__(self, ensemble: Ensemble, data: Sequence[Piece], lr: float, tf32: bool, previous: Tensor) -> None:
        """Set up.

        Args:
            ensemble: the classifiers.
            data: their rows.
            lr: size of the moves.
            tf32: whether matrix products on a GPU may round to TF32.
            previous: where the classifiers were before their last move.
        """
        self.ensemble, self._data, self._lr, self._tf32 = ensemble, data, lr, tf32
        parameters = ensemble.parameters
        self.previous, self.earlier = previous.clone(), previous.clone()
        self._weights = parameters.new_zeros(len(parameters), 3)
        self._evaluate, self._move = self._evaluate_now, self._move_now
        self._ready: torch.cuda.Event | None = None
        with full_or_tf32(tf32):
            self._jacobian, self._numbers = self._slopes()
            self._fetched = torch.empty(
                self._numbers.shape, dtype=torch.float64, pin_memory=parameters.is_cuda, device="cpu"
            )
            if parameters.is_cuda:
                self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
                start = parameters.clone()
                self._evaluate, self._move = recorded(self._evaluate_now), recorded(self._move_now)
                for kept, value in ((parameters, start), (self.previous, previous), (self.earlier, previous)):
                    kept.copy_(value)  # recording the move has made one

    def start(self) -> None:
        """Begin to evaluate losses and gradients at the parameters."""
        with full_or_tf32(self._tf32):
            self._evaluate()
        self._fetched.copy_(self._numbers, non_blocking=True)
        if self._ready is not None:
            self._ready.record()

    def fetch(self) -> tuple[Array, Array]:
        """Wait for the evaluation: losses ``(S, 3)`` and Gramians ``(S, 3, 3)``."""
        if self._ready is not None:
            self._ready.synchronize()
        numbers = self._fetched.numpy()
        return numbers[:, :, 0].copy(), numbers[:, :, 1:].copy()

    def move(self, weights: Array) -> None:
        """Begin to move the parameters by ``-lr J.T w``, weights ``(S, 3)``; `previous` keeps where they were."""
        self._weights.copy_(torch.from_numpy(weights))
        with full_or_tf32(self._tf32):
            self._move()

    def _slopes(self) -> tuple[Tensor, Tensor]:
        losses, jacobian = self.ensemble.slopes(self._data)
        return jacobian, torch.cat([losses.double()[:, :, None], gramians(jacobian)], dim=2)

    def _evaluate_now(self) -> None:
        jacobian, numbers = self._slopes()
        self._jacobian.copy_(jacobian)
        self._numbers.copy_(numbers)

    def _move_now(self) -> None:
        parameters = self.ensemble.parameters
        self.earlier.copy_(self.previous)
        self.previous.copy_(parameters)
        # In full float32: the sum costs little, and TF32 would round the step to three digits.
        parameters.sub_((self._weights[:, :, None] * self._jacobian).sum(dim=1), alpha=self._lr)


@dataclass(frozen=True)
class Setting:
    """Constant settings of a training.

    Attributes:
        seeds: of the classifiers' initialisation.
        lr: size of the steps.
        steps: how many at most.
        stop: a classifier is done where gamma or the length of the direction is below it.
        gaps: how the gaps between the groups are measured.
        tf32: whether matrix products on a GPU may round to TF32.
        width: of the hidden layers.
    """

    seeds: tuple[int, ...]
    lr: float = 0.005
    steps: int = 40_000
    stop: float = 1e-3
    gaps: Gaps = "sums"
    tf32: bool = True
    width: int = 256


class Training:
    """The training of all seeds with one rule, a few steps at a time."""

    def __init__(self, setting: Setting, aggregator: Aggregator, rows: Rows) -> None:
        """Start.

        Args:
            setting: seeds, step size and when to stop.
            aggregator: the rule; one step of a schedule is one of all seeds.
            rows: to train on, all of them at every step; their device and precision are those of the training.
        """
        self.setting, self.aggregator = setting, aggregator
        models = [
            classifier(rows.features.shape[1], setting.width, seed).to(rows.features.dtype) for seed in setting.seeds
        ]
        self._ensemble = Ensemble(models, rows.features.device)
        self._data = sort_rows(rows, setting.gaps, len(models))
        self.step = 0
        self.active = np.arange(len(models))
        self.lengths = np.zeros(len(models), dtype=np.int64)
        self.conflicts = np.zeros(len(models), dtype=np.int64)
        self.reasons = [Stop.RUNNING] * len(models)
        self.finals = self._ensemble.parameters.cpu().clone()
        self._before = self._ensemble.parameters.clone()  # parameters of the unfinished classifiers one step ago
        self._kind = self.finals.numpy().dtype
        self._records = {name: np.full((0, len(models), size), np.nan, self._kind) for name, size in _RECORDS.items()}
        self._groups: list[Stepper] = []

    @property
    def running(self) -> int:
        """Number of unfinished seeds."""
        return len(self.active)

    @property
    def records(self) -> dict[str, Array]:
        """Losses, gamma, norms of the direction, weights and slopes, ``(steps, S, ...)``; NaN after a seed's end.

        At the points from which steps were taken, so not at the last one of a run that takes all its steps.
        """
        return {name: values[: self.step] for name, values in self._records.items()}

    @property
    def latest(self) -> tuple[list[float], float]:
        """Mean losses and largest gamma of the unfinished seeds, at the last recorded point."""
        if not self.step or not self.running:
            return [math.nan] * 3, math.nan
        losses, gamma = (self._records[name][self.step - 1, self.active] for name in ("losses", "gamma"))
        return losses.mean(axis=0).tolist(), float(gamma.max())

    def advance(self, count: int) -> None:
        """Take this many steps, or as many as are left."""
        while count > 0 and self.running:
            count -= 1
            self._advance()

    def _advance(self) -> None:
        if not self._groups:
            self._start()
        losses: list[Array] = []
        G, weights = [], []
        with self.aggregator.one_step():
            for group in self._groups:  # while the host weighs the gradients of one, the device works on the other
                found = group.fetch()
                weights.append(self._weigh(*found, self.active[sum(len(part) for part in losses) :]))
                group.move(weights[-1])
                group.start()
                losses.append(found[0])
                G.append(found[1])
        self._arrive(np.concatenate(losses), np.concatenate(G), np.concatenate(weights))

    def _start(self) -> None:
        """Put the unfinished classifiers on the device, in two groups if it can work in parallel with the host."""
        setting, parameters = self.setting, self._ensemble.parameters
        count = 2 if parameters.is_cuda else 1
        self._groups = [
            Stepper(self._ensemble.at(part.clone()), self._data, setting.lr, setting.tf32, before)
            for part, before in zip(parameters.chunk(count), self._before.chunk(count), strict=True)
        ]
        for group in self._groups:
            group.start()

    def _weigh(self, losses: Array, G: Array, seeds: NDArray[np.int_]) -> Array:
        """Return the rule's weights; zeros for classifiers with non-finite values, so that they do not move."""
        found = np.zeros_like(losses)
        for row in np.flatnonzero(finite(losses, G)):
            self.aggregator._turn_to(int(seeds[row]))
            found[row] = self.aggregator._outcome(G[row], EPS).weights
        return found

    def _arrive(self, losses: Array, G: Array, weights: Array) -> None:
        """Record the point before the last move, and retire the classifiers that should have stopped there."""
        good = finite(losses, G)
        with np.errstate(invalid="ignore", over="ignore"):  # of those that are not finite
            slopes = np.einsum("skl,sl->sk", G, weights)
            norms = np.sqrt(np.maximum((weights * slopes).sum(axis=1), 0.0))
            conflicts = conflicting(G, weights, slopes, norms)
        same = type(self.aggregator) is MGDA  # gamma is the length of its direction
        gamma = norms if same else np.array([distance(G[row]) if good[row] else np.nan for row in range(len(G))])
        self._record(losses=losses, gamma=gamma[:, None], norms=norms[:, None], weights=weights, slopes=slopes)
        stops: dict[int, Stop] = {}
        for row in range(len(self.active)):
            if not good[row]:
                stops[row] = Stop.NOT_FINITE
            elif gamma[row] < self.setting.stop:
                stops[row] = Stop.GAMMA
            elif norms[row] < self.setting.stop:
                stops[row] = Stop.NORM
            else:
                self.conflicts[self.active[row]] += conflicts[row]
        self._retire(stops)
        self.step += 1
        if self.step >= self.setting.steps:
            self._retire(dict.fromkeys(range(len(self.active)), Stop.STEPS), moved=True)

    def _record(self, **values: Array) -> None:
        for name, value in values.items():
            rows = self._records[name]
            if self.step >= len(rows):
                more = np.full((max(1024, len(rows)), *rows.shape[1:]), np.nan, self._kind)
                rows = self._records[name] = np.concatenate([rows, more])
            rows[self.step, self.active] = value

    def _retire(self, stops: Mapping[int, Stop], moved: bool = False) -> None:
        """Retire classifiers at the point before the last move, or after it.

        One whose losses or gradients are not finite there goes back to where they were.
        """
        if not stops:
            return
        after, before = self._current(), self._previous()
        earlier = torch.cat([group.earlier for group in self._groups]).cpu() if self._groups else before
        for row, stop in stops.items():
            run, lost = self.active[row], stop is Stop.NOT_FINITE
            self.finals[run] = (after if moved else earlier if lost else before)[row]
            self.reasons[run], self.lengths[run] = stop, max(self.step - lost, 0)
        kept = [row for row in range(len(self.active)) if row not in stops]
        self.active = self.active[kept]
        device = self._ensemble.parameters.device
        self._ensemble, self._before = self._ensemble.at(after[kept].to(device)), before[kept].to(device)
        self._groups = []

    def _previous(self) -> Tensor:
        """Return the parameters of the unfinished classifiers one step ago, on the CPU."""
        return torch.cat([group.previous for group in self._groups] or [self._before]).cpu()

    def _current(self) -> Tensor:
        """Return the parameters of the unfinished classifiers, on the CPU."""
        parts = [group.ensemble.parameters for group in self._groups] or [self._ensemble.parameters]
        return torch.cat(parts).cpu()

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits of all seeds' classifiers, now or at their end, ``(S, N)``, on the CPU."""
        return self._ensemble.at(self.parameters()).logits(features.cpu())

    def parameters(self) -> Tensor:
        """Return the parameters of all seeds' classifiers, now or at their end, ``(S, n)``, on the CPU."""
        found = self.finals.clone()
        found[torch.from_numpy(self.active)] = self._current()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return plain arrays, numbers and text from which the training resumes exactly."""
        return {
            "step": self.step,
            "active": self.active,
            "lengths": self.lengths,
            "conflicts": self.conflicts,
            "reasons": [stop.name for stop in self.reasons],
            "parameters": self.parameters().numpy(),
            "before": self._previous().numpy(),
            "aggregator": to_json(self.aggregator.state_dict()),
            **{f"record_{name}": values for name, values in self.records.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the result of `state_dict`. If it does not fit, an error is raised and nothing changes."""
        step, count = int(state["step"]), len(self.finals)
        parameters, before = (np.array(state[name], dtype=self._kind) for name in ("parameters", "before"))
        active, lengths, conflicts = (
            np.array(state[name], dtype=np.int64).reshape(-1) for name in ("active", "lengths", "conflicts")
        )
        reasons = [Stop[str(name)] for name in np.asarray(state["reasons"]).reshape(-1)]
        records = {name: np.array(state[f"record_{name}"], dtype=self._kind) for name in _RECORDS}
        width = self.finals.shape[1]
        if (parameters.shape, before.shape) != ((count, width), (len(active), width)):
            raise InputError(f"its parameters have shape {parameters.shape}, not {(count, width)}")
        if not np.isfinite(parameters).all() or not np.isfinite(before).all():
            raise InputError("its parameters are not finite")
        if active.tolist() != [run for run, stop in enumerate(reasons) if stop is Stop.RUNNING]:
            raise InputError(
                f"its seeds under way are {active.tolist()}, which the reasons why others ended contradict"
            )
        if not len(reasons) == len(lengths) == len(conflicts) == count or not 0 <= step <= self.setting.steps:
            raise InputError(
                f"its step {step}, lengths or reasons do not fit {count} seeds and {self.setting.steps} steps"
            )
        if any(values.shape != (step, count, _RECORDS[name]) for name, values in records.items()):
            raise InputError("its records do not fit its step")
        self.aggregator.load_state_dict(from_json(str(state["aggregator"])))
        device = self._ensemble.parameters.device
        self.step, self.active, self.lengths, self.conflicts = step, active, lengths, conflicts
        self.reasons, self._records = reasons, records
        self.finals = torch.from_numpy(parameters)
        self._ensemble = self._ensemble.at(self.finals[torch.from_numpy(active)].to(device))
        self._before = torch.from_numpy(before).to(device)
        self._groups = []
