"""Running a study on a test problem: method after method, with checkpoints, in a folder that can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretograd.checks import whole_number
from paretograd.descent.stopping import Interrupt
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import InputError
from paretograd.experiments.folder import Folder, read_config
from paretograd.experiments.progress import Watch
from paretograd.experiments.study import Method, jobs_of
from paretograd.experiments.synthetic.study import Study
from paretograd.experiments.synthetic.table import rows, write, write_metrics
from paretograd.experiments.work import checked_interval, run_descent

#: Steps between two rows of ``metrics.csv``, if not told otherwise.
_METRICS_EVERY = 10


class StudyFolder(Folder[Trajectory]):
    """The folder of a study on a test problem.

    Attributes:
        metrics: what can be plotted.
        metrics_every: how it is thinned; known when the folder is open.
    """

    results = "trajectories"

    def __init__(self, path: str | Path, metrics_every: int | None = None) -> None:
        super().__init__(path)
        self.metrics, self._asked = self.path / "metrics.csv", metrics_every
        self.metrics_every = _METRICS_EVERY

    def _more(self, found: Mapping[str, Any]) -> dict[str, Any]:
        self.metrics_every = found.get("metrics_every", _METRICS_EVERY) if self._asked is None else self._asked
        return {"metrics_every": self.metrics_every}

    def _read(self, path: Path, label: str, study: Study) -> Trajectory:
        found = Trajectory.load(path)
        if found.seeds != study.seeds or found.problem != study.problem:
            raise InputError(f"{path} is of another study: {found!r}")
        return found


@dataclass(frozen=True)
class Results:
    """A finished study.

    Attributes:
        study: what was run.
        folder: where it lies.
        trajectories: by the methods' labels, each with all seeds.
        metrics_every: how ``metrics.csv`` is thinned.
    """

    study: Study
    folder: Path
    trajectories: dict[str, Trajectory]
    metrics_every: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one dictionary of plain values for each method."""
        return rows(self.study, self.trajectories)


def run_study(
    study: Study,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 5.0,
    metrics_every: int | None = None,
    watch: Watch | None = None,
) -> Results:
    """Run every method that is not done yet, and write trajectories, metrics and table.

    What cannot work (a rule that does not fit the problem, a folder in use) raises before anything is written. Killed
    at any moment, it loses at most the work since the last checkpoint; what ``resume`` makes of the rest is bit by bit
    what it would have been. Ctrl-C writes a checkpoint first and then raises KeyboardInterrupt; a second one does not
    wait.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        resume: go on with what is there. Methods that are done are not run again. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: seconds of work between two checkpoints; more if writing one takes over a tenth of it.
        metrics_every: ``metrics.csv`` has every step with a multiple of this number, and the last of each run. None: as
            the folder has it, or 10.
        watch: is told what happens.
    """
    every = checked_interval(checkpoint_every)
    if metrics_every is not None:
        whole_number("study", "metrics_every", metrics_every)
    place, told = StudyFolder(folder, metrics_every), watch or Watch()
    study.labels()  # report an unknown rule before a folder that is in use
    with place.at_work(study, lambda: None, told, resume, overwrite) as (_, interrupt):
        trajectories = {}
        jobs = jobs_of(study.labels(), study.files())
        for number, job, left in place.each(jobs, study.steps, told, interrupt):
            if left:
                _run_method(study, study.methods[number], job.label, job.file, place, every, told, interrupt)
            trajectories[job.label] = place.load(job.file, job.label, study)
        place.tidy()
        write_metrics(place.metrics, study, trajectories, place.metrics_every)
        write(place, study, trajectories)
    return Results(study, place.path, trajectories, place.metrics_every)


def read_study(folder: str | Path) -> Results:
    """A finished study from its folder; nothing is run."""
    place = StudyFolder(folder)
    found = read_config(place.config)
    study = Study.from_plain(found["study"])
    if not place.finished(study):
        raise InputError(f"the study in {place.path} is not finished; go on with: {found['command']} --resume")
    named = zip(study.labels(), study.files(), strict=True)
    trajectories = {label: place.load(name, label, study) for label, name in named}
    return Results(study, place.path, trajectories, found["metrics_every"])


def _run_method(
    study: Study,
    method: Method,
    label: str,
    name: str,
    place: StudyFolder,
    every: float,
    told: Watch,
    interrupt: Interrupt,
) -> None:
    """Run one method to its end, from its checkpoint if there is one."""
    found = run_descent(study.descent(method), label, place.checkpoint(name), every, told, interrupt)
    found.save(place.result(name))
