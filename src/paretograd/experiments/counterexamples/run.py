"""Running the counter-examples, and the table: the first direction of each rule, and what its run makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paretograd.descent.trajectory import Trajectory
from paretograd.errors import InputError
from paretograd.experiments.counterexamples.study import Case, CounterexampleStudy, examples
from paretograd.experiments.folder import Folder
from paretograd.experiments.progress import Watch
from paretograd.experiments.study import Claim, Method, Summary
from paretograd.experiments.work import checked_interval, run_descent

TITLE = "The paper's counter-examples"
#: Rules that a theorem of the paper covers on every example.
_COVERED = ("PCGrad+", "UPGrad", "MGDA")
#: Width of a terminal that has room for all columns.
_WIDE = 90


class CounterexampleFolder(Folder[Trajectory]):
    """The folder of the study: one trajectory for each run."""

    results = "trajectories"

    def _read(self, path: Path, label: str, study: CounterexampleStudy) -> Trajectory:
        found = Trajectory.load(path)
        case = next(case for case in study.cases() if case.label == label)
        wanted = (Method(case.rule).aggregator().label, case.example.problem.name)
        if (found.aggregator, found.problem) != wanted:
            raise InputError(f"{path} is of another study: {found!r}")
        return found


@dataclass(frozen=True)
class CounterexampleResults:
    """Results of a study, finished or not.

    Attributes:
        study: what was run.
        folder: where it lies.
        runs: those that are done.
    """

    study: CounterexampleStudy
    folder: Path
    runs: dict[Case, Trajectory]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one dictionary of plain values for each run."""
        return [_row(case, found) for case, found in self.runs.items()]


def run_counterexamples(
    study: CounterexampleStudy,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 5.0,
    watch: Watch | None = None,
) -> CounterexampleResults:
    """Run every rule on every example, and write trajectories and table.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        resume: go on with what is there. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: seconds of work between two checkpoints.
        watch: is told what happens.
    """
    every, told = checked_interval(checkpoint_every), watch or Watch()
    place = CounterexampleFolder(folder)
    with place.at_work(study, lambda: None, told, resume, overwrite) as (_, interrupt):
        cases = study.cases()
        for number, job, left in place.each(study.jobs(), study.steps, told, interrupt):
            if left:
                descent, checkpoint = study.descent(cases[number]), place.checkpoint(job.file)
                found = run_descent(descent, job.label, checkpoint, every, told, interrupt)
                found.save(place.result(job.file))
        place.tidy()
        results = read_results(place.path)
        shown = summary(results)
        place.write_tables(study, results.rows, shown.title, shown.lines[-1], shown.tables, shown.sentences)
    return results


def read_results(folder: str | Path) -> CounterexampleResults:
    """Read a study from its folder, with the finished runs. Nothing is run."""
    place = CounterexampleFolder(folder)
    study = CounterexampleStudy.from_plain(place.plain_study())
    named = zip(study.cases(), study.files(), strict=True)
    done = {case: place.load(name, case.label, study) for case, name in named if place.result(name).exists()}
    return CounterexampleResults(study, place.path, done)


def _row(case: Case, found: Trajectory) -> dict[str, Any]:
    steps = int(found.lengths[0])
    slopes, weights = (values[0, 0] if steps else np.full(3, np.nan) for values in (found.slopes, found.weights))
    changes = found.finals[0] - found.losses[0, 0]
    return {
        "example": case.example.number,
        "method": case.method,
        "rule": case.rule,
        **{f"slope_{k + 1}": float(slope) for k, slope in enumerate(slopes)},
        **{f"weight_{k + 1}": float(weight) for k, weight in enumerate(weights)},
        **{f"change_f{k + 1}": float(change) for k, change in enumerate(changes)},
        "conflicting_steps": int(found.conflicts.any(axis=2).sum()),
        "steps": steps,
        "final_gamma": float(found.gamma[steps, 0]),
        "ended_by": found.reasons[0].code,
    }


