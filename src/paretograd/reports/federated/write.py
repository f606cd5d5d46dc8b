"""``write_federated``: figures and page of a federated study, written to its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paretograd.experiments.federated import FederatedResults, words
from paretograd.reports.federated.content import compose
from paretograd.reports.federated.ends import final_accuracy, noise_sweep
from paretograd.reports.federated.figures import cap_against_clip, capped_results, multiple_caps
from paretograd.reports.federated.looks import looks
from paretograd.reports.study.figures import rendered
from paretograd.reports.study.page import page
from paretograd.reports.study.write import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUMMARY = (
    "Ten clients, each with images of its own and of some classes more than of others, train one network. In every "
    "epoch each client sends the gradient of its loss, a rule makes one direction of all, and the network moves along "
    "it. Under attack one more client sends the gradient of another with the opposite sign, and some noise."
)
#: By the names of the paper's figures, where it has them.
_FIGURES = {
    "capped_mgda_results": capped_results,
    "cap_vs_clip": cap_against_clip,
    "avg_acc_multiC": multiple_caps,
    "noise_sweep": noise_sweep,
    "final_accuracy": final_accuracy,
}


def write_federated(results: FederatedResults, details: Mapping[str, str]) -> list[Path]:
    """Write ``figures/*.png``, ``figures/*.svg`` and ``report.html``; return their paths, the report last.

    Everything is drawn before anything is written, and each file is written whole or not at all. Runs that are not
    done are left out, and so are figures that would show less than two rules.

    Args:
        results: of `run_federated` or `read_results`.
        details: the configuration, as the report shows it.
    """
    content, rows, known = compose(results), results.rows, looks()

    def figures() -> dict[str, Figure]:
        drawn = {name: draw(results, known) for name, draw in _FIGURES.items()}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    summary = " ".join([_SUMMARY, words.heading(results.study), *words.remarks(results.study, results.runs)])
    drawn = [row for row in words.for_page(rows) if row["method"] in content.methods]
    shown = {f"finding {place}": text for place, text in enumerate(words.judged(results.study, rows), start=1)}
    text = page(content, summary, None, [], drawn, {**shown, **details})
    return write_files(results.folder, rendered(figures), text)
