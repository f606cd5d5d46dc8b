"""Figures of the benchmark: critical differences, accuracy against the time of a step, and curves of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.bench.report import TaskReport, comparable
from paretograd.bench.roster import MEAN, TUNED
from paretograd.bench.statistics import better, critical_difference, ranks_by_task
from paretograd.disk import replacing
from paretograd.reports.palette import COLOURS
from paretograd.reports.study.content import curves
from paretograd.reports.study.figures import DPI, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

#: Rules whose curves are drawn: the baselines, and the best of the others.
_CURVES = 7
#: So many of the best rules have their names beside their points, and the baselines.
_NAMED = 15
#: Rules that lie further behind the best than this multiple of the distance of the upper quartile are not shown.
_REACH = 3.0


def draw(folder: Path, reports: Sequence[TaskReport]) -> list[Path]:
    """Draw all figures that the results allow into ``figures``; returns their paths."""

    def made() -> dict[str, Figure]:
        figures = {}
        among = comparable(reports)
        if len(among) > 1 and len(ranks_by_task({one.task.name: one.rows for one in among})) > 1:
            figures["critical-difference"] = ranks(among)
        for report in reports:
            if report.costs and any(math.isfinite(row.mean_delta) for row in report.rows):
                figures[f"{report.task.name}-time"] = time_and_quality(report)
            if any(len(outcome.curves.steps) for outcome in report.outcomes.values()):
                figures[f"{report.task.name}-curves"] = training(report)
        return figures

    paths = []
    for name, data in rendered(made).items():
        paths.append(folder / "figures" / name)
        with replacing(paths[-1]) as file:
            file.write(data)
    return paths


def ranks(reports: Sequence[TaskReport]) -> Figure:
    """Draw the mean rank of each rule over the tasks, and the distance below which rules are not told apart."""
    from matplotlib.figure import Figure

    found = ranks_by_task({report.task.name: report.rows for report in reports})
    order = sorted(found, key=lambda name: float(np.mean(found[name])))
    means = [float(np.mean(found[name])) for name in order]
    figure = Figure(figsize=(8.0, 0.21 * len(order) + 1.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    distance = critical_difference(len(order), len(reports))
    axes.axvspan(means[0], means[0] + distance, color="0.93", zorder=0)
    for place, (name, mean) in enumerate(zip(order, means, strict=True)):
        special = name in (MEAN, TUNED)
        colour = COLOURS[1] if special else COLOURS[0]
        axes.plot(found[name], [place] * len(found[name]), ".", color="0.7", markersize=4, zorder=1)
        axes.plot(mean, place, "D" if special else "o", color=colour, markersize=6, zorder=2)
    axes.set_yticks(range(len(order)), [reports[0].label(name) for name in order], fontsize=8.5)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlabel(f"rank by Δm on {len(reports)} tasks (1 is best): each task, and the mean")
    axes.set_title(
        f"Mean ranks; grey: within Nemenyi's critical difference ({distance:.1f}) of the best", fontsize=10.5
    )
    return figure


def time_and_quality(report: TaskReport) -> Figure:
    """Draw Delta m against the time of a step, with a name at each point."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    rows = [row for row in report.rows if math.isfinite(row.mean_delta) and row.rule in report.costs]
    deltas = [row.mean_delta for row in rows]
    reach = _REACH * (np.quantile(deltas, 0.75) - min(deltas)) if rows else 0.0
    shown = [row for row in rows if row.rule in (MEAN, TUNED) or row.mean_delta <= min(deltas) + reach]
    figure = Figure(figsize=(8.6, 6.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for row in shown:
        x, special = report.costs[row.rule].milliseconds, row.rule in (MEAN, TUNED)
        low, high = row.interval
        error = [[row.mean_delta - low], [high - row.mean_delta]] if math.isfinite(low) else None
        colour = COLOURS[1] if special else COLOURS[0]
        axes.errorbar(
            x, row.mean_delta, yerr=error, color=colour, marker="D" if special else "o", markersize=5, elinewidth=0.7
        )
    axes.set_xscale("log")
    axes.tick_params(axis="x", which="both", length=3.0, pad=3.5)
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.set_xlabel(f"time of a step in ms, {report.device}")
    axes.set_ylabel("Δm, %  (lower is better)")
    left = len(rows) - len(shown)
    cut = f"; {left} rules are more than {reach:.1f} points worse than the best, and not shown" if left else ""
    axes.set_title(f"{report.task.title}: quality against time{cut}", fontsize=10.5)
    baselines = [row for row in shown if row.rule in (MEAN, TUNED)]
    places = [(report.costs[row.rule].milliseconds, row.mean_delta) for row in (*baselines, *shown[:_NAMED])]
    _name(axes, places, [report.label(row.rule) for row in (*baselines, *shown[:_NAMED])])
    return figure


def _name(axes: Axes, places: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write names beside points. A name that would cover another is left out; the first has the right of way."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # settles the layout
    taken: list[Bbox] = []
    for place, name in zip(places, names, strict=True):
        text = axes.annotate(name, place, (4, 3), textcoords="offset points", fontsize=7.5)
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)


def training(report: TaskReport) -> Figure:
    """Draw conflicts and gamma over the steps, for the baselines and the best rules."""
    from matplotlib.figure import Figure

    chosen = better(report.outcomes)
    ranked = [row.rule for row in report.rows if not row.why and len(chosen[row.rule][1].curves.steps)]
    names = [name for name in (MEAN, TUNED, "mgda", "upgrad") if name in ranked]
    names += [name for name in ranked if name not in names][: _CURVES - len(names)]
    looks = curves([report.label(name) for name in names])
    figure = Figure(figsize=(10.4, 4.4), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in names:
        found, label = chosen[name][1].curves, report.label(name)
        line: dict[str, Any] = {"color": looks[label].colour, "linewidth": 1.5, "label": label}
        left.plot(found.steps, 100.0 * _mean(found.conflicts), **line)
        right.plot(found.steps, _mean(found.gamma), **line)
    left.set_ylim(0.0, max(1.0, left.get_ylim()[1]))
    left.set_ylabel("losses of the batch that the direction raises, %")
    right.set_ylabel("gamma / length of the longest gradient")
    for axes in (left, right):
        axes.set_xlabel("step")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        f"{report.task.title}: conflicts and distance from Pareto stationarity, mean over seeds", fontsize=11
    )
    return figure


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over networks of what was measured; NaN where nothing was."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    mean: np.ndarray = np.where(known, values, 0.0).sum(axis=1) / np.where(count, count, np.nan)
    return mean
