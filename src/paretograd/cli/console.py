"""Where the commands print, and how they tell a mistake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from paretograd.errors import ParetogradError


def console() -> Console:
    """Standard output."""
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
