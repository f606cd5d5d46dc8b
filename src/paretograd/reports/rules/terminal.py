"""The table of rules in a terminal, with rich: all columns if there is room, letters if there is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paretograd.reports.rules.properties import PROPERTIES
from paretograd.reports.rules.table import Answer, TableRow
from paretograd.reports.rules.words import sentence

#: Width from which all columns fit.
WIDE = 190
_STYLES = {True: "green", False: "red", None: "yellow"}
_NEXT = (
    "Next: paretograd theorems --table --only NAME shows the counter-examples of a rule; pg.table() has all as data."
)


def rule_table(rows: Sequence[TableRow], width: int) -> Group:
    """Return the table with all columns, or with a letter for each property if the terminal is narrow."""
    return Group(_wide(rows) if width >= WIDE else _narrow(rows), Text(""), *_legend(width), Text(_NEXT))


def rule_details(rows: Sequence[TableRow]) -> Group:
    """Return every answer of a few rules, with the counter-examples."""
    parts: list[RenderableType] = []
    for row in rows:
        parts.append(Text.assemble((row.label, "bold"), f"   {row.rule}", style=""))
        parts.append(Text(f"needs: {row.needs}; keeps: {row.state or 'nothing'}; cost: {row.cost}; {row.result}"))
        for key, answer in row.answers.items():
            parts.append(_styled(f"  {PROPERTIES[key].heading}: {answer}", answer))
            if answer.counterexample is not None:
                parts.append(Padding(Text(sentence(answer.counterexample)), (0, 0, 0, 4)))
        parts.append(Text(""))
    legend = (
        "J has a row for each gradient; [1 0; 0 1] has two. J2 and J3 are those of further batches, f the losses (ones "
        "if not given), s learned numbers. z separates; t goes to 0."
    )
    return Group(*parts, Text(legend, style="dim"))


def _wide(rows: Sequence[TableRow]) -> Table:
    table = _table("rule")
    for key in _columns():
        heading = PROPERTIES[key].heading
        table.add_column(
            heading.replace(" ", "\n", 1) if " " in heading else heading.replace("-", "-\n", 1), justify="center"
        )
    for heading in ("needs", "keeps", "cost", "result"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [_styled(_cell(row, key), row.answers[key]) for key in _columns()]
        table.add_row(Text(row.label, style="bold"), *cells, row.needs, row.state or "-", row.cost, row.result)
    return table


def _narrow(rows: Sequence[TableRow]) -> Table:
    table = _table("rule")
    for key in _columns():
        table.add_column(PROPERTIES[key].letter, justify="center")
    for row in rows:
        cells = [_styled(_short(_cell(row, key)), row.answers[key]) for key in _columns()]
        table.add_row(Text(row.label, style="bold"), *cells)
    return table


def _columns() -> list[str]:
    """Return the properties with columns of their own: continuity has one column for both of its properties."""
    return [key for key in PROPERTIES if key != "continuous_inside"]


def _cell(row: TableRow, key: str) -> str:
    answer = row.answers[key]
    if key == "aligned" and answer.holds:
        return answer.detail.partition(",")[0].removeprefix("c = ")
    if key == "continuous" and answer.holds is False and row.answers["continuous_inside"].holds:
        return "gamma > 0"
    return str(answer)


def _short(cell: str) -> str:
    return {"yes": "y", "no": "-", "gamma > 0": "+"}.get(cell, cell)


def _legend(width: int) -> list[Text]:
    if width >= WIDE:
        notes = (
            "condition (A): the constant c; paretograd explain NAME shows F. continuous, gamma > 0: away from Pareto "
            "stationary points. Every yes is proved and tested, every no has a counter-example."
        )
        return [Text(notes)]
    letters = [f"{PROPERTIES[key].letter} {PROPERTIES[key].heading}" for key in _columns()]
    return [
        Text(f"{'; '.join(letters)}."),
        Text("y: yes, proved and tested. -: no, with a counter-example. A: the constant c. K +: only where gamma > 0."),
    ]


def _styled(text: str, answer: Answer) -> Text:
    return Text(text, style=_STYLES[answer.holds])


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    table.add_column(first, overflow="fold")
    return table
