"""Text on disk, whole or not at all, and the names of files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paretograd.disk import replacing

_LONGEST = 60
#: Headings of the columns that hold text; all others hold numbers.
TEXTS = ("method", "theorem", "ended by")


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


def file_names(labels: Sequence[str]) -> tuple[str, ...]:
    """``nash-mtl-star`` for ``Nash-MTL*``: lower case, safe in shells and file systems, all different."""
    names: list[str] = []
    for label in labels:
        words = label.lower().replace("*", "-star").replace("+", "-plus")
        base = re.sub(r"[^a-z0-9.]+", "-", words).strip("-.")[:_LONGEST] or "method"
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return tuple(names)
