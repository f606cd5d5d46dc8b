"""Tables of a report in HTML. Whatever a user wrote is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from numbers import Integral, Real

from paretograd.reports.palette import Curve
from paretograd.reports.study.bounds import Finding

#: Dash patterns of SVG for plotly's names.
_PATTERNS = {
    "solid": "none",
    "dash": "7 4",
    "dashdot": "7 3 2 3",
    "longdash": "11 4",
    "longdashdot": "11 3 2 3",
    "dot": "2 3",
}

#: Characters that a cell may have before it wraps.
_SHORT = 24


def swatch(look: Curve) -> str:
    """A piece of a method's line, in a colour of its own on a dark ground."""
    colours = f"--colour: {look.colour}; --on-dark: {look.on_dark}"
    stroke = f'stroke="currentColor" stroke-width="3" stroke-dasharray="{_PATTERNS[look.dash]}"'
    return (
        f'<svg class="swatch" style="{colours}" viewBox="0 0 34 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="34" y2="6" {stroke}/></svg>'
    )


def methods_table(rows: Sequence[Mapping[str, object]], methods: Mapping[str, Curve]) -> str:
    """The study's table; a cell that names a method shows its line."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numeric = {
        column: all(_is_number(row[column]) for row in rows if row.get(column) is not None) for column in columns
    }
    body = [[_cell(row.get(column), numeric[column], methods) for column in columns] for row in rows]
    return _table([_head(column, numeric[column]) for column in columns], body)


def theory_table(findings: Sequence[Finding], methods: Mapping[str, Curve]) -> str:
    """For each run the bound and the least gamma, or why no theorem covers it."""
    rows: list[dict[str, object]] = []
    for finding in findings:
        bound = finding.bound
        row: dict[str, object] = {
            "method": finding.method,
            "result": "not covered" if bound is None else bound.result,
            "bound on the least γ": None if bound is None else bound.at(bound.last),
            "least γ": finding.least,
        }
        rows.append({**row, "missing": finding.why} if finding.why else row)
    return methods_table(rows, methods)


def details_list(details: Mapping[str, str]) -> str:
    """The configuration as a list of terms."""
    pairs = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in details.items())
    return f"<dl>{pairs}</dl>"


def shown(value: object) -> str:
    """A value of the table in words; a dash where there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return "-" if math.isnan(number) else f"{number:.4g}"
    return "-" if value is None else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _cell(value: object, number: bool, methods: Mapping[str, Curve]) -> str:
    if isinstance(value, str) and value in methods:
        return f'<td class="method">{swatch(methods[value])}{escape(value)}</td>'
    text = shown(value)
    short = ' class="short"' if len(text) < _SHORT else ""
    return f"<td{_class(number) or short}>{escape(text)}</td>"


def _head(text: str, number: bool) -> str:
    return f'<th scope="col"{_class(number)}>{escape(str(text))}</th>'


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in body)
    return f'<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead>\n<tbody>{lines}</tbody></table></div>'
