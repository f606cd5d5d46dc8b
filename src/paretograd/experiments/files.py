"""Text on disk: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paretograd.disk import replacing


def write_text(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file, replacing what it held only when all of them are on the disk."""
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
    return path


def remove_drafts(folder: Path) -> None:
    """Remove what writes that were killed have left: ``.name.pid.part``."""
    for draft in folder.glob(".*.part"):
        draft.unlink(missing_ok=True)
