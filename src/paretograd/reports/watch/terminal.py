"""What ``paretograd watch`` prints, with rich: the answer in words, then tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paretograd.reports.study.page import shown
from paretograd.reports.watch.analysis import Other, Run
from paretograd.reports.watch.words import RULES_LEGEND, answer, loss_legend, loss_rows, other_rows

#: Losses in the table; the page has all.
_MOST = 20


def summary(run: Run, others: Sequence[Other]) -> Group:
    """Return the answer, the table of losses and that of other rules."""
    size, *sentences = answer(run, others)
    parts: list[RenderableType] = [Text(size, style="bold")]
    parts += [Text(f"- {sentence}") for sentence in sentences]
    parts += [Text(""), _table(loss_rows(run)[:_MOST])]
    parts.append(Text(loss_legend(run), style="dim"))
    if run.m > _MOST:
        parts.append(Text(f"... and {run.m - _MOST} more losses", style="dim"))
    if others:
        parts += [Text(""), _table(other_rows(others, run.labels)), Text(RULES_LEGEND, style="dim")]
    return Group(*parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    for column, value in rows[0].items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row.values()))
    return table
