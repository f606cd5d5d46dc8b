"""Running the study: settings side by side, each in a process with one thread, in a folder that can be resumed."""

from __future__ import annotations

import math
import os
import platform
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from paretograd.checks import whole_number
from paretograd.descent.stopping import Interrupt
from paretograd.experiments.folder import TrainingFolder
from paretograd.experiments.optimizers import table
from paretograd.experiments.optimizers.study import Case, OptimizerStudy
from paretograd.experiments.optimizers.training import Outcome, load_outcomes, task_of, train_case
from paretograd.experiments.progress import Watch
from paretograd.experiments.work import checked_interval

#: Seconds between two looks at the processes.
_LOOK = 0.2
#: Set in the worker processes by `_begin`: whether to stop.
_stopped: Callable[[], bool] = bool


class OptimizerFolder(TrainingFolder[list[Outcome]]):
    """The folder of the study: one file for each setting, with all its runs.

    Args:
        path: of the folder.
        processes: that train side by side; 0 to read only.
    """

    results = "runs"

    def __init__(self, path: str | Path, processes: int = 0) -> None:
        super().__init__(path)
        threads = f"{processes} process{'es' * (processes > 1)} with one thread each"
        self._device = f"CPU ({platform.machine()}, {threads})" if processes else ""

    def _read(self, path: Path, label: str, study: OptimizerStudy) -> list[Outcome]:
        return load_outcomes(path, next(case for case in study.cases() if case.label == label))

    def add_time(self, study: OptimizerStudy, seconds: float, runs: Sequence[Outcome]) -> None:
        """Record the time of this session and the duration of a step."""
        before = self.durations().get("all settings", {}).get("seconds", 0.0)
        each = [1e3 * outcome.seconds / outcome.steps for outcome in runs if outcome.steps]
        duration = {
            "seconds": round(before + seconds, 3),
            "steps": sum(outcome.steps for outcome in runs),
            "ms_per_step": round(statistics.median(each), 4) if each else math.nan,
            "device": self._device,
        }
        self.took(study, "all settings", duration)


@dataclass(frozen=True)
class OptimizerResults:
    """Results of a study, finished or not.

    Attributes:
        study: what was run.
        folder: where it lies.
        outcomes: the runs of every setting that is done.
    """

    study: OptimizerStudy
    folder: Path
    outcomes: dict[Case, list[Outcome]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one dictionary of plain values for each setting."""
        return table.rows(self.study, self.outcomes)


def run_optimizers(
    study: OptimizerStudy,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    jobs: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> OptimizerResults:
    """Train every setting that is not done yet, and write results and tables.

    A run ends when its CPU time is spent, so its number of steps depends on the machine, and results are not
    reproducible to the last digit. Killed at any moment, the study loses only the runs that were being trained.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        data_dir: folder with the files of MNIST, for ``multi-mnist``; see `load_digits`.
        jobs: processes that train side by side, each with one thread; None for one per core. With 1, this process
            trains.
        resume: go on with what is there. Runs that are done are not repeated. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: not used: a checkpoint is written after each run, which takes seconds.
        watch: is told what happens.
    """
    checked_interval(checkpoint_every)
    processes = whole_number("study", "jobs", _cores() if jobs is None else jobs)
    told, place = watch or Watch(), OptimizerFolder(folder, processes)
    data = None if data_dir is None else Path(data_dir).absolute()

    def load() -> None:
        for name in study.problems:
            task_of(name, data)  # data that are missing or damaged raise an error

    with place.at_work(study, load, told, resume, overwrite) as (_, interrupt):
        runs = study.runs_of_a_case * len(study.cases())
        for _, job, left in place.each(study.jobs(), runs, told, interrupt):
            told.method(job.label, runs - study.runs_of_a_case * len(left))
            if left:
                _train_left(study, left, place, data, processes, told, interrupt)
    return read_results(place.path)


def read_results(folder: str | Path) -> OptimizerResults:
    """Read a study from its folder, with the settings that are done. Nothing is trained."""
    place = OptimizerFolder(folder)
    study = OptimizerStudy.from_plain(place.plain_study())
    named = zip(study.cases(), study.files(), strict=True)
    done = {case: place.load(name, case.label, study) for case, name in named if place.result(name).exists()}
    return OptimizerResults(study, place.path, done)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _train_left(
    study: OptimizerStudy,
    left: Sequence[str],
    place: OptimizerFolder,
    data: Path | None,
    processes: int,
    told: Watch,
    interrupt: Interrupt,
) -> None:
    """Train the settings with these file names; write the tables even after an interrupt."""
    begun, total = time.monotonic(), len(study.cases())

    def tell(finished: int) -> None:
        waiting = len(left) - finished
        told.steps(study.runs_of_a_case * (total - waiting), study.runs_of_a_case * waiting, math.nan)

    try:
        if processes == 1:
            for number, name in enumerate(left, start=1):
                _train(study, name, place.path, data, lambda: interrupt.came)
                interrupt.obey()
                tell(number)
        else:
            _train_in_processes(study, left, place.path, data, min(processes, len(left)), tell, interrupt)
    finally:
        outcomes = read_results(place.path).outcomes
        if outcomes:
            place.add_time(study, time.monotonic() - begun, [run for runs in outcomes.values() for run in runs])
            table.write(place, study, outcomes)


def _train_in_processes(
    study: OptimizerStudy,
    left: Sequence[str],
    folder: Path,
    data: Path | None,
    processes: int,
    tell: Callable[[int], None],
    interrupt: Interrupt,
) -> None:
    """Train the settings with these file names side by side; an interrupt or an error stops all processes."""
    context = get_context("spawn")  # a fork would copy locks of torch's threads
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(stop,)) as pool:
        waiting = {pool.submit(_train, study, name, folder, data) for name in left}
        try:
            while waiting:
                finished, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                for future in finished:
                    future.result()
                interrupt.obey()
                if finished:
                    tell(len(left) - len(waiting))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _begin(stop: Event) -> None:
    """Prepare a worker: Ctrl-C is for the parent, which sets ``stop``. A worker ends with its parent."""
    global _stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stopped = stop.is_set
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the pool would wait for work forever


def _train(
    study: OptimizerStudy, name: str, folder: Path, data: Path | None, stopped: Callable[[], bool] | None = None
) -> None:
    """Train the setting with this file name; a worker process knows itself whether to stop."""
    place, case = OptimizerFolder(folder), study.cases()[study.files().index(name)]
    task = task_of(case.problem, data)
    train_case(study, case, task, place.checkpoint(name), place.result(name), stopped or _stopped)
