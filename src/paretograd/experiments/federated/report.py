"""Figures and page of a federated study. Drawing needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paretograd.errors import ParameterError
from paretograd.experiments.federated import table
from paretograd.experiments.federated.figures import (
    cap_against_clip,
    capped_results,
    final_accuracy,
    looks,
    multiple_caps,
    noise_sweep,
)
from paretograd.experiments.federated.run import FederatedResults, read_results, run_federated
from paretograd.experiments.federated.study import FederatedStudy, Run, label_of, read_study
from paretograd.experiments.federated.training import FederatedFolder, RunResult
from paretograd.experiments.study import TRAINING, Kind, Option, Summary, options_of
from paretograd.geometry.gramian import Array
from paretograd.reports.study.content import Content, Curve, Quantity
from paretograd.reports.study.content import Run as Drawn
from paretograd.reports.study.figures import rendered
from paretograd.reports.study.page import page, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = (
    Quantity(
        "accuracy",
        "mean test accuracy of the clients",
        "Accuracy",
        "The share of test images that the network classifies right, each client with images of its own classes, and "
        "the mean over the clients: higher is better.",
    ),
    Quantity(
        "loss",
        "mean loss of the clients",
        "Loss",
        "Cross entropy on the training images, the mean over the honest clients: lower is better.",
    ),
    Quantity(
        "|d|",
        "length of the direction",
        "Length of the step",
        "The length of the direction that the rule makes of all updates. Where an attacker's update nearly cancels a "
        "client's, the shortest combination of all updates is short, and MGDA hardly moves.",
    ),
    Quantity(
        "min d·g",
        "least inner product with an honest gradient",
        "Conflict with the honest clients",
        "The least inner product of the direction with the gradient of an honest client. Below 0, the loss of that "
        "client goes up to first order.",
    ),
)
_SUMMARY = (
    "Ten clients, each with images of its own and of some classes more than of others, train one network. In every "
    "epoch each client sends the gradient of its loss, a rule makes one direction of all, and the network moves along "
    "it. Under attack one more client sends the gradient of another with the opposite sign, and some noise."
)
#: Figures by name; the paper's names if it has the figure.
_FIGURES = {
    "capped_mgda_results": capped_results,
    "cap_vs_clip": cap_against_clip,
    "avg_acc_multiC": multiple_caps,
    "noise_sweep": noise_sweep,
    "final_accuracy": final_accuracy,
}
#: Width of a terminal that has room for all columns.
_WIDE = 110
#: Columns that are omitted in a narrow terminal.
_MORE = ("under attack, all test images", "ours less the paper's")
_SMALL = Option("A few minutes on two cores, with the same ordering.", type=bool)


def compose(results: FederatedResults) -> Content:
    """Collect the rules under the study's attack and without one; those without are dotted."""
    if not results.runs:
        raise ParameterError(f"no run of the study in {results.folder} is done; a report needs at least one")
    study, known = results.study, looks()
    chosen = [case for case in study.cases() if case.setting == study.attack or not case.setting.attacked]
    chosen = [case for case in chosen if results.seeds_of(case)] or [next(iter(results.runs)).case]
    methods = {}
    for case in chosen:
        look = known[label_of(case.rule)]
        clean = Curve(look.colour, look.on_dark, "dot", look.symbol)
        methods[case.label] = look if case.setting.attacked else clean
    runs = [_drawn(run, found) for run, found in results.runs.items() if run.case in chosen]
    seeds = tuple(seed for seed in study.seeds if any(run.seed == seed for run in runs))
    return Content(
        title=table.TITLE,
        problem="CIFAR-10",
        lr=f"{study.lr:g}",
        m=len(QUANTITIES),
        methods=methods,
        seeds=seeds,
        runs=tuple(runs),
        front=np.empty((0, len(QUANTITIES))),
        stop_gamma=None,
        quantities=QUANTITIES,
    )


def _drawn(run: Run, found: RunResult) -> Drawn:
    """Return a run at its evaluations; the last point shows the last step taken."""
    accuracy = found.accuracies.mean(axis=1, dtype=np.float64)
    columns = [accuracy, *(_at(found, name) for name in ("losses", "norms", "slopes"))]
    return Drawn(run.case.label, run.seed, found.looks.astype(np.int64), np.stack(columns, axis=1), _at(found, "gamma"))


def _at(found: RunResult, name: str) -> Array:
    """Return a record at the evaluated epochs, or at the last one before."""
    values = np.asarray(getattr(found, name), dtype=np.float64)
    if not len(values):
        return np.full(len(found.looks), np.nan)
    return np.asarray(values[np.searchsorted(found.epochs, found.looks, side="right").clip(1) - 1])


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

    summary = " ".join([_SUMMARY, table.heading(results.study), *table.remarks(results.study, results.runs)])
    drawn = [row for row in table.for_page(rows) if row["method"] in content.methods]
    claims = enumerate(table.claims(results.study, rows), start=1)
    shown = {f"finding {place}": claim.sentence for place, claim in claims}
    text = page(content, summary, None, [], drawn, {**shown, **details})
    return write_files(results.folder, rendered(figures), text)


def _summary(results: FederatedResults, width: int) -> Summary:
    """A narrow terminal has no room for all columns."""
    study, found = results.study, results.rows
    return Summary(
        title=table.TITLE,
        lines=(table.setting_in_words(study), table.heading(study)),
        tables={title: [_fitting(row, width) for row in rows] for title, rows in table.tables(study, found).items()},
        legend=table.legend(study),
        remarks=table.remarks(study, results.runs),
        claims=table.claims(study, found),
    )


def _fitting(row: Mapping[str, str], width: int) -> dict[str, str]:
    return {name: text for name, text in row.items() if width >= _WIDE or name not in _MORE}


def _numbers(results: FederatedResults) -> str:
    return f"{results.folder / 'runs'} (thinned)"


def _draw(results: FederatedResults) -> list[Path]:
    place = FederatedFolder(results.folder)
    durations = place.durations().values()
    seconds = [float(found["seconds"]) for found in durations]
    each = sorted(took / found["runs"] for took, found in zip(seconds, durations, strict=True))
    took = f"{each[0]:.1f} to {each[-1]:.1f} s; all {sum(seconds) / 60:.1f} min" if seconds else ""
    details = {
        "protocol": table.setting_in_words(results.study),
        **place.provenance(),
        "a run's share of the time": took,
        "command": results.study.command(),
    }
    return write_federated(results, details)


FEDERATED = Kind(
    name="federated",
    title=table.TITLE,
    source="table adv_fl_accuracy",
    options=TRAINING | {"small": _SMALL} | options_of(FederatedStudy),
    run_options=tuple(TRAINING),
    read_study=read_study,
    run=run_federated,
    read_results=read_results,
    summary=_summary,
    numbers=_numbers,
    draw=_draw,
)
