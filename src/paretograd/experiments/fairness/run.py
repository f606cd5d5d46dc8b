"""Running a fairness study: method after method, all seeds of one at once, in a folder that can be resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paretograd.descent.stopping import Interrupt
from paretograd.experiments.fairness import table
from paretograd.experiments.fairness.result import FairnessFolder, MethodResult, result_of
from paretograd.experiments.fairness.study import FairnessStudy, OwnData
from paretograd.experiments.fairness.training import Training
from paretograd.experiments.progress import Watch
from paretograd.experiments.work import Checkpoints, Device, Timed, checked_interval, find_device
from paretograd.problems.fairness import Adult, Rows, load_adult


@dataclass(frozen=True)
class FairnessResults:
    """Results of a study, finished or not.

    Attributes:
        study: what was run.
        folder: where it lies.
        methods: by label, those that are done.
    """

    study: FairnessStudy
    folder: Path
    methods: dict[str, MethodResult]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one dictionary of plain values for each method, shares in percent."""
        return table.rows(self.study, self.methods)


def run_fairness(
    study: FairnessStudy,
    folder: str | Path,
    *,
    data: Adult | None = None,
    data_dir: str | Path | None = None,
    device: Device = "auto",
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> FairnessResults:
    """Train with every method that is not done yet, and write results and table.

    What cannot work (an unknown rule, missing data, a folder in use) raises before anything is written. Killed at any
    moment, it loses at most the work since the last checkpoint; on a CPU what ``resume`` makes of the rest is bit by
    bit what it would have been. Ctrl-C writes a checkpoint first and then raises KeyboardInterrupt.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        data: your own to train and test on, in the form of `Adult`: float32 or float64 features, labels and groups of
            zeros and ones. Shapes and a checksum are kept in the study's ``own_data``, nothing is compared with the
            paper, and ``resume`` takes no others. None reads Adult, if any method is left to train.
        data_dir: folder with the files of Adult; see `load_adult`.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU if there is one.
        resume: go on with what is there. Methods that are done are not run again. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: seconds of work between two checkpoints; more if writing one takes over a tenth of it.
        watch: is told what happens.
    """
    every = checked_interval(checkpoint_every)
    study = replace(study, own_data=None if data is None else OwnData.of(data))
    told, target = watch or Watch(), find_device(device)
    place = FairnessFolder(folder, target)

    def load() -> Adult:
        return load_adult(data_dir, study.scaling) if data is None else data

    with place.at_work(study, load, told, resume, overwrite) as (found, interrupt):
        on_device = found.train.to(target) if found is not None else None
        for number, job, left in place.each(study.jobs(), study.steps, told, interrupt):
            if left and found is not None and on_device is not None:
                rule = study.methods[number]
                _train(study, rule, job.label, job.file, place, found, on_device, every, told, interrupt)
            results = read_results(place.path)
            table.write(place, study, results.methods)
    return results


def read_results(folder: str | Path) -> FairnessResults:
    """A study from its folder, with the methods that are done; nothing is trained."""
    place = FairnessFolder(folder)
    study = FairnessStudy.from_plain(place.plain_study())
    names = zip(study.labels(), study.files(), strict=True)
    done = {label: place.load(name, label, study) for label, name in names if place.result(name).exists()}
    return FairnessResults(study, place.path, done)


def _train(
    study: FairnessStudy,
    rule: str,
    label: str,
    name: str,
    place: FairnessFolder,
    data: Adult,
    rows: Rows,
    every: float,
    told: Watch,
    interrupt: Interrupt,
) -> None:
    """Train one method to its end, from its checkpoint if there is one."""
    training = Training(study.setting(), study.aggregator(rule), rows)
    work, checkpoints = Timed(training), Checkpoints(place.checkpoint(name), every)
    work.resume(checkpoints, label)
    told.method(label, training.step)
    work.finish(checkpoints, interrupt, lambda: _tell(told, training))
    place.save_classifiers(name, training.parameters(), rows.features.shape[1], study.width)
    place.took(study, label, work.duration(training.step, rows.features.device))
    result_of(training, label, data).save(place.result(name))


def _tell(told: Watch, training: Training) -> None:
    losses, gamma = training.latest
    told.losses(losses)
    told.steps(training.step, training.running, gamma)
