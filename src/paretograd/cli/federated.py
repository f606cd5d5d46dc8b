"""``paretograd reproduce federated``: its options, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from paretograd.cli import trained
from paretograd.cli.summary import table_of
from paretograd.experiments.federated import FederatedResults, table
from paretograd.experiments.federated.plan import PARTS
from paretograd.experiments.federated.run import run_federated
from paretograd.experiments.federated.study import read_study
from paretograd.experiments.folder import read_config

_PANEL = "For federated"
#: Columns of a terminal that has room for all.
_WIDE = 110
#: Left out where there is less room.
_MORE = ("under attack, all test images", "ours less the paper's")

Small = Annotated[
    bool,
    typer.Option("--small", help="A few minutes on two cores, with the same ordering.", rich_help_panel=_PANEL),
]
Parts = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS", help=f"Groups of runs, separated by commas: {','.join(PARTS)}.", rich_help_panel=_PANEL
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="1000 if not given.", rich_help_panel=_PANEL)]
Lr = Annotated[
    float | None, typer.Option("--lr", metavar="LR", help="Step size: 0.01 if not given.", rich_help_panel=_PANEL)
]
Noise = Annotated[
    str | None,
    typer.Option(
        metavar="RHO|literal",
        help="Noise of the attack, relative to the flipped gradient: 0.15 if not given. literal: the paper's scale.",
        rich_help_panel=_PANEL,
    ),
]


def run(
    folder: Path,
    options: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
    checkpoint_every: float,
    report: bool,
) -> None:
    """Run the study with these options, print its tables, and draw its report."""
    study = read_study(**trained.about_study(options))
    work = partial(run_federated, resume=resume, overwrite=overwrite, checkpoint_every=checkpoint_every)
    trained.follow(study, folder, options, work, _summary, draw if report else None, f"{folder / 'runs'} (thinned)")


def draw(results: FederatedResults) -> list[Path]:
    """Write figures and page; needs the extra ``report``."""
    from paretograd.experiments.federated.report import write_federated

    return write_federated(results, _details(results))


def _summary(results: FederatedResults, width: int) -> Group:
    """Title, tables, legend and remarks; a narrow terminal has no room for all columns."""
    study, found = results.study, results.rows
    parts: list[Any] = []
    for title, rows in table.tables(study, found).items():
        shown = [_fitting(row, width) for row in rows]
        parts += [Text(title, style="bold"), table_of(shown), Text("")]
    return Group(
        Text(table.TITLE, style="bold"),
        Text(table.setting_in_words(study)),
        Text(table.heading(study)),
        Text(""),
        *parts,
        Text(table.legend(study), style="dim"),
        *(Text(remark) for remark in table.notes(study, found, results.runs)),
    )


def _fitting(row: Mapping[str, str], width: int) -> dict[str, str]:
    return {name: text for name, text in row.items() if width >= _WIDE or name not in _MORE}


def _details(results: FederatedResults) -> Mapping[str, str]:
    """The configuration as the report shows it."""
    durations = read_config(results.folder / "config.json").get("durations", {}).values()
    seconds = [float(found["seconds"]) for found in durations]
    each = sorted(took / found["runs"] for took, found in zip(seconds, durations, strict=True))
    took = f"{each[0]:.1f} to {each[-1]:.1f} s; all {sum(seconds) / 60:.1f} min" if seconds else ""
    return {
        "protocol": table.setting_in_words(results.study),
        **trained.details(results.folder),
        "a run's share of the time": took,
        "command": results.study.command(),
    }