def _three(row: Mapping[str, Any], name: str) -> list[float]:
    return [row[f"{name}{k}"] for k in (1, 2, 3)]


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    conflicts = row["conflicting_steps"]
    return {
        "method": row["method"],
        **{f"d·g{k}": f"{slope:.3f}" for k, slope in enumerate(_three(row, "slope_"), start=1)},
        "least w": f"{min(_three(row, 'weight_')):.3f}",
        **{f"f{k}": f"{change:+.3f}" for k, change in enumerate(_three(row, "change_f"), start=1)},
        "conflicts": f"{conflicts:,}" if conflicts else "none",
        "steps": f"{row['steps']:,}",
        "gamma": f"{row['final_gamma']:.3f}",
    }


def summary(results: CounterexampleResults, width: int = _WIDE) -> Summary:
    """Return the printed summary. A narrow terminal has no room for the number of steps."""
    study, found = results.study, results.rows
    tables: dict[str, list[dict[str, str]]] = {}
    for example in examples(study.z):
        shown = [_shown(row) for row in found if row["example"] == example.number]
        fitting = [{name: row[name] for name in row if width >= _WIDE or name != "steps"} for row in shown]
        tables[f"Example {example.number}: {example.title}"] = fitting
    left = len(study.cases()) - len(found)
    return Summary(
        title=TITLE,
        lines=(
            f"f_k(x) = |x + g_k|^2 / 2 from x = 0, where the gradients are the paper's; z {study.z:g}; lr {study.lr:g}",
            "The first direction d of each rule: its inner products with the gradients, and the least weight. Then the "
            "run: changes of the objectives, steps with a conflict, steps, and the last gamma.",
        ),
        tables={title: rows for title, rows in tables.items() if rows},
        legend=(
            "d·g1 below 0: the step along -d raises f1, to first order; that is a conflict. least w, the least weight, "
            "below 0: d is not in the cone of the gradients. gamma: distance from Pareto stationarity; a run ends if "
            f"it is below {study.stop_gamma:g}, or after {study.steps:,} steps."
        ),
        remarks=[f"Not run yet: {left} of {len(study.cases())} runs."] if left else [],
        claims=claims(results),
    )


def claims(results: CounterexampleResults) -> list[Claim]:
    """Return the paper's claims about these gradients, for the rules that were run."""
    by_case = {(row["example"], row["method"]): row for row in results.rows}
    made = []
    if row := by_case.get((1, "PCGrad")):
        slope = row["slope_1"]
        made.append(Claim(f"PCGrad's direction conflicts with g1 in example 1: d·g1 = {slope:.4f}.", slope < 0))
    if row := by_case.get((1, "PCGrad+")):
        slopes = _three(row, "slope_")
        made.append(Claim(f"PCGrad+ does not conflict there: d·g_k = {_list(slopes)}.", min(slopes) >= 0))
    if row := by_case.get((2, "IMTL-G")):
        slopes = _three(row, "slope_")
        made.append(Claim(f"IMTL-G conflicts with all gradients in example 2: {_list(slopes)}.", max(slopes) < 0))
    if row := by_case.get((3, "IMTL-G")):
        slopes, weights = _three(row, "slope_"), _three(row, "weight_")
        text = "IMTL-G does not conflict in example 3, whose gradients have norm 1"
        made.append(Claim(f"{text}: {_list(slopes)}.", min(slopes) >= 0))
        made.append(Claim(f"It leaves the cone there: its weights are {_list(weights)}.", min(weights) < 0))
    covered = [row for (_, method), row in by_case.items() if method in _COVERED]
    if covered:
        names = ", ".join(dict.fromkeys(row["method"] for row in covered))
        falls = all(not row["conflicting_steps"] and max(_three(row, "change_f")) < 0 for row in covered)
        made.append(Claim(f"Rules with a theorem ({names}) lower all objectives in all examples, step by step.", falls))
    return made


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
