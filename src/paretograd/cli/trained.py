"""What the commands of studies that train have in common: options, how they are followed, and where things lie."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from paretograd.cli.console import console
from paretograd.errors import MissingExtraError
from paretograd.experiments.folder import read_config
from paretograd.experiments.progress import Bars

_PANEL = "For fairness and federated"

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Holds the files of Adult or CIFAR-10, packed or not. If not given: $PARETOGRAD_DATA, a download.",
        rich_help_panel=_PANEL,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(metavar="RULES", help="Only these, separated by commas: 'mgda,upgrad*'.", rich_help_panel=_PANEL),
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="SEEDS", help="Separated by commas; the study's own if not given.", rich_help_panel=_PANEL),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="auto|cpu|cuda", help="auto takes a GPU if there is one.", rich_help_panel=_PANEL),
]
Tf32 = Annotated[
    bool | None,
    typer.Option(
        "--tf32/--no-tf32", help="Let a GPU round products to TF32; it does if not given.", rich_help_panel=_PANEL
    ),
]


class Study(Protocol):
    """A study that knows its command."""

    def command(self) -> str:
        """The command line."""


class Results(Protocol):
    """A study that was run."""

    @property
    def folder(self) -> Path:
        """Where it lies."""


Found = TypeVar("Found", bound=Results)


def about_study(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that say what is trained, and not from which files or on what."""
    return {name: value for name, value in options.items() if name not in ("data_dir", "device")}


def follow(
    study: Study,
    folder: Path,
    options: Mapping[str, Any],
    run: Callable[..., Found],
    summary: Callable[[Found, int], RenderableType],
    draw: Callable[[Found], list[Path]] | None,
    numbers: str,
) -> None:
    """Run a study under bars, print its table, draw its report; an interrupt says how to go on.

    Args:
        study: what is run.
        folder: where.
        options: ``data_dir`` and ``device`` as they were given.
        run: the work, which takes study, folder, ``data_dir``, ``device`` and ``watch``.
        summary: what is printed of it, for a width.
        draw: figures and page; None for no report.
        numbers: where the numbers of the runs are, in the folder.
    """
    try:
        with Bars() as bars:
            device = options["device"] or "auto"
            results = run(study, folder, data_dir=options["data_dir"], device=device, watch=bars)
        console().print(summary(results, console().width))
        console().print(_places(folder, _report(results, draw) if draw is not None else [], numbers))
    except KeyboardInterrupt:
        where = "".join(
            f" --{name.replace('_', '-')} {shlex.quote(str(options[name]))}"
            for name in ("data_dir", "device")
            if options[name] is not None
        )
        go_on = f"{study.command()}{where} --out {shlex.quote(str(folder))} --resume"
        typer.echo(f"interrupted; what was done is in {folder}. Go on with:\n  {go_on}", err=True)
        raise typer.Exit(130) from None


def details(folder: Path) -> dict[str, str]:
    """Versions and devices of a study, as its report shows them."""
    sessions = read_config(folder / "config.json")["sessions"]
    last = sessions[-1] if sessions else {}
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in last.get("versions", {}).items()),
        "trained on": ", ".join(dict.fromkeys(str(session.get("device")) for session in sessions)),
    }


def _report(results: Found, draw: Callable[[Found], list[Path]]) -> list[Path]:
    """Figures and page; without the extras they need, a sentence about it, since all numbers are there."""
    try:
        return draw(results)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}; then run: paretograd report {results.folder}", err=True)
        return []


def _places(folder: Path, report: Sequence[Path], numbers: str) -> Group:
    lines = [
        *(Text.assemble("report   ", (str(path), "bold")) for path in report if path.suffix == ".html"),
        *(Text(f"figures  {path}") for path in dict.fromkeys(path.parent for path in report if path.suffix != ".html")),
        Text(f"table    {folder / 'table.md'}, {folder / 'table.csv'}"),
        Text(f"numbers  {numbers}"),
    ]
    return Group(Text(""), *lines)
