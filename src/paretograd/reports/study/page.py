"""The page of a study, self-contained HTML, and `write_study`, which writes it and the figures to a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from numbers import Integral, Real
from pathlib import Path
from string import Template

from paretograd.descent.trajectory import Trajectory
from paretograd.disk import replacing
from paretograd.errors import needs
from paretograd.problems.base import Problem
from paretograd.reports.inline import asset, policy
from paretograd.reports.study.content import Content, Curve, Finding, compose, find_bounds, merged
from paretograd.reports.study.figures import draw
from paretograd.reports.study.panels import heading, panels, payload, sentence, summary, theory

#: Dash patterns of SVG for plotly's names.
_PATTERNS = {
    "solid": "none",
    "dash": "7 4",
    "dashdot": "7 3 2 3",
    "longdash": "11 4",
    "longdashdot": "11 3 2 3",
    "dot": "2 3",
}

#: Cells with fewer characters do not wrap.
_SHORT = 24
_BOUNDS = '<label><input type="checkbox" name="bounds" checked>bounds of the theorems</label>'


def swatch(look: Curve) -> str:
    """Return a sample of a method's line as SVG, with colours for light and dark grounds."""
    colours = f"--colour: {look.colour}; --on-dark: {look.on_dark}"
    stroke = f'stroke="currentColor" stroke-width="3" stroke-dasharray="{_PATTERNS[look.dash]}"'
    return (
        f'<svg class="swatch" style="{colours}" viewBox="0 0 34 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="34" y2="6" {stroke}/></svg>'
    )


def methods_table(rows: Sequence[Mapping[str, object]], methods: Mapping[str, Curve]) -> str:
    """Return the study's table as HTML; a cell that names a method shows its line."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numeric = {
        column: all(_is_number(row[column]) for row in rows if row.get(column) is not None) for column in columns
    }
    body = [[_cell(row.get(column), numeric[column], methods) for column in columns] for row in rows]
    return _table([_head(column, numeric[column]) for column in columns], body)


def theory_table(findings: Sequence[Finding], methods: Mapping[str, Curve]) -> str:
    """Return a table as HTML: for each run the bound and the least gamma, or why no theorem covers it."""
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
    """Return the configuration as a list of terms, as HTML."""
    pairs = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in details.items())
    return f"<dl>{pairs}</dl>"


def shown(value: object) -> str:
    """Format a value of the table; a dash if there is none."""
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


def page(
    content: Content,
    summary: str,
    smoothness: float | None,
    findings: Sequence[Finding],
    rows: Sequence[Mapping[str, object]],
    details: Mapping[str, str],
) -> str:
    """Return the page as HTML. User input (title, labels, rows, details) is escaped.

    Args:
        content: what is drawn.
        summary: what was run, in a sentence or two.
        smoothness: L of the objectives; None if unknown.
        findings: what the theorems say about the runs.
        rows: the table of methods.
        details: the configuration.
    """
    library, script = plotly_js(), _asset("page.js")
    shown = [finding for finding in findings if finding.seed == content.seeds[0]]
    bounds = merged(findings)
    return Template(_asset("page.html")).substitute(
        policy=policy([library, script]),
        title=escape(content.title),
        style=_asset("page.css"),
        summary=escape(summary),
        table=f"<h2>Methods</h2>\n{methods_table(rows, content.methods)}" if rows else "",
        methods=_methods(content),
        seeds=_seeds(content),
        bounds=_BOUNDS if bounds else "",
        panels=_panels(content, smoothness, bool(bounds)),
        run=content.one,
        Run=content.one.capitalize(),
        seed=content.seeds[0],
        theory=escape(theory(shown, smoothness, content.one)),
        findings=theory_table(shown, content.methods) if smoothness is not None else "",
        details=details_list(details),
        library=library,
        payload=payload(content, bounds),
        script=script,
    )


def plotly_js() -> str:
    """Return the source of plotly.js from the Python package, which contains only the full bundle."""
    with needs("plotly", "the report needs", "report"):
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs()).replace("\r\n", "\n")  # browsers normalise line ends before they compute the checksum


def _asset(name: str) -> str:
    return asset("paretograd.reports.study", name)


def _methods(content: Content) -> str:
    return "\n".join(
        f'<label><input type="checkbox" name="method" value="{i}" checked>{swatch(look)}{escape(label)}</label>'
        for i, (label, look) in enumerate(content.methods.items())
    )


def _seeds(content: Content) -> str:
    options = [f'<option value="{i}">{seed}</option>' for i, seed in enumerate(content.seeds)]
    if len(options) > 1:
        options.append(f'<option value="all">all {content.one}s</option>')
    return "".join(options)


def _panels(content: Content, smoothness: float | None, bounded: bool) -> str:
    made = []
    for number, panel in enumerate(panels(content)):
        text, title = sentence(panel, content, smoothness, bounded), heading(panel, content)
        made.append(
            f'<figure class="panel"><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p></figcaption>'
            f'<div class="plot" id="plot-{number}"></div></figure>'
        )
    if content.m > content.panels:
        made.append(f"<p>The first {content.panels} of {content.m} objectives have a panel.</p>")
    return "\n".join(made)


def write_study(
    folder: str | Path,
    title: str,
    trajectories: Mapping[str, Trajectory],
    problem: Problem,
    shown_seed: int,
    rows: Sequence[Mapping[str, object]],
    details: Mapping[str, str],
    *,
    stop_gamma: float | None = None,
) -> list[Path]:
    """Write ``figures/*.png``, ``figures/*.svg`` and ``report.html``; return their paths, the report last.

    Everything is drawn before anything is written, and each file is written completely or not at all. Existing
    files are replaced. Needs the extra ``paretograd[report]``.

    Args:
        folder: of the study; made if it is not there.
        title: of the report.
        trajectories: label of a method to its runs, in the order of legends.
        problem: what all of them minimise.
        shown_seed: the runs of the figures, and those that the report shows first.
        rows: the table of methods, one mapping of column to value for each.
        details: the configuration, as the report shows it.
        stop_gamma: where the runs stop, drawn as a line; None where they do not stop by gamma.
    """
    content = compose(title, trajectories, problem, shown_seed, stop_gamma)
    figures, findings = draw(content), find_bounds(trajectories, problem.smoothness)
    text = page(content, summary(content, problem), problem.smoothness, findings, rows, details)
    return write_files(Path(folder), figures, text)


def write_files(folder: Path, figures: Mapping[str, bytes], page: str) -> list[Path]:
    """Write figures and page to a study's folder; returns their paths, the page last."""
    contents = {folder / "figures" / name: data for name, data in figures.items()}
    contents[folder / "report.html"] = page.encode()
    for path, data in contents.items():
        with replacing(path) as file:
            file.write(data)
    return list(contents)
