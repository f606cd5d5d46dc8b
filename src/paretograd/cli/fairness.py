"""``paretograd reproduce fairness``: its options, and what it prints."""

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
from paretograd.experiments.fairness import FairnessResults, table
from paretograd.experiments.fairness.run import run_fairness
from paretograd.experiments.fairness.study import read_study
from paretograd.experiments.folder import read_config

_PANEL = "For fairness"
#: Columns of a terminal that has room for all.
_WIDE = 110

Steps = Annotated[
    int | None, typer.Option(min=1, help="At most this many: 40000 if not given.", rich_help_panel=_PANEL)
]
Gaps = Annotated[
    str | None,
    typer.Option(
        metavar="sums|means", help="Gaps of sums as in the benchmark, or of group means.", rich_help_panel=_PANEL
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(
        metavar="all|train", help="Standardise over all rows as in the benchmark, or train.", rich_help_panel=_PANEL
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
    """Run the study with these options, print its table, and draw its report."""
    study = read_study(**trained.about_study(options))
    work = partial(run_fairness, resume=resume, overwrite=overwrite, checkpoint_every=checkpoint_every)
    numbers = f"{folder / 'methods'} (thinned), {folder / 'checkpoints'} (trained classifiers)"
    trained.follow(study, folder, options, work, _summary, draw if report else None, numbers)


def draw(results: FairnessResults) -> list[Path]:
    """Write figures and page; needs the extra ``report``."""
    from paretograd.experiments.fairness.report import write_fairness

    return write_fairness(results, _details(results))


def _summary(results: FairnessResults, width: int) -> Group:
    """Title, table, legend and remarks; a narrow terminal has no room for the differences from the paper."""
    study, found = results.study, results.rows
    wide = width >= _WIDE
    differences = "In brackets: the difference from the paper." if wide else "table.md has the paper's values, too."
    return Group(
        Text(table.title(study), style="bold"),
        Text(table.setting(study)),
        Text(f"{table.heading(study)} {differences}"),
        Text(""),
        table_of([_compact(row, wide) for row in table.for_people(found)]),
        Text(""),
        Text(table.legend(study), style="dim"),
        *(Text(remark) for remark in table.notes(study, found, results.methods)),
    )


def _compact(row: Mapping[str, str], wide: bool) -> dict[str, str]:
    """One column for each measure, so that the table fits a terminal."""
    shown = {"method": row["method"]}
    for name in ("accuracy", "DEO1", "DEO2"):
        difference = row.get(f"{name} difference", "")
        shown[name] = row[name] + f" ({difference})" * (wide and bool(difference))
    return shown | {"steps": row["steps"], "ended by": row["ended by"]}


def _details(results: FairnessResults) -> Mapping[str, str]:
    """The configuration as the report shows it."""
    study, durations = results.study, read_config(results.folder / "config.json").get("durations", {})
    speeds = [f"{label} {found['ms_per_step']:.2f} ms ({found['device']})" for label, found in durations.items()]
    return {
        "protocol": table.setting(study),
        "a run ends at the first of": table.ends(study),
        **trained.details(results.folder),
        "a step of all seeds took": ", ".join(speeds),
        "command": study.command(),
    }
