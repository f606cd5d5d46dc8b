"""What a study's files hold: lines of text, tables, and ``config.json``. Each is written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from paretograd.disk import replacing
from paretograd.errors import InputError

#: Version of the configuration's content.
SCHEMA = 1
_KEYS = {"schema", "study", "command", "sessions"}
#: Headings of the columns that hold text; all others hold numbers.
TEXTS = ("method", "theorem", "ended by")


class Runnable(Protocol):
    """A study of any kind, as its folder knows it."""

    def plain(self) -> dict[str, Any]:
        """The study as JSON-serialisable values."""

    def files(self) -> tuple[str, ...]:
        """File names of the methods, without suffix."""

    def command(self) -> str:
        """The command line that makes the study."""

    def rehearse(self) -> None:
        """Raise if some rule cannot work."""


def write_text(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file, replacing what it held only when all of them are on the disk."""
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with the same keys, which become the header; all digits of every number."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, buffer.getvalue().splitlines())


def markdown_table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The lines of a table in Markdown; numbers are aligned to the right."""
    yield f"| {' | '.join(rows[0])} |"
    yield f"| {' | '.join('---' if key in TEXTS else '---:' for key in rows[0])} |"
    for row in rows:
        yield f"| {' | '.join(map(in_markdown, row.values()))} |"


def in_markdown(text: str) -> str:
    """Escape stars for Markdown."""
    return text.replace("*", chr(92) + "*")


def remove_drafts(folder: Path) -> None:
    """Remove the leftovers of killed writes: ``.name.pid.part``."""
    for draft in folder.glob(".*.part"):
        draft.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Versions of all that computes."""
    from paretograd import __version__  # not at the top: the package is being imported then

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "paretograd": __version__,
    }


def write_config(path: Path, study: Runnable, sessions: list[dict[str, Any]], more: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all, with what only studies of this kind have."""
    content = {"schema": SCHEMA, "command": study.command(), "study": study.plain(), **more, "sessions": sessions}
    write_text(path, [json.dumps(content, indent=2)])


def read_config(path: Path) -> dict[str, Any]:
    """Read the file; raises `InputError` if it is not a study's configuration."""
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


def differences(there: dict[str, Any], study: Runnable) -> list[str]:
    """Differences between the study in a file and this one, in words."""
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
