"""Contents of a study's files: text, tables and ``config.json``. Each file is written completely or not at all."""

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
    """What a folder needs of a study."""

    def plain(self) -> dict[str, Any]:
        """Return the study as JSON-serialisable values."""

    def files(self) -> tuple[str, ...]:
        """Return the names of the result files, without suffix."""

    def command(self) -> str:
        """Return the command line that runs the study."""

    def rehearse(self) -> None:
        """Raise if some rule cannot run."""


def write_text(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file. The old content is replaced only when all lines are on the disk."""
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with the same keys, which become the header. Numbers keep all their digits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, buffer.getvalue().splitlines())


def markdown_table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown. Numbers are aligned to the right."""
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
    """Return the versions of Python, torch, numpy and this package."""
    from paretograd import __version__  # not at the top: the import would be circular

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "paretograd": __version__,
    }


def write_config(path: Path, study: Runnable, sessions: list[dict[str, Any]], more: Mapping[str, Any]) -> None:
    """Write ``config.json``; ``more`` holds entries that only this kind of study has."""
    content = {"schema": SCHEMA, "command": study.command(), "study": study.plain(), **more, "sessions": sessions}
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
    if found["schema"] != SCHEMA:
        raise InputError(f"{path} has schema {found['schema']!r}; this version reads {SCHEMA}. Choose another folder")
    sessions, every = found["sessions"], found.get("metrics_every", 1)
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise InputError(f"{path} is damaged: sessions is no list of sessions. Choose another folder")
    if type(every) is not int or every < 1:
        raise InputError(f"{path} is damaged: metrics_every is {every!r}. Choose another folder")
    return found


def differences(there: dict[str, Any], study: Runnable) -> list[str]:
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
