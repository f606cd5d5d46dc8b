"""Training of the trials of one rule with one optimizer: all networks at once, step by step, with checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.bench.networks import Networks, Optimizer
from paretograd.bench.passes import Pass, Recording
from paretograd.bench.roster import make
from paretograd.bench.steering import Steering, measure
from paretograd.bench.task import Batch, Data, Task
from paretograd.errors import InputError

#: How often a training run is measured: gamma, conflicts and losses.
MARKS = 20
#: Steps of an epoch if a step gathers its own rows.
_EPOCH = 100


class Trial(NamedTuple):
    """One network to train.

    Attributes:
        rule: as text.
        rate: the learning rate of the first step.
        seed: of the initial weights, the batches and random rules.
    """

    rule: str
    rate: float
    seed: int


class Curves(NamedTuple):
    """Measurements during training.

    Attributes:
        steps: at which they were taken, ``(R,)``.
        losses: of the batch, ``(R, B, m)``.
        gamma: distance from Pareto stationarity relative to the longest gradient, ``(R, B)``.
        conflicts: share of the losses that the direction raises, ``(R, B)``.
    """

    steps: np.ndarray
    losses: np.ndarray
    gamma: np.ndarray
    conflicts: np.ndarray


class Training:
    """The trials of one rule and one optimizer.

    The learning rate decays to zero along a cosine. A network whose losses or gradients are not finite stops where it
    is.

    Args:
        task: what is trained.
        data: on the device to train on.
        trials: one for each network.
        optimizer: its name.
        steps: number of steps.
        dtype: of the parameters.
    """

    def __init__(
        self,
        task: Task,
        data: Data,
        trials: Sequence[Trial],
        optimizer: str,
        steps: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._task, self._data, self._trials, self.steps = task, data, list(trials), steps
        device = data.train[0].device
        self.step = 0
        self.networks = Networks(task, [trial.seed for trial in trials], device, dtype)
        self.networks.arrange(*self._batch(0))
        m = len(task.objectives)
        self.steering = Steering([make(trial.rule, m, trial.seed) for trial in trials])
        learned = self.steering.learned
        flat = self.networks.flat
        self._optimizer = Optimizer(optimizer, flat if learned is None else torch.cat([flat, learned.to(flat)], dim=1))
        self._rates = torch.tensor([[trial.rate] for trial in trials], dtype=dtype, device=device)
        self.marks = np.unique(np.linspace(0, steps - 1, min(MARKS, steps)).round().astype(int))
        shape = (len(self.marks), len(trials))
        self._losses = np.full((*shape, m), math.nan)
        self._gamma, self._conflicts = np.full(shape, math.nan), np.full(shape, math.nan)
        rows = len(data.train[0])
        self._epoch = _EPOCH if task.acts or rows <= task.batch_size else max(1, rows // task.batch_size)

    @property
    def running(self) -> int:
        """The number of networks that have steps left."""
        return len(self.steering.running) if self.step < self.steps else 0

    @property
    def curves(self) -> Curves:
        """The measurements so far."""
        return Curves(self.marks, self._losses, self._gamma, self._conflicts)

    def advance(self, count: int) -> None:
        """Take this many steps, or those that are left."""
        for _ in range(min(count, self.steps - self.step)):
            self._advance()
            self.step += 1
            if not self.steering.running:
                self.step = self.steps

    def _advance(self) -> None:
        batch, common = self._batch(0)
        done = self.networks.forward(batch, common)
        mark = np.flatnonzero(self.marks == self.step)
        own = None
        if self.steering.by_losses:
            losses = self._checked(done)
            weights, own = self.steering.weigh(losses)
            gradient, rows = self._weighted(done, weights, bool(len(mark)))
        else:
            gradient, rows, losses = self._aggregated(done)
        if len(mark) and rows is not None:
            seen = self.networks.shared
            self._losses[mark[0]] = losses
            self._gamma[mark[0]], self._conflicts[mark[0]] = measure(rows[:, :, seen], gradient[:, seen])
        self._move(gradient, own)
        self.steering.after(lambda: self._again(batch, common))
        if (self.step + 1) % self._epoch == 0:
            self.steering.next_epoch()

    def _batch(self, number: int) -> tuple[Batch, bool]:
        """Return the rows of this step for all networks, and whether they are the same for all.

        Args:
            number: of the batch within the step, for rules that need several.
        """
        task = self._task
        seeds = [trial.seed for trial in self._trials]
        if task.acts:
            return _stacked([self._drawn(seed, number, self.networks.one(i)) for i, seed in enumerate(seeds)]), False
        unlike = list(dict.fromkeys(seeds))
        drawn = {seed: self._drawn(seed, number, self.networks.module) for seed in unlike}
        if len(unlike) == 1:
            return drawn[seeds[0]], True
        return _stacked([drawn[seed] for seed in seeds]), False

    def _drawn(self, seed: int, number: int, network: nn.Module) -> Batch:
        state = np.random.SeedSequence([seed, self.step, number]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
        with torch.no_grad():
            return self._task.batch(self._data, generator, network)

    def _checked(self, done: Pass | Recording) -> Tensor:
        """Return the losses, ``(B, m)``, float64, on the CPU. Networks with one that is not finite stop."""
        losses = done.losses.double().cpu()
        self.steering.check_finite(losses, "loss")
        return losses

    def _weighted(self, done: Pass | Recording, weights: Tensor, measured: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the weighted sum of the losses, in one pass unless the rows are measured."""
        weights = weights.to(self.networks.flat)
        if not measured:
            gradient = done.weighted(weights)
            self.steering.check_finite(gradient, "gradient")
            return gradient, None
        rows = done.gradients()
        self.steering.check_finite(rows, "gradient")
        return torch.einsum("bm,bmn->bn", weights, rows), rows

    def _aggregated(self, done: Pass | Recording) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient by a rule that sees gradients: aggregated, or of the only loss of a parameter."""
        rows, shared = done.gradients(), self.networks.shared
        losses = self._checked(done)
        seen = [rows[:, :, shared]]
        if self.steering.by_batches:
            rows = self.networks.forward(*self._batch(1)).gradients()
            seen.append(rows[:, :, shared])
        direction = rows.new_zeros(len(rows), rows.shape[2])
        chosen = self.steering.differentiated(rows.shape[1])
        direction[:, shared] = self.steering.direct(losses, seen)
        self.networks.fill_private(direction, rows, chosen)
        return direction, rows, losses

    def _move(self, gradient: Tensor, own: Tensor | None) -> None:
        """Take a step of the optimizer; networks that have stopped stay."""
        flat = self.networks.flat
        learned = self.steering.learned
        rates = self._rates * (0.5 + 0.5 * math.cos(math.pi * self.step / self.steps))
        stopped = [i for i, reason in enumerate(self.steering.reasons) if reason]
        if stopped:
            gradient[stopped], rates[stopped] = 0.0, 0.0
        if learned is None or own is None:
            self._optimizer.step(flat, gradient, rates)
            return
        both = torch.cat([flat, learned.to(flat)], dim=1)
        self._optimizer.step(both, torch.cat([gradient, own.to(gradient)], dim=1), rates)
        flat.copy_(both[:, : flat.shape[1]])
        self.steering.learn(both[:, flat.shape[1] :])

    def _again(self, batch: Batch, common: bool) -> Tensor:
        with torch.no_grad():
            return self.networks.forward(batch, common).losses.double().cpu()

    def scores(self, rows: Batch) -> np.ndarray:
        """Return the metrics of all networks on some rows, ``(B, metrics)``; NaN for those that have stopped early."""
        found = np.full((len(self._trials), len(self._task.metrics)), math.nan)
        with torch.no_grad():
            for i in self.steering.running:
                found[i] = self._task.scores(self.networks.one(i), rows)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, as arrays and text."""
        return {
            "trials": repr(self._trials),
            "step": self.step,
            "flat": self.networks.flat.cpu().numpy(),
            "learned": np.empty(0) if self.steering.learned is None else self.steering.learned.numpy(),
            "curve_losses": self._losses,
            "curve_gamma": self._gamma,
            "curve_conflicts": self._conflicts,
            **self._optimizer.state_dict(),
            **self.steering.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; raises `InputError` for the state of other trials."""
        if state["trials"] != repr(self._trials):
            raise InputError("it belongs to other trials")
        self.steering.load_state_dict(state)
        self._optimizer.load_state_dict(state)
        self.networks.flat.copy_(torch.from_numpy(state["flat"]))
        if self.steering.learned is not None:
            self.steering.learn(torch.from_numpy(state["learned"]))
        self._losses, self._gamma, self._conflicts = (
            state[f"curve_{name}"] for name in ("losses", "gamma", "conflicts")
        )
        self.step = int(state["step"])


def _stacked(batches: Sequence[Batch]) -> Batch:
    return tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
