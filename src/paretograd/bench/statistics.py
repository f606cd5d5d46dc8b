"""The numbers of the report: Delta m, ranks, intervals by bootstrap, and paired tests against the tuned mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from paretograd.bench.folder import Outcome
from paretograd.bench.protocol import Setting
from paretograd.bench.roster import TUNED, single
from paretograd.bench.task import Task

#: Draws of the bootstrap, and the error rate of intervals and tests.
_DRAWS, ALPHA = 10_000, 0.05


class Row(NamedTuple):
    """A rule on a task, with the optimizer that validation rows prefer.

    Attributes:
        rule: its name.
        optimizer: the chosen one.
        test: metrics of the reported networks on test rows, ``(S, metrics)``.
        delta: Delta m in percent for each network, ``(S,)``: below zero is better than the reference.
        interval: of the mean of delta, by bootstrap over seeds.
        p: of the paired test against the tuned mean, corrected for the number of rules; NaN for that itself.
        rank: the mean over the metrics of the rule's rank among all rules.
        why: why there is no result; empty if there is one.
        trained: False if the rule cannot be used on the task.
    """

    rule: str
    optimizer: str
    test: np.ndarray
    delta: np.ndarray
    interval: tuple[float, float]
    p: float
    rank: float
    why: str = ""
    trained: bool = True

    @property
    def mean_delta(self) -> float:
        """The mean of Delta m over the networks; infinite if one of them stopped early."""
        return float(self.delta.mean()) if np.isfinite(self.delta).all() else math.inf


def better(outcomes: Mapping[Setting, Outcome]) -> dict[str, tuple[str, Outcome]]:
    """Return for each rule the optimizer with the best chosen trial on validation rows, and its result."""
    found: dict[str, tuple[str, Outcome]] = {}
    for setting, outcome in outcomes.items():
        known = found.get(setting.rule)
        if known is None or outcome.quality > known[1].quality:
            found[setting.rule] = (setting.optimizer, outcome)
    return found


def reference(task: Task, chosen: Mapping[str, tuple[str, Outcome]]) -> np.ndarray | None:
    """Return the metrics on test rows that Delta m refers to, ``(S, metrics)``; None if they are not there.

    A task with single-task networks takes each metric from the network that was trained with its loss alone. A metric
    that no single loss gives, and all metrics of other tasks, come from the tuned mean.
    """
    columns = []
    for number, metric in enumerate(task.metrics):
        name = TUNED if metric.objective is None or not task.single else single(metric.objective)
        if name not in chosen or not np.isfinite(chosen[name][1].test).all():
            return None
        columns.append(chosen[name][1].test[:, number])
    return np.stack(columns, axis=1)


def delta_m(task: Task, test: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return Delta m of each network, ``(S,)``: how much worse its metrics are than the reference, in percent.

    Args:
        task: says in which direction a metric is better.
        test: ``(S, metrics)``.
        base: metrics of the reference, ``(metrics,)``.
    """
    sign = np.array([-1.0 if metric.higher else 1.0 for metric in task.metrics])
    whole = np.where([metric.relative for metric in task.metrics], np.abs(base), 100.0)
    found: np.ndarray = 100.0 * (sign * (test - base) / whole).mean(axis=-1)
    return found


