"""The folder of a study that trains models: its configuration tells sessions, devices, and how long things took."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from paretograd.descent.interrupts import Interrupt, held_interrupts
from paretograd.errors import InputError
from paretograd.experiments.config import Described, new_session, read_config, write_config
from paretograd.experiments.device import device_name
from paretograd.experiments.files import write_text
from paretograd.experiments.folder import Folder
from paretograd.experiments.progress import Watch

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

    def took(self, study: Commanded, label: str, duration: Mapping[str, Any]) -> None:
        """Write down how long a method took."""
        self._write(study, read_config(self.config)["sessions"], self.durations() | {label: dict(duration)})

    def _write(self, study: Commanded, sessions: list[dict[str, Any]], durations: dict[str, Any]) -> None:
        write_config(self.config, study, study.command(), sessions, {"durations": durations})
