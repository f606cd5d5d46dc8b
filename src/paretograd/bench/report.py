"""Tables of the benchmark: one for each task, one over all, and every run as plain numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paretograd.bench.cost import Cost, read_costs
from paretograd.bench.folder import Outcome, TaskFolder
from paretograd.bench.networks import OPTIMIZERS
from paretograd.bench.protocol import Protocol, Setting
from paretograd.bench.roster import MEAN, RULES, TUNED, label_of, objective_of
from paretograd.bench.statistics import ALPHA, Row, against, better, overall, reference, rows_of
from paretograd.bench.task import Task
from paretograd.bench.tasks import TASKS, task_of
from paretograd.errors import InputError, ParetogradError
from paretograd.experiments.folder import markdown_table, write_text

#: A table has a column for each metric of a task with at most this many.
_METRICS = 4


class TaskReport(NamedTuple):
    """The results of a task.

    Attributes:
        task: what was trained.
        protocol: how.
        outcomes: by setting.
        rows: the table, with the optimizer that validation rows prefer.
        device: where the costs were measured; empty if they were not.
        costs: by rule.
    """

    task: Task
    protocol: Protocol
    outcomes: dict[Setting, Outcome]
    rows: list[Row]
    device: str
    costs: dict[str, Cost]

    @property
    def missing(self) -> list[str]:
        """The rules that were not run."""
        return [name for name in RULES if name not in {row.rule for row in self.rows}]

    def label(self, name: str) -> str:
        """Return the name of a rule in tables; a user's rule that cannot be imported here keeps its own."""
        try:
            return label_of(name, len(self.task.objectives))
        except ParetogradError:
            return name


def read_reports(folder: str | Path, optimizer: str | None = None) -> list[TaskReport]:
    """Read all tasks of a folder.

    Args:
        folder: of the benchmark, or of one task.
        optimizer: only settings with this one; None takes the better one on validation rows.
    """
    order = [*TASKS]
    found = [_read(place, optimizer) for place in task_folders(folder)]
    return sorted(found, key=lambda one: order.index(one.task.name) if one.task.name in order else len(order))


def task_folders(folder: str | Path) -> list[TaskFolder]:
    """Return the tasks in a folder of the benchmark, or the one whose folder it is."""
    path = Path(folder)
    places = [path] if (path / "config.json").exists() else sorted(entry.parent for entry in path.glob("*/config.json"))
    if not places:
        raise InputError(f"{path} has no results of a benchmark; `paretograd bench run` makes them")
    return [TaskFolder(place) for place in places]


def _read(place: TaskFolder, optimizer: str | None) -> TaskReport:
    protocol = place.protocol()
    task = task_of(protocol.task, small=protocol.small)
    outcomes = {
        setting: outcome for setting, outcome in place.outcomes().items() if optimizer in (None, setting.optimizer)
    }
    return TaskReport(task, protocol, outcomes, rows_of(task, outcomes), *read_costs(place.path))


def task_table(report: TaskReport) -> list[dict[str, str]]:
    """Return the table of a task as texts by heading."""
    task = report.task
    single_metrics = len(task.metrics) <= _METRICS
    headings = [f"{metric.name} {metric.unit}".strip() for metric in task.metrics]
    table = []
    for row in (row for row in report.rows if row.trained):
        cost = report.costs.get(row.rule)
        shown = {"rule": report.label(row.rule), "optimizer": row.optimizer}
        if single_metrics:
            shown |= {heading: _spread(row.test[:, k]) for k, heading in enumerate(headings)}
        else:
            shown[f"mean of {len(headings)} metrics"] = _spread(row.test.mean(axis=1))
        shown["Δm %"] = _number(row.mean_delta)
        shown["95% interval"] = _interval(row.interval)
        shown["p"] = _p(row.p)
        shown["mean rank"] = f"{row.rank:.1f}"
        if report.costs:
            shown["ms a step"] = "" if cost is None else f"{cost.milliseconds:.2f}"
        if any(one.mebibytes is not None for one in report.costs.values()):
            shown["MiB"] = "" if cost is None or cost.mebibytes is None else f"{cost.mebibytes:.0f}"
        table.append(shown)
    return table


def comparable(reports: Sequence[TaskReport]) -> list[TaskReport]:
    """Return the tasks for the table over all: those where all rules were run and can read losses, if there are two."""
    whole = [report for report in reports if report.task.positive and not report.missing]
    return whole if len(whole) > 1 else list(reports)


