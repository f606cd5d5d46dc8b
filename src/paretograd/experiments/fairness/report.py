"""Figures and page of a fairness study. Drawing needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.errors import ParameterError
from paretograd.experiments.fairness.result import FairnessFolder, MethodResult
from paretograd.experiments.fairness.run import FairnessResults, read_results, run_fairness
from paretograd.experiments.fairness.study import FIGURES, FairnessStudy
from paretograd.experiments.fairness.table import (
    claims,
    ends,
    for_page,
    for_people,
    heading,
    legend,
    remarks,
    setting,
    title,
)
from paretograd.experiments.study import TRAINING, Kind, Summary, options_of
from paretograd.reports.study.content import Content, Curve, Run, curves, thin
from paretograd.reports.study.figures import dynamics, rendered
from paretograd.reports.study.page import page, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("cross entropy", "gap among Y = 1", "gap among Y = 0")
_GAPS = {"deo1": "DEO1", "deo2": "DEO2"}
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
#: Width of a terminal that has room for the differences from the paper.
_WIDE = 110


def compose(results: FairnessResults) -> Content:
    """Collect all finished methods, with every recorded point. A method looks the same in every figure."""
    if not results.methods:
        raise ParameterError(f"no method of the study in {results.folder} is done; a report needs at least one")
    study = results.study
    return Content(
        title=title(study),
        problem="own data" if study.own_data else "Adult",
        lr=f"{study.lr:g}",
        m=3,
        methods=_looks(study, results.methods),
        seeds=(study.shown_seed, *(seed for seed in study.seeds if seed != study.shown_seed)),
        runs=tuple(run for found in results.methods.values() for run in _runs(found)),
        front=np.empty((0, 3)),
        stop_gamma=study.stop or None,
        names=NAMES,
    )


def part(content: Content, labels: Sequence[str]) -> Content:
    """Return the content with some of the methods."""
    return replace(
        content,
        methods={label: content.methods[label] for label in labels if label in content.methods},
        runs=tuple(run for run in content.runs if run.method in labels),
    )


def thinned(content: Content) -> Content:
    """Return the content with as many points as a page needs."""
    runs = []
    for run in content.runs:
        kept = thin(run.gamma, run.losses)
        runs.append(Run(run.method, run.seed, run.iterations[kept], run.losses[kept], run.gamma[kept]))
    return replace(content, runs=tuple(runs))


def _looks(study: FairnessStudy, methods: Mapping[str, MethodResult]) -> dict[str, Curve]:
    """Assign looks over all methods of the study, so that none changes when another method is finished."""
    return {label: look for label, look in curves(study.labels()).items() if label in methods}


def _runs(found: MethodResult) -> list[Run]:
    made = []
    for number, seed in enumerate(found.seeds):
        there = np.isfinite(found.gamma[:, number])
        losses, gamma = (values[there, number].astype(np.float64) for values in (found.losses, found.gamma))
        made.append(Run(found.label, seed, found.steps[there], losses, gamma))
    return [run for run in made if len(run.iterations)]


def tradeoff(rows: Sequence[Mapping[str, Any]], looks: Mapping[str, Curve]) -> Figure:
    """One panel for each gap: means over the seeds with deviations; a thin line leads to the paper's value.

    Args:
        rows: of the study's table.
        looks: colour and marker of each method.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.9), dpi=150, layout="constrained")
    for axes, (gap, name) in zip(figure.subplots(1, 2), _GAPS.items(), strict=True):
        for row in rows:
            _point(axes, row, gap, looks[row["method"]])
        axes.set_xlabel(f"{name} on the test rows, %  (left is fairer)")
        axes.set_ylabel("accuracy on the test rows, %  (up is better)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    crosses = any(row["accuracy_paper"] is not None for row in rows)
    figure.suptitle("Mean and deviation over the seeds" + "; crosses: the paper's means" * crosses, fontsize=11)
    return figure


def _point(axes: Any, row: Mapping[str, Any], gap: str, look: Curve) -> None:
    here = (row[f"{gap}_mean"], row["accuracy_mean"])
    there = (row[f"{gap}_paper"], row["accuracy_paper"])
    if there[0] is not None:
        axes.plot(*zip(here, there, strict=True), color=look.colour, linewidth=0.8, zorder=1)
        axes.plot(*there, marker="x", color=look.colour, markersize=6, linestyle="none", zorder=2)
    axes.errorbar(
        *here,
        xerr=row[f"{gap}_std"],
        yerr=row["accuracy_std"],
        color=look.colour,
        marker=look.symbol,
        markersize=7.5,
        markerfacecolor=look.colour if look.dash == "solid" else "white",
        linestyle="none",
        elinewidth=1.0,
        label=row["method"],
        zorder=3,
    )


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
    found = [claim.sentence for claim in claims(results.study, rows)]
    summary = " ".join([opening, *remarks(results.study, results.methods), *found])
    text = page(thinned(content), summary, None, [], for_page(rows), details)
    return write_files(results.folder, rendered(figures), text)


def _has_runs(content: Content) -> bool:
    return bool(content.shown)


def _summary(results: FairnessResults, width: int) -> Summary:
    """A narrow terminal has no room for the differences from the paper."""
    study, found, wide = results.study, results.rows, width >= _WIDE
    differences = "In brackets: the difference from the paper." if wide else "table.md has the paper's values, too."
    return Summary(
        title=title(study),
        lines=(setting(study), f"{heading(study)} {differences}"),
        tables={"": [_compact(row, wide) for row in for_people(found)]},
        legend=legend(study),
        remarks=remarks(study, results.methods),
        claims=claims(study, found),
    )


def _compact(row: Mapping[str, str], wide: bool) -> dict[str, str]:
    """One column for each measure, so that the table fits a terminal."""
    shown = {"method": row["method"]}
    for name in ("accuracy", "DEO1", "DEO2"):
        difference = row.get(f"{name} difference", "")
        shown[name] = row[name] + f" ({difference})" * (wide and bool(difference))
    return shown | {"steps": row["steps"], "ended by": row["ended by"]}


def _numbers(results: FairnessResults) -> str:
    folder = results.folder
    return f"{folder / 'methods'} (thinned), {folder / 'checkpoints'} (trained classifiers)"


def _draw(results: FairnessResults) -> list[Path]:
    study, place = results.study, FairnessFolder(results.folder)
    speeds = [f"{label} {took['ms_per_step']:.2f} ms ({took['device']})" for label, took in place.durations().items()]
    details = {
        "protocol": setting(study),
        "a run ends at the first of": ends(study),
        **place.provenance(),
        "a step of all seeds took": ", ".join(speeds),
        "command": study.command(),
    }
    return write_fairness(results, details)


FAIRNESS = Kind(
    name="fairness",
    title="Fair classification on Adult",
    source="table fairness_table",
    options=TRAINING | options_of(FairnessStudy),
    run_options=tuple(TRAINING),
    read_study=FairnessStudy.from_options,
    run=run_fairness,
    read_results=read_results,
    summary=_summary,
    numbers=_numbers,
    draw=_draw,
)
