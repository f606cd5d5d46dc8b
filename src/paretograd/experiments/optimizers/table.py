"""The tables of the study: means with intervals, and paired comparisons of each mode with the plain one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from paretograd.experiments.optimizers.study import (
    BATCHES,
    MODES,
    OPTIMIZERS,
    PROBLEMS,
    TUNING_SEED,
    Case,
    OptimizerStudy,
)
from paretograd.experiments.optimizers.training import EVERY, Outcome, best_rate
from paretograd.experiments.study import Summary

if TYPE_CHECKING:
    from paretograd.experiments.optimizers.run import OptimizerFolder

TITLE = "Does a guarantee for the real update pay?"
#: Coverage of the intervals.
_LEVEL = 0.95
#: Width of a terminal that has room for all columns.
_WIDE = 118
#: Columns that are omitted in a narrow terminal.
_MORE = ("lr", "steps/s", "change of error")


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95% confidence interval (Student's t); NaN if it is unknown."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval of some values; unknown if one of them is not finite or there is only one."""
        known = bool(np.isfinite(values).all())
        count, mean = len(values), float(np.mean(values)) if known else math.nan
        if not known or count < 2:
            return cls(mean, math.nan)
        return cls(mean, float(stats.t.ppf(0.5 + _LEVEL / 2.0, count - 1) * np.std(values, ddof=1) / math.sqrt(count)))

    @property
    def verdict(self) -> str:
        """Return ``better`` for a difference below zero, ``worse`` or ``undecided``."""
        if self.mean + self.half < 0.0:
            return "better"
        return "worse" if self.mean - self.half > 0.0 else "undecided"


