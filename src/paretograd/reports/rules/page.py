"""The generated part of docs/table-of-rules.md."""

from __future__ import annotations

from collections.abc import Sequence

from paretograd.reports.rules.properties import PROPERTIES
from paretograd.reports.rules.table import Answer, TableRow, table
from paretograd.reports.rules.words import sentence


def to_markdown() -> str:
    """Return both tables, and the counter-examples of every rule."""
    rows = table()
    return "\n\n".join(
        (
            "### What holds",
            _markdown(("rule", *(found.heading for found in PROPERTIES.values())), [_properties(row) for row in rows]),
            "### What it takes",
            _markdown(("rule", "name", "needs", "keeps", "cost", "result"), [_costs(row) for row in rows]),
            "### Counter-examples { #counter-examples }",
            *filter(None, map(_counterexamples, rows)),
        )
    )


def _properties(row: TableRow) -> list[str]:
    return [row.label, *(_answer(answer) for answer in row.answers.values())]


def _answer(answer: Answer) -> str:
    return f"**{answer}**" if answer.holds else str(answer)


def _costs(row: TableRow) -> list[str]:
    return [row.label, f"`{row.rule}`", row.needs, row.state or "-", row.cost, row.result]


def _counterexamples(row: TableRow) -> str:
    lines = [
        f"    - *{PROPERTIES[key].heading}*: `{sentence(answer.counterexample)}`"
        for key, answer in row.answers.items()
        if answer.counterexample is not None
    ]
    return "\n".join((f'??? note "{row.label}"', "", *lines)) if lines else ""


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in cells)} |" for cells in lines)


def _cell(text: str) -> str:
    escaped = text.replace("|", r"\|")
    return escaped if escaped.startswith(("**", "`")) else escaped.replace("*", r"\*")
