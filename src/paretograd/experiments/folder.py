"""The folder of a study: its lock, the loop over its jobs, what is done already, and its configuration and tables.

Each file is written completely or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch

from paretograd.descent.stopping import Interrupt, held_interrupts
from paretograd.disk import replacing
from paretograd.errors import InputError
from paretograd.experiments.progress import Watch
from paretograd.experiments.study import Job
from paretograd.experiments.work import device_name

Data = TypeVar("Data")
Result = TypeVar("Result")

#: Suffixes of the files that studies write, by subfolder.
_WRITTEN = {name: {".npz"} for name in ("checkpoints", "trajectories", "methods", "runs")} | {
    "figures": {".png", ".svg"}
}
#: Version of the configuration's content.
_SCHEMA = 1
_KEYS = {"schema", "study", "command", "sessions"}
#: Headings of the columns that hold text; all others hold numbers.
TEXTS = ("method", "theorem", "ended by")


class Runnable(Protocol):
    """The interface of a study that a folder needs."""

    def plain(self) -> dict[str, Any]:
        """Return the study as JSON-serialisable values."""

    def files(self) -> tuple[str, ...]:
        """Return the names of the result files, without suffix."""

    def command(self) -> str:
        """Return the command line that runs the study."""

    def rehearse(self) -> None:
        """Raise if some rule cannot run."""


class Folder(ABC, Generic[Result]):
    """The folder of a study, with one result file for each run that is done.

    Attributes:
        path: the folder.
        config: the configuration; written first, so that a folder with this file belongs to a study.
        table_md, table_csv, report: the results.
    """

    #: Name of the subfolder with the results.
    results: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.table_md = self.path / "table.md"
        self.table_csv = self.path / "table.csv"
        self.report = self.path / "report.html"

    def checkpoint(self, name: str) -> Path:
        """Return the path of a checkpoint."""
        return self.path / "checkpoints" / f"{name}.npz"

    def result(self, name: str) -> Path:
        """Return the path of a result."""
        return self.path / self.results / f"{name}.npz"

    def load(self, name: str, label: str, study: Any) -> Result:
        """Load a result; the error about a damaged file names the remedy."""
        try:
            return self._read(self.result(name), label, study)
        except InputError as error:
            raise InputError(f"{error}. Remove it, and --resume runs {label} again") from None

    @abstractmethod
    def _read(self, path: Path, label: str, study: Any) -> Result:
        """Read a result; raises `InputError` if the file is damaged or of another study."""

    def plain_study(self) -> dict[str, Any]:
        """Read the study in this folder, as JSON-serialisable values."""
        if not self.config.exists():
            raise InputError(f"{self.path} holds no study: there is no {self.config.name} in it")
        found: dict[str, Any] = read_config(self.config)["study"]
        return found

    def finished(self, study: Runnable) -> bool:
        """Return True if all results exist."""
        return all(self.result(name).exists() for name in study.files())

    @property
    def used(self) -> bool:
        """Return True if the folder contains anything except leftovers of killed writes."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; a study needs a folder")
        return self.path.exists() and any(not entry.name.endswith(".part") for entry in self.path.iterdir())

    def check(self, study: Runnable, resume: bool, overwrite: bool) -> None:
        """Validate that the study may run here. Writes nothing."""
        if resume and overwrite:
            raise InputError("resume keeps what is there and overwrite removes it; ask for one of them")
        if not self.used:
            return
        if not self.config.exists():
            raise InputError(f"{self.path} is not empty and holds no study; choose another folder, nothing is removed")
        found = read_config(self.config)
        differing = _differences(found["study"], study)
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
        """Remove leftovers of killed writes and, with ``overwrite``, all files that a study writes, but no others.

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
        """Remove the folder of checkpoints if it is empty."""
        with suppress(OSError):
            self.checkpoint("").parent.rmdir()

    @contextmanager
    def at_work(
        self, study: Runnable, load: Callable[[], Data], told: Watch, resume: bool, overwrite: bool
    ) -> Iterator[tuple[Data | None, Interrupt]]:
        """Lock the folder and open it for a study. Errors are raised before anything is written.

        Args:
            study: what is run.
            load: loads the data; called only if something is left to run.
            told: receives notes.
            resume: continue the study in the folder.
            overwrite: remove the study in the folder.

        Yields:
            the data, or None if everything is done; and the interrupt, which is deferred until `Interrupt.obey`.
        """
        self.check(study, resume, overwrite)
        study.rehearse()
        data = load() if overwrite or not self.finished(study) else None
        with self.locked(), held_interrupts(signal.SIGINT, signal.SIGTERM) as interrupt:
            self.check(study, resume, overwrite)  # another process may have used it until now
            self._open(study, overwrite, told)
            yield data, interrupt

    def each(
        self, jobs: Sequence[Job], steps: int, told: Watch, interrupt: Interrupt
    ) -> Iterator[tuple[int, Job, list[str]]]:
        """Iterate over the jobs of a study, in order. Every study uses this loop.

        The body completes a job. After it, the checkpoint of the job is removed, and a pending interrupt is obeyed.

        Args:
            jobs: all jobs of the study.
            steps: largest number of steps of a job.
            told: receives the progress.
            interrupt: from `at_work`.

        Yields:
            index of the job, the job, and the names of its missing results.
        """
        told.begin(tuple(job.label for job in jobs), steps)
        for number, job in enumerate(jobs):
            left = [name for name in job.results if not self.result(name).exists()]
            yield number, job, left
            self.checkpoint(job.file).unlink(missing_ok=True)
            told.finished(job.label, not left)
            interrupt.obey()

    def _open(self, study: Runnable, overwrite: bool, told: Watch) -> None:
        """Write or update the configuration."""
        self.clear(overwrite)
        new, left = overwrite or not self.config.exists(), not self.finished(study)
        found = {"sessions": []} if new else read_config(self.config)
        if left:
            self._warn(found["sessions"], told)
        more = self._more(found)
        if left or any(found.get(name, value) != value for name, value in more.items()):
            _write_config(self.config, study, found["sessions"] + [self._session()] * left, more)

    def _session(self) -> dict[str, Any]:
        """Return the time and the versions of this session."""
        return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}

    def _more(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return additional entries of the configuration; ``found`` is the present one."""
        return {}

    def _warn(self, sessions: Sequence[Mapping[str, Any]], told: Watch) -> None:
        """Warn if the last session used other versions: last digits may differ."""
        if sessions and sessions[-1].get("versions") != versions():
            told.note(
                f"{self.path} was begun with other versions, which {self.config} lists: last digits may differ from "
                "those of a run that was not interrupted"
            )

    def write_tables(
        self,
        study: Runnable,
        rows: Sequence[Mapping[str, Any]],
        title: str,
        heading: str,
        tables: Mapping[str, Sequence[Mapping[str, str]]],
        sentences: Sequence[str],
    ) -> None:
        """Write ``table.md`` for people and ``table.csv`` with all digits.

        Args:
            study: what was run.
            rows: plain values.
            title: of the study.
            heading: meaning of the numbers.
            tables: by their titles, rows of texts; a single table needs no title.
            sentences: text below the tables.
        """
        lines = [f"# {title}", "", f"Made by `{study.command()}`. {heading}"]
        for name, shown in tables.items():
            lines += [*(["", f"## {name}"] if name else []), "", *markdown_table(shown)]
        for sentence in sentences:
            lines += ["", _in_markdown(sentence)]
        write_text(self.table_md, lines)
        _write_csv(self.table_csv, rows)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it for this process; the lock ends with the process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = -1 if sys.platform == "win32" else os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{self.path} cannot be used: {error.strerror or error}") from None
        if sys.platform == "win32":  # there are no such locks on Windows
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


