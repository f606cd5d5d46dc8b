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
    from matplotlib.figure import Figure

#: Rules whose curves are drawn: the baselines, and the best of the others.
_CURVES = 7
#: So many of the best rules have their names beside their points, and the baselines.
_NAMED = 15
#: Points beyond this distance from the best are cut off.
_REACH = 30.0


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
    best = min((row.mean_delta for row in rows), default=0.0)
    shown = [row for row in rows if row.mean_delta <= best + _REACH]
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
        if special or row in shown[:_NAMED]:
            axes.annotate(report.label(row.rule), (x, row.mean_delta), (4, 3), textcoords="offset points", fontsize=7.5)
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.set_xlabel(f"time of a step in ms, {report.device}")
    axes.set_ylabel("Δm, %  (lower is better)")
    left = len(rows) - len(shown)
    cut = f"; {left} rules are more than {_REACH:g} points worse and not shown" if left else ""
    axes.set_title(f"{report.task.title}: quality against time{cut}", fontsize=10.5)
    return figure


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
        left.plot(found.steps, 100.0 * np.nanmean(found.conflicts, axis=1), **line)
        right.plot(found.steps, np.nanmean(found.gamma, axis=1), **line)
    left.set_ylabel("losses of the batch that the direction raises, %")
    right.set_ylabel("gamma / length of the longest gradient")
    for axes in (left, right):
        axes.set_xlabel("step")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        f"{report.task.title}: conflicts and distance from Pareto stationarity, mean over seeds", fontsize=11
    )
    return figure