def rows_of(task: Task, outcomes: Mapping[Setting, Outcome]) -> list[Row]:
    """Return the table of a task, the best Delta m first. Each rule has the optimizer that validation rows prefer.

    Args:
        task: what was trained.
        outcomes: its results.
    """
    chosen = better(outcomes)
    base = reference(task, chosen)
    singles = {single(k) for k in range(len(task.objectives))}
    names = [name for name in chosen if name not in singles]
    nothing = np.full(0 if not names else len(chosen[names[0]][1].test), math.nan)
    deltas = {
        name: nothing if base is None else delta_m(task, chosen[name][1].test, base.mean(axis=0)) for name in names
    }
    p = against(deltas, TUNED)
    ranks = mean_ranks(task, {name: chosen[name][1].test.mean(axis=0) for name in names})
    rows = [
        Row(
            name,
            chosen[name][0],
            chosen[name][1].test,
            deltas[name],
            bootstrap(task, chosen[name][1].test, base),
            p.get(name, math.nan),
            ranks[name],
            why(chosen[name][1]),
            any(outcome.tuning.seconds > 0.0 for setting, outcome in outcomes.items() if setting.rule == name),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (row.mean_delta, row.rank if math.isfinite(row.rank) else math.inf, row.rule))


def why(outcome: Outcome) -> str:
    """Return why a setting has no complete result; empty if it has."""
    if outcome.tuning.best is None:
        return next((reason for reason in outcome.tuning.reasons if reason), "no trial has finite metrics")
    return next((reason for reason in outcome.reasons if reason), "")


def bootstrap(task: Task, test: np.ndarray, base: np.ndarray | None) -> tuple[float, float]:
    """Return the interval of the mean of Delta m over seeds, which are drawn anew for the rule and the reference."""
    if base is None or not np.isfinite(test).all():
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn = test[rng.integers(len(test), size=(_DRAWS, len(test)))].mean(axis=1)
    against = base[rng.integers(len(base), size=(_DRAWS, len(base)))].mean(axis=1)
    found = delta_m(task, drawn, against)
    low, high = np.quantile(found, [ALPHA / 2, 1.0 - ALPHA / 2])
    return float(low), float(high)


def paired(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Return p of the paired t-test: networks of the same seed start from the same weights and see the same rows."""
    if len(mine) < 2 or not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
        return math.nan
    difference = mine - theirs
    if np.ptp(difference) <= 1e-12 * np.abs(difference).max():  # the test divides by the spread
        return 1.0 if not difference.any() else 0.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def against(deltas: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    """Return p of the paired test against one of the rules, corrected, for each of the others; NaN without a result.

    Args:
        deltas: Delta m of the networks of each rule.
        name: of the rule; without it, there is no p.
    """
    if name not in deltas:
        return {}
    return corrected({rule: paired(delta, deltas[name]) for rule, delta in deltas.items() if rule != name})


def corrected(p: Mapping[str, float]) -> dict[str, float]:
    """Return p by Holm's procedure for all rules that have one."""
    known = sorted((value, name) for name, value in p.items() if math.isfinite(value))
    found, least = dict.fromkeys(p, math.nan), 0.0
    for position, (value, name) in enumerate(known):
        least = max(least, min(1.0, value * (len(known) - position)))
        found[name] = least
    return found


def mean_ranks(task: Task, means: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return for each rule its rank in each metric, averaged over the metrics; rules without a result are last.

    Args:
        task: says in which direction a metric is better.
        means: metrics of each rule, ``(metrics,)``.
    """
    if not means:
        return {}
    table = np.stack(list(means.values()))
    sign = np.array([-1.0 if metric.higher else 1.0 for metric in task.metrics])
    signed = np.where(np.isfinite(table), sign * table, math.inf)
    ranks = stats.rankdata(signed, axis=0).mean(axis=1)
    return {name: float(rank) for name, rank in zip(means, ranks, strict=True)}


class Overall(NamedTuple):
    """A rule over several tasks.

    Attributes:
        rule: its name.
        rank: the mean over the tasks of its rank by Delta m.
        delta: the mean over the tasks of its Delta m; infinite if it has none on some task.
        better, worse: number of tasks on which it differs from the tuned mean, by the corrected test.
        tasks: number of tasks with a result.
        p: of Wilcoxon's signed-rank test of Delta m against the tuned mean over the tasks, corrected.
    """

    rule: str
    rank: float
    delta: float
    better: int
    worse: int
    tasks: int
    p: float


def overall(tables: Mapping[str, Sequence[Row]]) -> list[Overall]:
    """Return the table over all tasks, the best mean rank first. Rules that miss a task are left out.

    Args:
        tables: of the tasks, as `rows_of` returns them.
    """
    ranks = ranks_by_task(tables)
    by_rule = {name: {task: row for task, rows in tables.items() for row in rows if row.rule == name} for name in ranks}
    base = by_rule.get(TUNED, {})
    p = corrected({name: _signed_rank(found, base) for name, found in by_rule.items() if name != TUNED})
    rows = []
    for name, found in by_rule.items():
        mine = {task: row.mean_delta for task, row in found.items()}
        clear = [mine[task] - base[task].mean_delta for task, row in found.items() if row.p < ALPHA and task in base]
        rows.append(
            Overall(
                name,
                float(np.mean(ranks[name])),
                float(np.mean(list(mine.values()))),
                sum(difference < 0.0 for difference in clear),
                sum(difference > 0.0 for difference in clear),
                sum(map(math.isfinite, mine.values())),
                p.get(name, math.nan),
            )
        )
    return sorted(rows, key=lambda row: row.rank)


def ranks_by_task(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[float]]:
    """Return for each rule that is in all tables its rank by Delta m in each of them."""
    common = set.intersection(*({row.rule for row in rows} for rows in tables.values())) if tables else set()
    found: dict[str, list[float]] = {name: [] for name in sorted(common)}
    for rows in tables.values():
        mine = [row for row in rows if row.rule in common]
        for row, rank in zip(mine, stats.rankdata([row.mean_delta for row in mine]), strict=True):
            found[row.rule].append(float(rank))
    return found


def _signed_rank(mine: Mapping[str, Row], base: Mapping[str, Row]) -> float:
    pairs = [(mine[task].mean_delta, base[task].mean_delta) for task in mine if task in base]
    differences = np.array([a - b for a, b in pairs if math.isfinite(a) and math.isfinite(b)])
    if len(differences) < 2 or not differences.any():
        return math.nan
    return float(stats.wilcoxon(differences).pvalue)


def critical_difference(rules: int, tasks: int) -> float:
    """Return Nemenyi's critical difference of mean ranks: rules closer than this are not told apart (Demsar, 2006)."""
    q = float(stats.studentized_range.ppf(1.0 - ALPHA, rules, np.inf)) / math.sqrt(2.0)
    return q * math.sqrt(rules * (rules + 1) / (6.0 * tasks))
