"""Training of one setting: the learning rate is chosen on one seed, and the other seeds are trained with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import paretograd as pg
from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError, NonFiniteGradientError
from paretograd.experiments.optimizers.digits import load_digits
from paretograd.experiments.optimizers.physics import PHYSICS
from paretograd.experiments.optimizers.study import MULTI_MNIST, OPTIMIZERS, TUNING_SEED, Case, OptimizerStudy
from paretograd.experiments.optimizers.task import Scores, Task
from paretograd.experiments.study import Method

#: Steps from one measured update to the next.
EVERY = 20
#: How many times as many points as a fresh batch a full one has, so that a network does not just fit the points.
FULL = 4
#: First steps of a run that do not count: in a new process, they load code.
_WARM_UP = 5


class Outcome(NamedTuple):
    """A finished run.

    Attributes:
        lr, seed: of the run.
        steps: taken within the budget.
        seconds: CPU time of these steps.
        losses, error: of the trained network; see `Scores`.
        measured: number of updates that were compared with all gradients.
        conflicting: number of those that raise some loss, to first order.
    """

    lr: float
    seed: int
    steps: int
    seconds: float
    losses: tuple[float, ...]
    error: float
    measured: int
    conflicting: int

    @property
    def validation(self) -> float:
        """The validation loss; see `Scores.validation`."""
        return Scores(self.losses, self.error).validation


def task_of(name: str, data_dir: Path | None) -> Task:
    """Return a problem; ``data_dir`` is for those that need data."""
    return load_digits(data_dir) if name == MULTI_MNIST else PHYSICS[name]


def train_case(
    study: OptimizerStudy, case: Case, task: Task, checkpoint: Path, result: Path, stopped: Callable[[], bool]
) -> None:
    """Train a setting to its end; finished runs are kept in the checkpoint.

    Args:
        study: has the budget and the seeds.
        case: the setting.
        task: its problem.
        checkpoint: holds the finished runs until all are done.
        result: path of the result.
        stopped: returns True if the present run should be abandoned.
    """
    done = _load_checkpoint(checkpoint, case) if checkpoint.exists() else []
    with _one_thread():
        while (left := next_run(case, study.seeds, done)) is not None:
            outcome = None if stopped() else train(case, task, *left, study.budget, stopped)
            if outcome is None:
                return
            done.append(outcome)
            save_outcomes(checkpoint, case, done)
    save_outcomes(result, case, done)
    checkpoint.unlink()


def _load_checkpoint(path: Path, case: Case) -> list[Outcome]:
    try:
        return load_outcomes(path, case)
    except InputError as error:
        raise InputError(f"{error}. Remove it, and --resume runs {case.label} from its start") from None


def next_run(case: Case, seeds: Sequence[int], done: Sequence[Outcome]) -> tuple[float, int] | None:
    """Return the learning rate and seed of the next run of a setting; None if all are done."""
    finished = {(outcome.lr, outcome.seed) for outcome in done}
    for lr in OPTIMIZERS[case.optimizer].rates:
        if (lr, TUNING_SEED) not in finished:
            return lr, TUNING_SEED
    best = best_rate(done)
    return next(((best, seed) for seed in seeds if (best, seed) not in finished), None)


def best_rate(done: Sequence[Outcome]) -> float:
    """Return the learning rate with the least validation loss in the runs that choose it."""
    return min((outcome for outcome in done if outcome.seed == TUNING_SEED), key=lambda found: found.validation).lr


def train(case: Case, task: Task, lr: float, seed: int, budget: float, stopped: Callable[[], bool]) -> Outcome | None:
    """Train one network for a given CPU time; returns None if stopped.

    The learning rate decays along a cosine, so that the last losses depend less on the last few batches. Every few
    steps the update is compared with all gradients. Such a step is charged as much time as the one before it, so that
    the comparison is free.
    """
    generator = torch.Generator().manual_seed(seed)
    network, rule = task.network(seed), Method(case.rule).aggregator()
    params: list[Tensor] = list(network.parameters())
    inner = OPTIMIZERS[case.optimizer].make(params, lr)
    projected = case.mode == "projected"
    optimizer = pg.Unconflicting(inner, rule, aggregate_in_metric=True) if projected else inner
    batch = task.batch(generator, FULL)
    spent = last = 0.0
    steps = measured = conflicting = 0
    while spent < budget:
        look, begun = steps % EVERY == EVERY - 1, time.process_time()
        if case.batches == "fresh":
            batch = task.batch(generator)
        for group in inner.param_groups:
            group["lr"] = lr * (0.5 + 0.5 * math.cos(math.pi * spent / budget))
        optimizer.zero_grad()
        try:
            step = _backward(case, task.losses(network, batch), rule, params, optimizer, look)
        except NonFiniteGradientError:
            break  # diverged; the scores say so
        if look and step is not None:
            with step.of_update() as update:
                optimizer.step()
            measured, conflicting = measured + 1, conflicting + bool(update.conflicts)
            if stopped():
                return None
        else:
            optimizer.step()
            last = time.process_time() - begun
        steps += 1
        spent += last if steps > _WARM_UP else 0.0
    scores = task.scores(network)
    return Outcome(lr, seed, steps, spent, scores.losses, scores.error, measured, conflicting)


def _backward(
    case: Case,
    losses: list[Tensor],
    rule: pg.Aggregator,
    params: list[Tensor],
    optimizer: torch.optim.Optimizer,
    look: bool,
) -> pg.Step | None:
    """Fill ``.grad`` in the mode of the setting; the step keeps its rows if the update will be measured."""
    if isinstance(optimizer, pg.Unconflicting):
        return optimizer.backward(losses)
    if isinstance(rule, pg.Mean) and not look:  # the usual way costs less
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        return None
    return pg.backward(losses, rule, params, metric=optimizer if case.mode == "metric" else None, keep_rows=look)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: the budget is CPU time, summed over all threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_outcomes(path: Path, case: Case, outcomes: Sequence[Outcome]) -> None:
    """Write the runs of a setting, replacing earlier ones."""
    columns = {name: np.array([getattr(found, name) for found in outcomes]) for name in Outcome._fields}
    write_arrays(path, {"label": case.label, **columns}, overwrite=True)


def load_outcomes(path: Path, case: Case) -> list[Outcome]:
    """Read the runs of a setting; raises `InputError` if the file is damaged or of another setting."""
    found = read_arrays(path)
    if found.pop("label", None) != case.label or set(found) != set(Outcome._fields):
        raise InputError(f"{path} does not hold the runs of {case.label}")
    rows = zip(*(found[name].tolist() for name in Outcome._fields), strict=True)
    outcomes = [Outcome(*row) for row in rows]
    return [outcome._replace(losses=tuple(outcome.losses)) for outcome in outcomes]
