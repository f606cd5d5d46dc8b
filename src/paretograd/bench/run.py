"""Runs a task: search and training of every setting that is not done, and that no other process has claimed."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from paretograd.bench.folder import REPORT, SEARCH, Outcome, TaskFolder, Tuning
from paretograd.bench.protocol import Protocol, Setting, settings_of
from paretograd.bench.roster import check_suits, make, objective_of
from paretograd.bench.task import Data, Task
from paretograd.bench.tasks import task_of
from paretograd.bench.training import Curves, Training, Trial
from paretograd.descent.stopping import Interrupt, held_interrupts
from paretograd.errors import ParetogradError
from paretograd.experiments.progress import Watch
from paretograd.experiments.work import Checkpoints, Timed, checked_interval, device_name, find_device, full_or_tf32


def run_task(
    protocol: Protocol,
    folder: str | Path,
    *,
    rules: Sequence[str] = (),
    optimizers: Sequence[str] = (),
    data_dir: str | Path | None = None,
    device: str = "auto",
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> TaskFolder:
    """Run all settings of a task that have no result yet.

    Several processes can work on one folder: each takes the next setting that is free. After an interrupt or a kill,
    the same call goes on from the last checkpoint.

    Args:
        protocol: what is run.
        folder: of the benchmark; the task has a folder of its own in it.
        rules: only these; empty for all.
        optimizers: only these; empty for all.
        data_dir: a folder with the data, see `Task.load`.
        device: ``auto``, ``cpu`` or ``cuda``.
        checkpoint_every: seconds of work between two checkpoints.
        watch: is told what happens.

    Returns:
        the folder of the task.
    """
    told, where = watch or Watch(), find_device(device)
    checked_interval(checkpoint_every)
    task = task_of(protocol.task, small=protocol.small)
    settings = settings_of(rules, optimizers, task)
    place = TaskFolder(Path(folder) / task.name)
    steps = task.steps if protocol.steps is None else protocol.steps
    data: Data | None = None
    with held_interrupts(signal.SIGINT, signal.SIGTERM) as interrupt, reproducible():
        place.open(protocol, device_name(where))
        told.begin(tuple(setting.label for setting in settings), 2 * steps)
        elsewhere, kept = [], place.kept()
        for setting in settings:
            with place.claimed(setting) as mine:
                before = setting in kept or place.result(setting).exists()
                if not (mine or before):
                    elsewhere.append(setting.label)
                    continue
                if not before:
                    if data is None:
                        data = (task.made() if protocol.made else task.load(data_dir)).to(where)
                    _Work(task, data, protocol, place, setting, steps, checkpoint_every, told, interrupt).run()
            told.finished(setting.label, before)
            interrupt.obey()
        if elsewhere:
            told.note(f"at work in other processes: {'; '.join(elsewhere)}")
    return place


def quality(task: Task, rule: str, scores: np.ndarray) -> float:
    """Return the number that chooses the hyper-parameters of a rule. Networks of one loss are judged by its metrics.

    Args:
        task: what was trained.
        rule: its name.
        scores: the metrics of a network on validation rows; NaN if it stopped early.
    """
    if not np.isfinite(scores).all():
        return math.nan
    alone = objective_of(rule)
    own = [k for k, metric in enumerate(task.metrics) if alone is not None and metric.objective == alone]
    if not own:
        return task.quality(scores.tolist())
    return float(np.mean([scores[k] if task.metrics[k].higher else -scores[k] for k in own]))


class _Work:
    """The search and the reported networks of one setting."""

    def __init__(
        self,
        task: Task,
        data: Data,
        protocol: Protocol,
        place: TaskFolder,
        setting: Setting,
        steps: int,
        every: float,
        told: Watch,
        interrupt: Interrupt,
    ) -> None:
        self._task, self._data, self._protocol, self._place, self._setting = task, data, protocol, place, setting
        self._steps, self._every, self._told, self._interrupt = steps, every, told, interrupt

    def run(self) -> None:
        """Do what is left of the setting, and save the result."""
        place, setting = self._place, self._setting
        if place.tuned(setting).exists():
            tuning = place.load_tuning(setting)
        else:
            tuning = self._tune()
            place.save_tuning(setting, tuning)
        place.save(setting, self._report(tuning))

    def _tune(self) -> Tuning:
        trials = self._protocol.search(self._setting, self._task)
        try:
            for trial in trials:
                check_suits(make(trial.rule, len(self._task.objectives), trial.seed), self._task)
        except ParetogradError as error:
            none = np.full((len(trials), len(self._task.metrics)), math.nan)
            return Tuning(trials, none, none[:, 0], [str(error)] * len(trials), 0.0)
        training = self._prepared(trials)
        seconds = self._train(training, SEARCH)
        scores = training.scores(self._data.validation)
        judged = np.array([quality(self._task, self._setting.rule, row) for row in scores])
        return Tuning(trials, scores, judged, list(training.steering.reasons), seconds)

    def _report(self, tuning: Tuning) -> Outcome:
        seeds, metrics = self._protocol.seeds, len(self._task.metrics)
        if tuning.best is None:
            none = np.full((seeds, metrics), math.nan)
            empty = Curves(np.empty(0), np.empty((0, seeds, len(self._task.objectives))), *[np.empty((0, seeds))] * 2)
            return Outcome(tuning, none, none, ["no trial came to its end"] * seeds, empty, 0.0)
        training = self._prepared(self._protocol.finals(tuning.trials[tuning.best]))
        seconds = self._train(training, REPORT)
        validation, test = (training.scores(rows) for rows in (self._data.validation, self._data.test))
        return Outcome(tuning, validation, test, list(training.steering.reasons), training.curves, seconds)

    def _prepared(self, trials: Sequence[Trial]) -> Training:
        return Training(self._task, self._data, trials, self._setting.optimizer, self._steps)

    def _train(self, training: Training, stage: str) -> float:
        """Train networks to their end, from the checkpoint if there is one; returns the seconds."""
        before = 0 if stage == SEARCH else self._steps
        work = Timed(training)
        checkpoints = Checkpoints(self._place.checkpoint(self._setting, stage), self._every)
        work.resume(checkpoints, self._setting.label)
        self._told.method(self._setting.label, before + training.step)

        def tell() -> None:
            self._told.steps(before + training.step, training.running, math.nan)

        work.finish(checkpoints, self._interrupt, tell)
        return work.seconds


@contextmanager
def reproducible() -> Iterator[None]:
    """Let a GPU compute in full float32, with the same algorithms in every run."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with full_or_tf32(False):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
