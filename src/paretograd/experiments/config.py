"""``config.json`` of a study's folder: what is run, and by which sessions, with which versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from paretograd.errors import InputError
from paretograd.experiments.files import write_text

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
