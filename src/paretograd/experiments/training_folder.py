"""The folder of a study that trains models: its configuration tells sessions, devices, and how long things took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from paretograd.experiments.config import Described, new_session, read_config, write_config
from paretograd.experiments.files import write_text
from paretograd.experiments.folder import Folder
from paretograd.experiments.progress import Watch


class Commanded(Described, Protocol):
    """A study that knows the command which makes it."""

    def command(self) -> str:
        """The command line."""


class TrainingFolder(Folder):
    """Paths of its files, and its configuration."""

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