class TrainingFolder(Folder[Result]):
    """The folder of a study that trains models: its configuration also lists devices and durations.

    Args:
        path: of the folder.
        device: to train on; None to read only.
    """

    def __init__(self, path: str | Path, device: torch.device | None = None) -> None:
        super().__init__(path)
        self._device = "" if device is None else device_name(device)

    def _open(self, study: Runnable, overwrite: bool, told: Watch) -> None:
        super()._open(study, overwrite, told)
        if not self.finished(study):  # the checkpoints are large, and of no use to others
            write_text(self.path / "checkpoints" / ".gitignore", ["*"])

    def _session(self) -> dict[str, Any]:
        return super()._session() | {"device": self._device}

    def _more(self, found: Mapping[str, Any]) -> dict[str, Any]:
        durations = found.get("durations", {})
        return {"durations": dict(durations) if isinstance(durations, dict) else {}}

    def _warn(self, sessions: Sequence[Mapping[str, Any]], told: Watch) -> None:
        super()._warn(sessions, told)
        if sessions and sessions[-1].get("device") != self._device:
            told.note(
                f"{self.path} was begun on another device ({sessions[-1].get('device')}): last digits may differ "
                "from those of a run that was not interrupted"
            )

    def durations(self) -> dict[str, Any]:
        """Return the duration and device of each job, by label."""
        found: dict[str, Any] = self._more(read_config(self.config))["durations"]
        return found

    def provenance(self) -> dict[str, str]:
        """Return versions and devices of the sessions, as the page shows them."""
        sessions = read_config(self.config)["sessions"]
        last = sessions[-1] if sessions else {}
        return {
            "versions": ", ".join(f"{name} {version}" for name, version in last.get("versions", {}).items()),
            "trained on": ", ".join(dict.fromkeys(str(session.get("device")) for session in sessions)),
        }

    def took(self, study: Runnable, label: str, duration: Mapping[str, Any]) -> None:
        """Record the duration of a job."""
        durations = self.durations() | {label: dict(duration)}
        _write_config(self.config, study, read_config(self.config)["sessions"], {"durations": durations})


