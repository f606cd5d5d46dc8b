"""A study's folder: where things lie, who may write there, and what is there already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from paretograd.descent.trajectory import Trajectory
from paretograd.errors import InputError
from paretograd.experiments.command import command_of
from paretograd.experiments.config import Described, differences, new_session, read_config, versions, write_config
from paretograd.experiments.files import remove_drafts
from paretograd.experiments.progress import Watch
from paretograd.experiments.study import Study

#: Steps between two rows of ``metrics.csv``, if not told otherwise.
_METRICS_EVERY = 10
#: What studies of any kind write, by folder.
_WRITTEN = {name: {".npz"} for name in ("checkpoints", "trajectories", "methods", "runs")} | {
    "figures": {".png", ".svg"}
}


class Folder:
    """Paths of the files of a study of any kind.

    Attributes:
        path: the folder.
        config: what is run; written first, so that a folder which has one is ours.
        table_md, table_csv, report: results.
    """

    #: Where the methods lie that are done.
    results: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.table_md = self.path / "table.md"
        self.table_csv = self.path / "table.csv"
        self.report = self.path / "report.html"

    def checkpoint(self, name: str) -> Path:
        """State of a method under way."""
        return self.path / "checkpoints" / f"{name}.npz"

    def result(self, name: str) -> Path:
        """A method that is done."""
        return self.path / self.results / f"{name}.npz"

    def finished(self, study: Described) -> bool:
        """Whether all methods are done."""
        return all(self.result(name).exists() for name in study.files())

    @property
    def used(self) -> bool:
        """Whether there is anything; what a killed write left behind does not count."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; a study needs a folder")
        return self.path.exists() and any(not entry.name.endswith(".part") for entry in self.path.iterdir())

    def check(self, study: Described, resume: bool, overwrite: bool) -> None:
        """Raise unless a study may be run here. Nothing is written."""
        if resume and overwrite:
            raise InputError("resume keeps what is there and overwrite removes it; ask for one of them")
        if not self.used:
            return
        if not self.config.exists():
            raise InputError(f"{self.path} is not empty and holds no study; choose another folder, nothing is removed")
        found = read_config(self.config)
        differing = differences(found["study"], study)
        if resume and differing:
            raise InputError(
                f"{self.path} holds another study, which this one cannot continue:\n  "
                + "\n  ".join(differing)
                + f"\nIt was made by: {found['command']}\nGive the same options, or choose another folder"
            )
        if not resume and not overwrite:
            done = not differing and self.finished(study)
            kind = "another study" if differing else "this study, finished" if done else "this study, unfinished"
            go_on = "" if differing else f"--resume {'shows it again' if done else 'goes on with it'}, "
            raise InputError(
                f"{self.path} holds {kind}. Nothing is overwritten unless you ask: {go_on}--overwrite removes it and "
                "starts anew, --out chooses another folder"
            )

    def clear(self, overwrite: bool) -> None:
        """Remove what killed writes have left, and if asked for all files that a study writes, but no others.

        The configuration stays until another replaces it, so that no killed call leaves a mixture.
        """
        for folder in (self.path, *(self.path / name for name in _WRITTEN)):
            remove_drafts(folder)
        if not overwrite:
            return
        ours = [self.path / "metrics.csv", self.table_md, self.table_csv, self.report]
        for name, suffixes in _WRITTEN.items():
            if (self.path / name).is_dir():
                ours += [file for file in (self.path / name).iterdir() if file.suffix in suffixes]
        for file in ours:
            file.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the folder of checkpoints, if no method needs one any more."""
        with suppress(OSError):
            self.checkpoint("").parent.rmdir()

    def warn_of_versions(self, sessions: Sequence[Mapping[str, Any]], told: Watch) -> None:
        """Say so if what is here was begun with other versions."""
        if sessions and sessions[-1].get("versions") != versions():
            told.note(
                f"{self.path} was begun with other versions, which {self.config} lists: last digits may differ from "
                "those of a run that was not interrupted"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and be the only process that works in it; a lock does not outlive its process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = -1 if sys.platform == "win32" else os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{self.path} cannot be used: {error.strerror or error}") from None
        if sys.platform == "win32":  # it has no such locks: nobody watches
            yield
            return
        import fcntl

        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another process is working in {self.path}; wait for it, or stop it") from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(handle)


class StudyFolder(Folder):
    """The folder of a study on a test problem.

    Attributes:
        metrics: what can be plotted.
    """

    results = "trajectories"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.metrics = self.path / "metrics.csv"

    def open(self, study: Study, metrics_every: int | None, overwrite: bool, told: Watch) -> int:
        """Write or update the configuration; returns how metrics are thinned."""
        self.clear(overwrite)
        if overwrite or not self.config.exists():
            thinning = _METRICS_EVERY if metrics_every is None else metrics_every
            self._write(study, thinning, [new_session()])
            return thinning
        found = read_config(self.config)
        before = found.get("metrics_every", _METRICS_EVERY)
        thinning, left = before if metrics_every is None else metrics_every, not self.finished(study)
        if left:
            self.warn_of_versions(found["sessions"], told)
        if left or before != thinning:
            self._write(study, thinning, found["sessions"] + [new_session()] * left)
        return int(thinning)

    def _write(self, study: Study, metrics_every: int, sessions: list[dict[str, Any]]) -> None:
        write_config(self.config, study, command_of(study), sessions, {"metrics_every": metrics_every})

    def load(self, name: str, label: str, study: Study) -> Trajectory:
        """The trajectory of a method that is done; a damaged one is refused with the way out."""
        path = self.result(name)
        try:
            found = Trajectory.load(path)
            if found.seeds != study.seeds or found.problem != study.problem:
                raise InputError(f"{path} is of another study: {found!r}")
        except InputError as error:
            raise InputError(f"{error}. Remove it, and --resume runs {label} again") from None
        return found
