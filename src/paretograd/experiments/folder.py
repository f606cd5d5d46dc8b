"""A study's folder: its configuration, where files lie, who may write there, and what is there already."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch

from paretograd.descent.interrupts import Interrupt, held_interrupts
from paretograd.errors import InputError
from paretograd.experiments.device import device_name
from paretograd.experiments.files import remove_drafts, write_text
from paretograd.experiments.progress import Watch

#: Version of the file's content.
SCHEMA = 1
_KEYS = {"schema", "study", "command", "sessions"}


class Described(Protocol):
    """A study of any kind, as its folder knows it."""

    def plain(self) -> dict[str, Any]:
        """The study as JSON has it."""

    def files(self) -> tuple[str, ...]:
        """What the files of the methods are called, without a suffix."""


def versions() -> dict[str, str]:
    """What computes."""
    from paretograd import __version__  # not at the top: the package is being imported then

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "paretograd": __version__,
    }


def new_session() -> dict[str, Any]:
    """When work was done, and by what."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}


def write_config(
    path: Path, study: Described, command: str, sessions: list[dict[str, Any]], more: Mapping[str, Any]
) -> None:
    """Write the file, whole or not at all, with what only studies of this kind have."""
    content = {"schema": SCHEMA, "command": command, "study": study.plain(), **more, "sessions": sessions}
    write_text(path, [json.dumps(content, indent=2)])


def read_config(path: Path) -> dict[str, Any]:
    """Read the file; what is not one of ours is an `InputError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or not a study's: {error}. Choose another folder") from None
    if not isinstance(found, dict) or not isinstance(found.get("study"), dict) or _KEYS - set(found):
        raise InputError(f"{path} is not the configuration of a study; choose another folder")
    if found["schema"] != SCHEMA:
        raise InputError(f"{path} has schema {found['schema']!r}; this version reads {SCHEMA}. Choose another folder")
    sessions, every = found["sessions"], found.get("metrics_every", 1)
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise InputError(f"{path} is damaged: sessions is no list of sessions. Choose another folder")
    if type(every) is not int or every < 1:
        raise InputError(f"{path} is damaged: metrics_every is {every!r}. Choose another folder")
    return found


def differences(there: dict[str, Any], study: Described) -> list[str]:
    """What the study in a file has otherwise, in words."""
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


Data = TypeVar("Data")


class Commanded(Described, Protocol):
    """A study that knows the command which makes it."""

    def command(self) -> str:
        """The command line."""


class Trainable(Commanded, Protocol):
    """A study whose rules can be tried."""

    def rehearse(self) -> None:
        """Raise if some rule cannot work."""


class TrainingFolder(Folder):
    """Paths of its files, and its configuration."""

    @contextmanager
    def at_work(
        self,
        study: Trainable,
        load: Callable[[], Data],
        device: torch.device,
        told: Watch,
        resume: bool,
        overwrite: bool,
    ) -> Iterator[tuple[Data | None, Interrupt]]:
        """Open the folder for a study, alone; what cannot work raises before anything is written.

        Args:
            study: what is run.
            load: its data, which are needed where something is left to train.
            device: to train on.
            told: what happens.
            resume: go on with what is there.
            overwrite: remove what is there.

        Yields:
            the data, or None if all is done; and the interrupt.
        """
        self.check(study, resume, overwrite)
        study.rehearse()
        data = load() if overwrite or not self.finished(study) else None
        with self.locked(), held_interrupts(signal.SIGINT, signal.SIGTERM) as interrupt:
            self.check(study, resume, overwrite)  # it may have been someone else's until now
            self.open(study, overwrite, device_name(device), told)
            yield data, interrupt

    def plain_study(self) -> dict[str, Any]:
        """The study that lies here, as JSON has it."""
        if not self.config.exists():
            raise InputError(f"{self.path} holds no study: there is no {self.config.name} in it")
        found: dict[str, Any] = read_config(self.config)["study"]
        return found

    def open(self, study: Commanded, overwrite: bool, device: str, told: Watch) -> None:
        """Write or update the configuration."""
        self.clear(overwrite)
        session = new_session() | {"device": device}
        if overwrite or not self.config.exists():
            self._write(study, [session], {})
        elif not self.finished(study):
            found = read_config(self.config)
            sessions = found["sessions"]
            self.warn_of_versions(sessions, told)
            if sessions and sessions[-1].get("device") != device:
                told.note(
                    f"{self.path} was begun on another device ({sessions[-1].get('device')}): last digits may differ "
                    "from those of a run that was not interrupted"
                )
            self._write(study, [*sessions, session], self.durations())
        if not self.finished(study):  # the checkpoints are large, and of no use to others
            write_text(self.path / "checkpoints" / ".gitignore", ["*"])

    def durations(self) -> dict[str, Any]:
        """Seconds of each method, and what it was trained on, by label."""
        found = read_config(self.config).get("durations", {})
        return dict(found) if isinstance(found, dict) else {}

    def provenance(self) -> dict[str, str]:
        """Versions and devices of the sessions, as a page shows them."""
        sessions = read_config(self.config)["sessions"]
        last = sessions[-1] if sessions else {}
        return {
            "versions": ", ".join(f"{name} {version}" for name, version in last.get("versions", {}).items()),
            "trained on": ", ".join(dict.fromkeys(str(session.get("device")) for session in sessions)),
        }

    def took(self, study: Commanded, label: str, duration: Mapping[str, Any]) -> None:
        """Write down how long a method took."""
        self._write(study, read_config(self.config)["sessions"], self.durations() | {label: dict(duration)})

    def _write(self, study: Commanded, sessions: list[dict[str, Any]], durations: dict[str, Any]) -> None:
        write_config(self.config, study, study.command(), sessions, {"durations": durations})