def overall_table(reports: Sequence[TaskReport]) -> list[dict[str, str]]:
    """Return the table over all tasks as texts by heading."""
    return [
        {
            "rule": reports[0].label(row.rule),
            "mean rank": f"{row.rank:.1f}",
            "mean Δm %": _number(row.delta),
            "better": str(row.better),
            "worse": str(row.worse),
            "tasks": str(row.tasks),
            "p": _p(row.p),
        }
        for row in overall({report.task.name: report.rows for report in comparable(reports)})
    ]


def overall_notes(reports: Sequence[TaskReport]) -> list[str]:
    """Return what a reader must know of the table over all tasks, as sentences."""
    among = comparable(reports)
    told = [f"Tasks: {', '.join(report.task.title for report in among)}."]
    left = [report for report in reports if report not in among]
    part = [report.task.title for report in left if report.missing]
    unread = [report.task.title for report in left if not report.missing]
    if part:
        told.append(f"Not all rules were run on {', '.join(part)}.")
    if unread:
        told.append(f"Rules that read losses cannot be used on {', '.join(unread)}.")
    least = 2.0 ** (1 - len(among))
    if least > ALPHA:
        told.append(f"With {len(among)} tasks, p over tasks is at least {least:.3f}: it cannot tell rules apart.")
    return told


def notes(report: TaskReport) -> list[str]:
    """Return what a reader must know of a task's table, as sentences."""
    task, protocol = report.task, report.protocol
    steps = task.steps if protocol.steps is None else protocol.steps
    told = [
        f"{protocol.trials} trials for each rule and optimizer, {protocol.seeds} networks with the chosen one, "
        f"{steps:,} steps of {task.batch_size} rows."
    ]
    if protocol.made or protocol.small:
        kind = " and ".join(word for word, has in (("small", protocol.small), ("invented data", protocol.made)) if has)
        told.append(f"This is a trial run ({kind}): its numbers say nothing about the rules.")
    base = reference(task, better(report.outcomes))
    if base is None:
        told.append("There is no Δm, since the networks that it refers to were not trained.")
    else:
        kind = "single-task networks" if task.single else "the tuned mean"
        values = ", ".join(
            f"{metric.name} {value:.2f}{'' if metric.unit == '%' else ' '}{metric.unit}".strip()
            for metric, value in zip(task.metrics, base.mean(axis=0), strict=True)
        )
        told.append(f"Δm refers to {kind}: {values}." if len(task.metrics) <= _METRICS else f"Δm refers to {kind}.")
    told += _edges(report)
    stopped = [f"{report.label(row.rule)} ({row.why})" for row in report.rows if row.why and row.trained]
    if stopped:
        told.append(f"Without a complete result: {'; '.join(stopped)}.")
    told += [f"Cannot be used here: {', '.join(names)} ({reason})." for reason, names in _unusable(report).items()]
    if report.missing:
        told.append(f"Not run: {', '.join(report.label(name) for name in report.missing)}.")
    if report.device:
        told.append(f"Costs of a step were measured on {report.device}.")
    return told


def _edges(report: TaskReport) -> list[str]:
    """Return how often the search chose its lowest or its highest learning rate, a sentence for each optimizer."""
    told = []
    for optimizer in OPTIMIZERS:
        places = []
        for setting, outcome in report.outcomes.items():
            best, trials = outcome.tuning.best, outcome.tuning.trials
            if setting.optimizer == optimizer and objective_of(setting.rule) is None and best is not None:
                rates = sorted(trial.rate for trial in trials)
                places.append((rates.index(trials[best].rate), len(rates)))
        if places:
            low, high = sum(place == 0 for place, _ in places), sum(place == count - 1 for place, count in places)
            told.append(
                f"{optimizer}: of {len(places)} rules, {low} chose the lowest learning rate that was tried, and {high} "
                "the highest."
            )
    return told


def _unusable(report: TaskReport) -> dict[str, list[str]]:
    """Return the rules that cannot be used on a task, by reason. Reasons may begin with the name of a class."""
    found: dict[str, list[str]] = {}
    for row in report.rows:
        if not row.trained:
            first, _, rest = row.why.partition(" ")
            reason = rest if first.isidentifier() else row.why
            found.setdefault(reason, []).append(report.label(row.rule))
    return found


def findings(reports: Sequence[TaskReport]) -> list[str]:
    """Return what the tables show, as sentences: which rules beat the tuned mean, where, and at what price."""
    told = []
    for report in reports:
        if TUNED not in {row.rule for row in report.rows}:
            continue
        up, lost, tested = _clear(report, TUNED)
        words = ", ".join(f"{report.label(row.rule)} ({change:+.2f}{_price(report, row)})" for row, change in up)
        said = (
            f"{report.task.title}: {len(up)} of {tested} rules with a result beat the tuned mean"
            + (f": {words}" if up else "")
            + f"; {len(lost)} are beaten by it, and the others cannot be told apart from it."
        )
        up, lost, tested = _clear(report, MEAN)
        if tested:
            words = ", ".join(report.label(row.rule) for row, _ in up)
            said += f" Equal weights are beaten by {len(up)}{f' ({words})' if up else ''}, and beat {len(lost)}."
        told.append(said)
    return told


