"""``write_fairness``: figures and page of a fairness study, written to its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paretograd.experiments.fairness import FairnessResults
from paretograd.experiments.fairness.paper import FIGURES
from paretograd.experiments.fairness.words import for_page, notes
from paretograd.reports.fairness.content import compose, part, thinned
from paretograd.reports.fairness.tradeoff import tradeoff
from paretograd.reports.study.content import Content
from paretograd.reports.study.figures import dynamics, rendered
from paretograd.reports.study.page import page
from paretograd.reports.study.write import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUMMARY = (
    "A classifier of three hidden layers says {question}. It is trained on three objectives at once, from several "
    "initialisations: the cross entropy, and two gaps between {groups}. Every method turns the three gradients into "
    "one direction, and takes a step along it, again and again."
)
_ADULT = {
    "question": "who of the people of a census earns more than 50,000 dollars a year",
    "groups": "men and women",
}
_OWN = {"question": "0 or 1 for each row of your own data", "groups": "two groups of rows"}


def write_fairness(results: FairnessResults, details: Mapping[str, str]) -> list[Path]:
    """Write ``figures/*.png``, ``figures/*.svg`` and ``report.html``; return their paths, the report last.

    Everything is drawn before anything is written, and each file is written whole or not at all. Methods that are not
    done are left out.

    Args:
        results: of `run_fairness` or `read_results`.
        details: the configuration, as the report shows it.
    """
    content, rows = compose(results), results.rows

    def figures() -> dict[str, Figure]:
        seed = results.study.shown_seed
        chosen = {name.format(seed=seed): part(content, labels) for name, labels in FIGURES.items()}
        drawn = {name: dynamics(some) for name, some in chosen.items() if _has_runs(some)}
        return {**drawn, "tradeoff": tradeoff(rows, content.methods)}

    opening = _SUMMARY.format(**(_OWN if results.study.own_data else _ADULT))
    summary = " ".join([opening, *notes(results.study, rows, results.methods)])
    text = page(thinned(content), summary, None, [], for_page(rows), details)
    return write_files(results.folder, rendered(figures), text)


def _has_runs(content: Content) -> bool:
    return bool(content.shown)
