"""The interactive page of a study: one file with all that it needs, which opens without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from paretograd.errors import needs
from paretograd.reports.study import words
from paretograd.reports.study.bounds import Finding, merged
from paretograd.reports.study.content import Content
from paretograd.reports.study.payload import panels, payload
from paretograd.reports.study.tables import details_list, methods_table, swatch, theory_table

_BOUNDS = '<label><input type="checkbox" name="bounds" checked>bounds of the theorems</label>'


def page(
    content: Content,
    summary: str,
    smoothness: float | None,
    findings: Sequence[Finding],
    rows: Sequence[Mapping[str, object]],
    details: Mapping[str, str],
) -> str:
    """The page as HTML. What a user wrote (title, labels, rows, details) is text in it, never markup.

    Args:
        content: what is drawn.
        summary: what was run, in a sentence or two.
        smoothness: L of the objectives; None where it is not known.
        findings: what the theorems say about the runs.
        rows: the table of methods.
        details: the configuration.
    """
    library, script = plotly_js(), _asset("page.js")
    shown = [finding for finding in findings if finding.seed == content.seeds[0]]
    bounds = merged(findings)
    return Template(_asset("page.html")).substitute(
        policy=_policy([library, script]),
        title=escape(content.title),
        style=_asset("page.css"),
        summary=escape(summary),
        table=f"<h2>Methods</h2>\n{methods_table(rows, content.methods)}" if rows else "",
        methods=_methods(content),
        seeds=_seeds(content),
        bounds=_BOUNDS if bounds else "",
        panels=_panels(content, smoothness, bool(bounds)),
        seed=content.seeds[0],
        theory=escape(words.theory(shown, smoothness)),
        findings=theory_table(shown, content.methods) if smoothness is not None else "",
        details=details_list(details),
        library=library,
        payload=payload(content, bounds),
        script=script,
    )


def plotly_js() -> str:
    """The source of plotly.js that the Python package brings: the full bundle, the only one in it."""
    with needs("plotly", "the report needs", "report"):
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs()).replace("\r\n", "\n")  # as a browser reads it, so that the checksum fits


def _asset(name: str) -> str:
    return files("paretograd.reports.study").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(scripts: Sequence[str]) -> str:
    """Run these scripts and no other, and load nothing from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _methods(content: Content) -> str:
    return "\n".join(
        f'<label><input type="checkbox" name="method" value="{i}" checked>{swatch(look)}{escape(label)}</label>'
        for i, (label, look) in enumerate(content.methods.items())
    )


def _seeds(content: Content) -> str:
    options = [f'<option value="{i}">{seed}</option>' for i, seed in enumerate(content.seeds)]
    if len(options) > 1:
        options.append('<option value="all">all seeds</option>')
    return "".join(options)


def _panels(content: Content, smoothness: float | None, bounded: bool) -> str:
    made = []
    for number, panel in enumerate(panels(content)):
        text, title = words.sentence(panel, content, smoothness, bounded), words.heading(panel, content)
        made.append(
            f'<figure class="panel"><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p></figcaption>'
            f'<div class="plot" id="plot-{number}"></div></figure>'
        )
    if content.m > content.panels:
        made.append(f"<p>The first {content.panels} of {content.m} objectives have a panel.</p>")
    return "\n".join(made)