def _clear(report: TaskReport, name: str) -> tuple[list[tuple[Row, float]], list[tuple[Row, float]], int]:
    """Return the rules that are better than one of them, those that are worse, and the number of those compared.

    Each has its difference of Delta m.
    """
    found = against({row.rule: row.delta for row in report.rows}, name)
    p = {rule: value for rule, value in found.items() if math.isfinite(value)}
    base = next((row.mean_delta for row in report.rows if row.rule == name), math.nan)
    clear = [(row, row.mean_delta - base) for row in report.rows if p.get(row.rule, 1.0) < ALPHA]
    return [pair for pair in clear if pair[1] < 0.0], [pair for pair in clear if pair[1] > 0.0], len(p)


def _price(report: TaskReport, row: Row) -> str:
    """Return the time of a step relative to the tuned mean, if it was measured."""
    mine, base = report.costs.get(row.rule), report.costs.get(TUNED)
    return f" points of Δm at {mine.milliseconds / base.milliseconds:.1f} times the time" if mine and base else ""


def write_report(folder: str | Path, reports: Sequence[TaskReport]) -> Path:
    """Write ``report.md``, and ``runs.csv`` with every trained network; returns the path of the former."""
    path = Path(folder)
    lines = ["# The referee", "", *markdown(reports)]
    write_text(path / "runs.csv", _csv(reports).splitlines())
    return write_text(path / "report.md", lines)


def markdown(reports: Sequence[TaskReport], level: int = 2) -> list[str]:
    """Return all tables and notes as lines of Markdown.

    Args:
        reports: of the tasks.
        level: of the headings.
    """
    lines = []
    if len(reports) > 1:
        lines += ["#" * level + " All tasks", "", *overall_notes(reports), "", *_markdown(overall_table(reports)), ""]
    lines += [f"- {told}" for told in findings(reports)]
    for report in reports:
        lines += ["", "#" * level + f" {report.task.title}", "", *notes(report), "", *_markdown(task_table(report))]
    return lines


def _csv(reports: Sequence[TaskReport]) -> str:
    """Return one line for each trained network: its place in the protocol, and its metrics."""
    buffer = io.StringIO()
    heads = ["task", "rule", "optimizer", "stage", "trial", "rate", "seed", "part", "metric", "value", "stopped"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    for report in reports:
        for setting, outcome in report.outcomes.items():
            for line in _runs(report, setting, outcome):
                writer.writerow([report.task.name, setting.rule, setting.optimizer, *line])
    return buffer.getvalue()


def _runs(report: TaskReport, setting: Setting, outcome: Outcome) -> list[list[object]]:
    lines: list[list[object]] = []
    names = [metric.name for metric in report.task.metrics]
    for trial, scores, reason in zip(outcome.tuning.trials, outcome.tuning.scores, outcome.tuning.reasons, strict=True):
        head = ["search", trial.rule, f"{trial.rate:g}", trial.seed, "validation"]
        lines += [[*head, name, _digits(value), reason] for name, value in zip(names, scores, strict=True)]
    best = outcome.tuning.best
    if best is None:
        return lines
    for trial, validation, test, reason in zip(
        report.protocol.finals(outcome.tuning.trials[best]),
        outcome.validation,
        outcome.test,
        outcome.reasons,
        strict=True,
    ):
        for part, scores in (("validation", validation), ("test", test)):
            head = ["report", trial.rule, f"{trial.rate:g}", trial.seed, part]
            lines += [[*head, name, _digits(value), reason] for name, value in zip(names, scores, strict=True)]
    return lines


def _digits(value: float) -> str:
    return f"{value:.6g}"


def _markdown(table: Sequence[Mapping[str, str]]) -> list[str]:
    return [*markdown_table(table, ("rule", "optimizer"))] if table else ["No results yet."]


def _spread(values: np.ndarray) -> str:
    if not np.isfinite(values).all():
        return "stopped"
    return f"{values.mean():.2f} ± {values.std(ddof=1) if len(values) > 1 else 0.0:.2f}"


def _number(value: float) -> str:
    return f"{value:+.2f}" if math.isfinite(value) else ""


def _interval(ends: tuple[float, float]) -> str:
    return "" if not all(map(math.isfinite, ends)) else f"{ends[0]:+.2f} to {ends[1]:+.2f}"


def _p(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
