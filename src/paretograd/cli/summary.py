"""What a study prints at its end: the table, how to read it, and where everything lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paretograd.experiments.synthetic import table as words
from paretograd.experiments.synthetic.run import Results
from paretograd.experiments.synthetic.study import title_of

_LEFT = ("method", "theorem", "ended by")
#: So that the table fits 80 columns.
_IN_TWO_LINES = {"conflicts": "con-\nflicts", "left box": "left\nbox"}
#: Remarks about single runs that are printed; the file has all of them.
_REMARKS = 6


def summary(results: Results) -> Group:
    """Title, table, legend and remarks."""
    study = results.study
    problem = study.make_problem()
    setting = (
        f"{problem.label}, m = {problem.m}, n = {problem.n}; seeds {', '.join(map(str, study.seeds))}; "
        f"lr {study.lr}; {study.dtype}"
    )
    remarks = words.notes(study, results.trajectories)
    more = len(remarks) - _REMARKS
    if more > 0:
        remarks = [*remarks[:_REMARKS], f"And {more} more: see {results.folder / 'table.md'}."]
    return Group(
        Text(title_of(study), style="bold"),
        Text(setting),
        Text(words.heading(study)),
        Text(""),
        table_of(words.for_people(study, results.rows)),
        Text(""),
        Text(words.legend(study, results.rows), style="dim"),
        *(Text(remark) for remark in remarks),
    )


def places(folder: Path, report: Sequence[Path], metrics_every: int) -> Group:
    """Where the results are."""
    figures = [path for path in report if path.suffix != ".html"]
    pages = [path for path in report if path.suffix == ".html"]
    thinned = "all steps" if metrics_every == 1 else f"one step in {metrics_every}"
    lines = [
        *(Text.assemble("report   ", (str(page), "bold")) for page in pages),
        *(Text(f"figures  {parent}") for parent in dict.fromkeys(path.parent for path in figures)),
        Text(f"table    {folder / 'table.md'}, {folder / 'table.csv'}"),
        Text(f"numbers  {folder / 'metrics.csv'} ({thinned}), {folder / 'trajectories'} (all)"),
    ]
    return Group(Text(""), *lines)


def table_of(rows: Sequence[dict[str, str]]) -> Table:
    """Texts by their headings, one row for each method."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    wraps = "ended by" if "ended by" in rows[0] else "method"
    for heading in rows[0]:
        name = _IN_TWO_LINES.get(heading, heading.replace("seed ", "seed\n"))
        made.add_column(
            name, justify="left" if heading in _LEFT else "right", no_wrap=heading != wraps, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(text, style="bold" if heading == "method" else "") for heading, text in row.items()))
    return made
