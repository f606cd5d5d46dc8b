"""Running a federated study: run after run, in a folder that can be resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paretograd.descent.stopping import Interrupt
from paretograd.experiments.federated import table
from paretograd.experiments.federated.clients import Federations
from paretograd.experiments.federated.study import Case, FederatedStudy, Run
from paretograd.experiments.federated.training import FederatedFolder, RunResult, Together, Training, result_of
from paretograd.experiments.progress import Watch
from paretograd.experiments.study import fingerprint
from paretograd.experiments.work import Checkpoints, Device, Timed, checked_interval, find_device
from paretograd.problems.cifar10 import Cifar10, load_cifar10


@dataclass(frozen=True)
class FederatedResults:
    """Results of a study, finished or not.

    Attributes:
        study: what was run.
        folder: where it lies.
        runs: those that are done.
    """

    study: FederatedStudy
    folder: Path
    runs: dict[Run, RunResult]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary of plain values for each rule and setting, over the seeds that are done."""
        return table.rows(self.study, self.runs)

    def seeds_of(self, case: Case) -> list[RunResult]:
        """The runs of a rule in a setting that are done, in the order of the seeds."""
        return [self.runs[run] for seed in self.study.seeds if (run := Run(*case, seed)) in self.runs]


def run_federated(
    study: FederatedStudy,
    folder: str | Path,
    *,
    data: Cifar10 | None = None,
    data_dir: str | Path | None = None,
    device: Device = "auto",
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> FederatedResults:
    """Train every run that is not done yet, and write results and tables.

    What cannot work (an unknown rule, missing data, a folder in use) raises before anything is written. Killed at any
    moment, it loses at most the work since the last checkpoint; on a CPU what ``resume`` makes of the rest is bit by
    bit what it would have been. Ctrl-C writes a checkpoint first and then raises KeyboardInterrupt.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        data: your own images to train and test on, in the form of `Cifar10`; their checksum is kept in the study's
            ``own_data``, and ``resume`` takes no others. None reads CIFAR-10, if any run is left.
        data_dir: folder with the files of CIFAR-10; see `load_cifar10`.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU if there is one.
        resume: go on with what is there. Runs that are done are not repeated. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: seconds of work between two checkpoints; more if writing one takes over a tenth of it.
        watch: is told what happens.
    """
    every = checked_interval(checkpoint_every)
    known_by = "" if data is None else fingerprint(part for images in data for part in images)
    study = replace(study, own_data=known_by)
    told, target = watch or Watch(), find_device(device)
    place = FederatedFolder(folder, target)

    def load() -> Cifar10:
        return load_cifar10(data_dir) if data is None else data

    with place.at_work(study, load, told, resume, overwrite) as (found, interrupt):
        federations = Federations(found, study, target) if found is not None else None
        cases, names = study.cases(), dict(zip(study.files(), study.runs(), strict=True))
        runs: dict[Run, RunResult] = {}
        for number, job, left in place.each(study.jobs(), study.epochs, told, interrupt):
            if left and federations is not None:
                missing = {names[name]: name for name in left}
                checkpoints = Checkpoints(place.checkpoint(job.file), every)
                _train(study, cases[number], missing, place, federations, checkpoints, told, interrupt)
            runs |= {names[name]: place.load(name, names[name].label, study) for name in job.results}
            if left or len(runs) == len(names):
                table.write(place, study, runs)
    return FederatedResults(study, place.path, runs)


def read_results(folder: str | Path) -> FederatedResults:
    """A study from its folder, with the runs that are done; nothing is trained."""
    place = FederatedFolder(folder)
    study = FederatedStudy.from_plain(place.plain_study())
    named = zip(study.runs(), study.files(), strict=True)
    done = {run: place.load(name, run.label, study) for run, name in named if place.result(name).exists()}
    return FederatedResults(study, place.path, done)


def _train(
    study: FederatedStudy,
    case: Case,
    left: Mapping[Run, str],
    place: FederatedFolder,
    federations: Federations,
    checkpoints: Checkpoints,
    told: Watch,
    interrupt: Interrupt,
) -> None:
    """Train the runs of a case that are left to their end, from their checkpoint if there is one."""
    central = case.setting.kind == "central"
    together = Together([Training(study, run, federations.get(run.seed, central)) for run in left])
    work = Timed(together)
    work.resume(checkpoints, case.label)
    told.method(case.label, together.epoch)
    work.finish(checkpoints, interrupt, lambda: _tell(told, together))
    place.took(study, case.label, work.duration(together.epoch, federations.device) | {"runs": len(left)})
    for training, name in zip(together.trainings, left.values(), strict=True):
        result_of(training, training.run).save(place.result(name))


def _tell(told: Watch, together: Together) -> None:
    latest = np.array([training.latest for training in together.trainings if training.epoch])
    seen = latest[~np.isnan(latest).any(axis=1)] if len(latest) else latest
    told.losses([float(seen[:, 0].mean())] if len(seen) else [])
    told.steps(together.epoch, together.running, float(seen[:, 1].max()) if len(seen) else math.nan)