def write_text(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file. The old content is replaced only when all lines are on the disk."""
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
    return path


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with the same keys, which become the header. Numbers keep all their digits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, buffer.getvalue().splitlines())


def markdown_table(rows: Sequence[Mapping[str, str]], texts: Sequence[str] = TEXTS) -> Iterator[str]:
    """Yield the lines of a table in Markdown. All columns but those with texts are aligned to the right."""
    yield f"| {' | '.join(rows[0])} |"
    yield f"| {' | '.join('---' if key in texts else '---:' for key in rows[0])} |"
    for row in rows:
        yield f"| {' | '.join(map(_in_markdown, row.values()))} |"


def _in_markdown(text: str) -> str:
    """Escape stars for Markdown."""
    return text.replace("*", chr(92) + "*")


def remove_drafts(folder: Path) -> None:
    """Remove the leftovers of killed writes: ``.name.pid.part``."""
    for draft in folder.glob(".*.part"):
        draft.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, numpy and this package."""
    from paretograd import __version__  # not at the top: the import would be circular

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "paretograd": __version__,
    }


def _write_config(path: Path, study: Runnable, sessions: list[dict[str, Any]], more: Mapping[str, Any]) -> None:
    """Write ``config.json``; ``more`` holds entries that only this kind of study has."""
    content = {"schema": _SCHEMA, "command": study.command(), "study": study.plain(), **more, "sessions": sessions}
    write_text(path, [json.dumps(content, indent=2)])


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.json``; raises `InputError` if it is not the configuration of a study."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or not a study's: {error}. Choose another folder") from None
    if not isinstance(found, dict) or not isinstance(found.get("study"), dict) or _KEYS - set(found):
        raise InputError(f"{path} is not the configuration of a study; choose another folder")
    if found["schema"] != _SCHEMA:
        raise InputError(f"{path} has schema {found['schema']!r}; this version reads {_SCHEMA}. Choose another folder")
    sessions, every = found["sessions"], found.get("metrics_every", 1)
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise InputError(f"{path} is damaged: sessions is no list of sessions. Choose another folder")
    if type(every) is not int or every < 1:
        raise InputError(f"{path} is damaged: metrics_every is {every!r}. Choose another folder")
    return found


def _differences(there: dict[str, Any], study: Runnable) -> list[str]:
    """Describe the differences between the study in a file and this one."""
    here = json.loads(json.dumps(study.plain()))
    return [
        f"{key.replace('_', ' ')}: {_shown(there.get(key))} there, {_shown(here.get(key))} here"
        for key in sorted({*here, *there})
        if there.get(key) != here.get(key)
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return ", ".join(f"{entry.get('rule')} (lr {entry.get('lr')})" for entry in value)
    return json.dumps(value)