def rows(study: OptimizerStudy, outcomes: Mapping[Case, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Return one row of plain values for each setting that is done.

    Changes are log10 of ratios to the plain mode with the same seeds: below zero is better. None: there is no such
    value, since this is the plain mode, or since it is not done.
    """
    made = []
    names = list(dict.fromkeys(name for problem in study.problems for name in PROBLEMS[problem].losses))
    for case, found in outcomes.items():
        runs = _reported(study, found)
        base = outcomes.get(case.plain) if case.mode != "plain" else None
        plain = _reported(study, base) if base else None
        lr, rates = best_rate(found), OPTIMIZERS[case.optimizer].rates
        losses = dict(zip(PROBLEMS[case.problem].losses, _losses(runs), strict=True))
        row: dict[str, Any] = {
            "problem": case.problem,
            "batches": case.batches,
            "rule": case.rule_label,
            "optimizer": case.optimizer,
            "mode": case.mode,
            "lr": lr,
            "lr_at_edge": lr in (rates[0], rates[-1]),
            "seeds": len(runs),
            "diverged": sum(not math.isfinite(run.validation) for run in runs),
            "steps_median": float(np.median([run.steps for run in runs])),
            "steps_per_second": sum(run.steps for run in runs) / max(sum(run.seconds for run in runs), 1e-9),
            "conflicts_percent": _conflicts(runs),
            "conflicts_percent_plain": _conflicts(plain) if plain else None,
            **{f"loss_{name}": losses.get(name) for name in names},
        }
        for measure, values in (("validation", _validations(runs)), ("error", [run.error for run in runs])):
            interval = Interval.of(values)
            row |= {f"{measure}_mean": interval.mean, f"{measure}_half": interval.half}
        for measure, of in (("validation", _validations), ("error", _log_errors)):
            change = (
                Interval.of([one - other for one, other in zip(of(runs), of(plain), strict=True)]) if plain else None
            )
            row |= {
                f"{measure}_change": change.mean if change else None,
                f"{measure}_change_half": change.half if change else None,
                f"{measure}_verdict": change.verdict if change else None,
            }
        made.append(row)
    return made


def _reported(study: OptimizerStudy, found: Sequence[Outcome]) -> list[Outcome]:
    """Return the runs of the study's seeds, in their order."""
    by_seed = {outcome.seed: outcome for outcome in found}
    return [by_seed[seed] for seed in study.seeds]


def _validations(runs: Sequence[Outcome]) -> list[float]:
    return [run.validation for run in runs]


def _log_errors(runs: Sequence[Outcome]) -> list[float]:
    """Return log10 of the errors; NaN for a run that diverged."""
    known = (math.isfinite(run.validation) and 0.0 < run.error < math.inf for run in runs)
    return [math.log10(run.error) if finite else math.nan for run, finite in zip(runs, known, strict=True)]


def _losses(runs: Sequence[Outcome]) -> list[float]:
    """Return the mean of each loss over the runs."""
    return [float(mean) for mean in np.mean([run.losses for run in runs], axis=0)]


def _conflicts(runs: Sequence[Outcome]) -> float:
    """Return the share of measured updates with a conflict, in percent."""
    measured = sum(run.measured for run in runs)
    return 100.0 * sum(run.conflicting for run in runs) / measured if measured else math.nan


def tables(found: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Return the tables for people: all comparisons, then one table for each problem."""
    made = {}
    compared = [row for row in found if row["validation_verdict"] is not None]
    if compared:
        made["Losses against the plain mode"] = _counts(compared, "validation")
        made["Errors against the plain mode"] = _counts(compared, "error")
    for problem, (title, _) in PROBLEMS.items():
        for batches, kind in BATCHES.items():
            here = [row for row in found if (row["problem"], row["batches"]) == (problem, batches)]
            if here:
                made[f"{title}, {kind}"] = [_shown(row) for row in here]
    return made


def _counts(compared: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, str]]:
    """Count the settings in which a mode is better or worse than plain: all of them, and by each choice."""
    choices = [("batches", name, kind) for name, kind in BATCHES.items()]
    choices += [("optimizer", name, optimizer.title) for name, optimizer in OPTIMIZERS.items()]
    choices += [("rule", rule, rule) for rule in dict.fromkeys(row["rule"] for row in compared)]
    choices += [("problem", name, problem.title) for name, problem in PROBLEMS.items()]
    made = []
    for mode, title in MODES.items():
        here = [row for row in compared if row["mode"] == mode]
        groups = {title: here}
        groups |= {f"{title}, {name}": [row for row in here if row[key] == value] for key, value, name in choices}
        made += [{"method": name, **_count(chosen, measure)} for name, chosen in groups.items() if chosen]
    return made


def _count(chosen: Sequence[Mapping[str, Any]], measure: str) -> dict[str, str]:
    verdicts = [row[f"{measure}_verdict"] for row in chosen]
    changes = [row[f"{measure}_change"] for row in chosen if math.isfinite(row[f"{measure}_change"])]
    counts = {
        "settings": str(len(chosen)),
        **{verdict: str(verdicts.count(verdict)) for verdict in ("better", "worse", "undecided")},
        "median change": f"{np.median(changes):+.3f}" if changes else "",
    }
    if measure == "validation":
        counts["conflicts, plain"] = _percent([row["conflicts_percent_plain"] for row in chosen])
        counts["conflicts"] = _percent([row["conflicts_percent"] for row in chosen])
    return counts


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    diverged = f"{row['diverged']} of {row['seeds']} diverged"
    return {
        "method": f"{row['rule']}, {OPTIMIZERS[row['optimizer']].title}, {MODES[row['mode']]}",
        "lr": f"{row['lr']:g}",
        "log10 loss": diverged if row["diverged"] else _with_half(row["validation_mean"], row["validation_half"]),
        "error": "" if row["diverged"] else _with_half(row["error_mean"], row["error_half"], "{:.3f}"),
        "conflicts": _percent([row["conflicts_percent"]]),
        "steps/s": f"{row['steps_per_second']:.0f}",
        "change of loss": _change(row, "validation"),
        "change of error": _change(row, "error"),
    }


def _percent(shares: Sequence[float]) -> str:
    """Return the mean of the shares that are known."""
    known = [share for share in shares if not math.isnan(share)]
    return f"{np.mean(known):.1f}%" if known else ""


def _change(row: Mapping[str, Any], measure: str) -> str:
    change, verdict = row[f"{measure}_change"], row[f"{measure}_verdict"]
    if change is None or math.isnan(change):
        return ""
    mark = f" {verdict}" if verdict != "undecided" else ""
    return f"{_with_half(change, row[f'{measure}_change_half'], '{:+.2f}')}{mark}"


def _with_half(mean: float, half: float, digits: str = "{:.2f}") -> str:
    return digits.format(mean) + ("" if math.isnan(half) else f" ± {digits.replace('+', '').format(half)}")


def setting(study: OptimizerStudy) -> str:
    """Return the protocol in one line."""
    return (
        f"{study.budget:g} s of CPU time for each run, in one thread; learning rates chosen on "
        f"seed {TUNING_SEED}; seeds {', '.join(map(str, study.seeds))}"
    )


def heading(study: OptimizerStudy) -> str:
    """Return the sentence that explains the numbers."""
    return (
        f"Mean over {len(study.seeds)} seeds and its {_LEVEL:.0%} confidence interval (Student's t). log10 loss: of "
        "the sum of the losses on the validation data. Changes: log10 of the ratio to the plain mode with the same "
        "seed."
    )


def legend() -> str:
    """Return the definitions of the terms in the tables."""
    return (
        "plain: the optimizer gets the rule's direction. in the metric: the rule's weights come from the optimizer's "
        "metric. projected: likewise, and the update is projected so that it raises no loss of the batch, to first "
        f"order. conflicts: share of updates that raise some loss of their batch; one step in {EVERY} is measured, "
        "outside of the budget. better, worse: the interval of the change does not contain zero. In the metric, the "
        "mean and SGD do the same as plain, and are not run again."
    )


def remarks(study: OptimizerStudy, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader should know before using the numbers."""
    made = []
    left, edge = len(study.cases()) - len(found), sum(row["lr_at_edge"] for row in found)
    if left:
        made.append(f"Not run yet: {left} of {len(study.cases())} settings.")
    compared = [row for row in found if row["validation_verdict"] is not None]
    if compared:
        made.append(
            f"There are {len(compared)} comparisons; without any effect, about {(1 - _LEVEL) * len(compared):.0f} of "
            "them would be better or worse by chance."
        )
    if edge:
        made.append(
            f"The chosen learning rate is the smallest or largest of its grid in {edge} of {len(found)} settings."
        )
    return made


def summary(study: OptimizerStudy, found: Sequence[Mapping[str, Any]], width: int = _WIDE) -> Summary:
    """Return the printed summary. A narrow terminal has no room for all columns."""
    fitting = {
        title: [{key: row[key] for key in row if width >= _WIDE or key not in _MORE} for row in shown]
        for title, shown in tables(found).items()
    }
    return Summary(
        title=TITLE,
        lines=(setting(study), heading(study)),
        tables=fitting,
        legend=legend(),
        remarks=remarks(study, found),
    )


def write(place: OptimizerFolder, study: OptimizerStudy, outcomes: Mapping[Case, Sequence[Outcome]]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, outcomes)
    shown = summary(study, found)
    place.write_tables(study, found, shown.title, ". ".join(shown.lines), shown.tables, shown.sentences)
