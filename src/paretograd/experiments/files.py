"""Text on disk: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from paretograd.errors import InputError


def write_text(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file, replacing what it held only when all of them are on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def remove_drafts(folder: Path) -> None:
    """Remove what writes that were killed have left: ``.name.pid.part``."""
    for draft in folder.glob(".*.part"):
        draft.unlink(missing_ok=True)
