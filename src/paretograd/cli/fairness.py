"""``paretograd reproduce fairness``: its options, what it prints, and where everything lies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from paretograd.cli.bars import Bars
from paretograd.cli.console import console
from paretograd.cli.summary import table_of
from paretograd.errors import MissingExtraError
from paretograd.experiments.config import read_config
from paretograd.experiments.fairness import FairnessResults, words
from paretograd.experiments.fairness.run import run_fairness
from paretograd.experiments.fairness.study import read_study

_PANEL = "For fairness"
#: Columns of a terminal that has room for all.
_WIDE = 110

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Holds adult.data and adult.test, plain, .gz or .xz. If not given: $PARETOGRAD_DATA, a download.",
        rich_help_panel=_PANEL,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(metavar="RULES", help="Only these, separated by commas: 'mgda,upgrad*'.", rich_help_panel=_PANEL),
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="SEEDS", help="Separated by commas: 24,42,64,100 if not given.", rich_help_panel=_PANEL),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="At most this many: 40000 if not given.", rich_help_panel=_PANEL)
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
    about_study = {name: value for name, value in options.items() if name not in ("data_dir", "device")}
    study = read_study(**about_study)
    try:
        with Bars() as bars:
            results = run_fairness(
                study,
                folder,
                data_dir=options["data_dir"],
                device=options["device"] or "auto",
                resume=resume,
                overwrite=overwrite,
                checkpoint_every=checkpoint_every,
                watch=bars,
            )
        console().print(_summary(results, console().width))
        console().print(_places(folder, _report(results) if report else []))
    except KeyboardInterrupt:
        where = "".join(
            f" --{name.replace('_', '-')} {shlex.quote(str(options[name]))}"
            for name in ("data_dir", "device")
            if options[name] is not None
        )
        go_on = f"{study.command()}{where} --out {shlex.quote(str(folder))} --resume"
        typer.echo(f"interrupted; what was done is in {folder}. Go on with:\n  {go_on}", err=True)
        raise typer.Exit(130) from None


def draw(results: FairnessResults) -> list[Path]:
    """Write figures and page; needs the extra ``report``."""
    from paretograd.reports.fairness import write_fairness

    return write_fairness(results, _details(results))


def _report(results: FairnessResults) -> list[Path]:
    """Figures and page; without the extras they need, a sentence about it, since all numbers are there."""
    try:
        return draw(results)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}; then run: paretograd report {results.folder}", err=True)
        return []


def _summary(results: FairnessResults, width: int) -> Group:
    """Title, table, legend and remarks; a narrow terminal has no room for the differences from the paper."""
    study, found = results.study, results.rows
    wide = width >= _WIDE
    differences = "In brackets: the difference from the paper." if wide else "table.md has the paper's values, too."
    return Group(
        Text("Fair classification on Adult", style="bold"),
        Text(words.setting(study)),
        Text(f"{words.heading(study)} {differences}"),
        Text(""),
        table_of([_compact(row, wide) for row in words.for_people(found)]),
        Text(""),
        Text(words.legend(study), style="dim"),
        *(Text(remark) for remark in words.notes(study, found, results.methods)),
    )


def _compact(row: Mapping[str, str], wide: bool) -> dict[str, str]:
    """One column for each measure, so that the table fits a terminal."""
    shown = {"method": row["method"]}
    for name in ("accuracy", "DEO1", "DEO2"):
        difference = row.get(f"{name} difference", "")
        shown[name] = row[name] + f" ({difference})" * (wide and bool(difference))
    return shown | {"steps": row["steps"], "ended by": row["ended by"]}


def _places(folder: Path, report: Sequence[Path]) -> Group:
    lines = [
        *(Text.assemble("report   ", (str(path), "bold")) for path in report if path.suffix == ".html"),
        *(Text(f"figures  {path}") for path in dict.fromkeys(path.parent for path in report if path.suffix != ".html")),
        Text(f"table    {folder / 'table.md'}, {folder / 'table.csv'}"),
        Text(f"numbers  {folder / 'methods'} (thinned), {folder / 'checkpoints'} (trained classifiers)"),
    ]
    return Group(Text(""), *lines)


def _details(results: FairnessResults) -> Mapping[str, str]:
    """The configuration as the report shows it."""
    config = read_config(results.folder / "config.json")
    study, durations = results.study, config.get("durations", {})
    sessions = config["sessions"]
    last = sessions[-1] if sessions else {}
    speeds = [f"{label} {found['ms_per_step']:.2f} ms ({found['device']})" for label, found in durations.items()]
    return {
        "protocol": words.setting(study),
        "a run ends at the first of": words.ends(study),
        "versions": ", ".join(f"{name} {version}" for name, version in last.get("versions", {}).items()),
        "trained on": ", ".join(dict.fromkeys(str(session.get("device")) for session in sessions)),
        "a step of all seeds took": ", ".join(speeds),
        "command": study.command(),
    }
