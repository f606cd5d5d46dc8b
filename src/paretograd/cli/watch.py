"""``paretograd watch``: what a monitor has recorded, once or as long as the run goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from paretograd.autograd.recording import file_of
from paretograd.cli.studies import console, errors_in_words
from paretograd.errors import InputError, MissingExtraError
from paretograd.reports.watch.analysis import analyse, other_rules
from paretograd.reports.watch.page import page_of, write
from paretograd.reports.watch.terminal import summary


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder or the file that pg.Monitor was given.")],
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write the page to this file, not beside the recording.")
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the page.")] = True,
    follow: Annotated[
        bool, typer.Option("--follow", help="Say it again whenever there is more, until Ctrl-C. Writes no page.")
    ] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="With --follow: look this often.")] = 5.0,
) -> None:
    """Which of my losses conflict, when, and what would other rules have done? From a run with pg.Monitor."""
    with errors_in_words():
        if follow:
            if report is not None:
                raise InputError("--follow writes no page; give --report without it, after the run or beside it")
            _follow(run, every)
            return
        target = page_of(run, report) if page or report is not None else None
        found = analyse(run)
        others = other_rules(found)
        console().print(summary(found, others))
        if target is None:
            return
        try:
            write(found, others, target, str(run))
        except MissingExtraError as error:
            if report is not None:
                raise
            typer.echo(f"\nThere is no page: {error}", err=True)
            return
        typer.echo(f"\nThe page is in {target}")


def _follow(run: Path, every: float) -> None:
    """Print the answer whenever the file has changed."""
    seen, out = None, console()
    try:
        while True:
            status = file_of(run).stat() if file_of(run).exists() else None
            state = None if status is None else (status.st_mtime_ns, status.st_size)
            if seen is None or state != seen:
                found = analyse(run)
                if out.is_terminal:
                    out.clear()
                out.print(summary(found, other_rules(found)))
                seen = state
            time.sleep(every)
    except KeyboardInterrupt:
        typer.echo("stopped")
