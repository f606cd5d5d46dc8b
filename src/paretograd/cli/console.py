"""Output of the commands: the console, error messages, and the summary of a study."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paretograd.errors import ParetogradError
from paretograd.experiments.files import TEXTS
from paretograd.experiments.kind import Summary

#: So that the table fits 80 columns.
_IN_TWO_LINES = {"conflicts": "con-\nflicts", "left box": "left\nbox"}


def console() -> Console:
    """Return a console on standard output."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 120  # a file or a pipe has no width of its own; 80 would fold the tables
    return made


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print the library's own errors as one message and exit with 2; any other is a bug and keeps its traceback."""
    try:
        yield
    except ParetogradError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def shown(summary: Summary) -> Group:
    """Render title, tables, legend, remarks and claims of a study."""
    tables: list[RenderableType] = []
    for title, rows in summary.tables.items():
        tables += [*([Text(title, style="bold")] if title else []), _table(rows), Text("")]
    return Group(
        Text(summary.title, style="bold"),
        *map(Text, summary.lines),
        Text(""),
        *tables,
        Text(summary.legend, style="dim"),
        *map(Text, summary.remarks),
        *(Text(claim.sentence) for claim in summary.claims),
    )


def places(folder: Path, report: Sequence[Path], numbers: str) -> Group:
    """List the files with the results of a study."""
    figures = dict.fromkeys(path.parent for path in report if path.suffix != ".html")
    return Group(
        Text(""),
        *(Text.assemble("report   ", (str(path), "bold")) for path in report if path.suffix == ".html"),
        *(Text(f"figures  {path}") for path in figures),
        Text(f"table    {folder / 'table.md'}, {folder / 'table.csv'}"),
        Text(f"numbers  {numbers}"),
    )


def _table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Render rows of texts, one for each method, below their headings."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    wraps = "ended by" if "ended by" in rows[0] else "method"
    for heading in rows[0]:
        name = _IN_TWO_LINES.get(heading, heading.replace("seed ", "seed\n"))
        made.add_column(
            name, justify="left" if heading in TEXTS else "right", no_wrap=heading != wraps, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(text, style="bold" if heading == "method" else "") for heading, text in row.items()))
    return made
