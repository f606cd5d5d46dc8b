"""``paretograd explore``: serve the page until it is stopped."""

from __future__ import annotations

import webbrowser
from threading import Event
from typing import Annotated

import typer

from paretograd.cli.studies import errors_in_words


def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the page is served; 0 takes any free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """What if my gradients were different? Drag them in the browser, and see where each rule goes.

    The page is served on this machine, to this machine only, until Ctrl-C stops it.
    """
    from paretograd.reports.explore import serving

    with errors_in_words(), serving(port) as address:
        typer.echo(f"The page is at {address}\nCtrl-C stops it.")
        if browser:
            webbrowser.open(address)
        try:
            Event().wait()
        except KeyboardInterrupt:
            typer.echo("stopped")
