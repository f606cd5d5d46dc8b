"""The page of a recording, self-contained HTML with the answer in words at its top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from paretograd.autograd.recording import file_of
from paretograd.disk import replacing
from paretograd.errors import ParameterError
from paretograd.reports.inline import asset, policy
from paretograd.reports.study.content import Curve, curves
from paretograd.reports.study.page import details_list, methods_table, plotly_js, swatch
from paretograd.reports.watch.analysis import Other, Run, analyse, other_rules
from paretograd.reports.watch.panels import MOST_LINES, panels, payload
from paretograd.reports.watch.words import RULES_LEGEND, answer, loss_legend, loss_rows, other_rows

_OTHERS = f"<h2>What other rules would have done</h2>\n<p>{escape(RULES_LEGEND)}</p>\n"


def describe(path: str | Path) -> str:
    """Say in words what a `paretograd.Monitor` has recorded: one sentence on a line. Needs no extra.

    Args:
        path: the folder or the file that the monitor was given.
    """
    run = analyse(path)
    return "\n".join(answer(run, other_rules(run)))


def write_page(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a recording, and return its path. Needs the extra ``paretograd[report]``.

    Args:
        path: the folder or the file that the monitor was given.
        out: the page, ending in ``.html``; None for ``monitor.html`` beside the file. An existing one is replaced.
    """
    run = analyse(path)
    return write(run, other_rules(run), page_of(path, out), str(path))


def page_of(path: str | Path, out: str | Path | None) -> Path:
    """Return the path of the page, validated."""
    target = file_of(path).with_suffix(".html") if out is None else Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ParameterError(f"a page ends in .html; got {target}")
    return target


def write(run: Run, others: Sequence[Other], target: Path, name: str) -> Path:
    """Write the page of an analysed recording."""
    text = page(run, others, name)
    with replacing(target) as file:
        file.write(text.encode())
    return target


def page(run: Run, others: Sequence[Other], name: str) -> str:
    """Return the page as HTML. User input (the names of the losses and of the run) is escaped."""
    library, script = plotly_js(), asset("paretograd.reports.watch", "watch.js")
    found, looks = panels(run, others), curves(run.labels)
    size, *sentences = answer(run, others)
    by_lines = run.m <= MOST_LINES
    return Template(asset("paretograd.reports.watch", "watch.html")).substitute(
        policy=policy([library, script]),
        title=escape(name),
        style=asset("paretograd.reports.study", "page.css"),
        size=escape(size),
        answer="\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences),
        size_class="few" if by_lines else "many",
        losses=_boxes(looks) if by_lines else "",
        panels="\n".join(
            f'<figure class="panel"><figcaption><h3>{escape(panel.title)}</h3><p>{escape(panel.text)}</p></figcaption>'
            f'<div class="plot" id="plot-{number}" style="height: {panel.height}px"></div></figure>'
            for number, panel in enumerate(found)
        ),
        legend=escape(loss_legend(run)),
        table=methods_table(loss_rows(run), looks if by_lines else {}),
        others=_OTHERS + methods_table(other_rows(others, run.labels), {}) if others else "",
        details=details_list(_details(run)),
        library=library,
        payload=payload(found, run.labels),
        script=script,
    )


def _boxes(looks: Mapping[str, Curve]) -> str:
    labels = "\n".join(
        f'<label><input type="checkbox" name="loss" value="{k}" checked>{swatch(look)}{escape(label)}</label>'
        for k, (label, look) in enumerate(looks.items())
    )
    return f"<fieldset><legend>Losses</legend>\n{labels}\n</fieldset>"


def _details(run: Run) -> dict[str, str]:
    return {
        "rules": ", ".join(run.rules),
        "losses": ", ".join(run.labels),
        "records": f"{len(run.steps):,} of the steps {run.steps[0]:,} to {run.steps[-1]:,}",
        "a conflict": "a negative slope that rounding cannot explain, as in a certificate; two gradients conflict if "
        "their cosine is below -1e-6",
    }
