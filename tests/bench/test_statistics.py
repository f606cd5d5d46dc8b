"""The numbers of the report, against formulas that were worked out by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from support.toy import Toy

from paretograd.bench.folder import Outcome, Tuning
from paretograd.bench.protocol import Protocol, Setting
from paretograd.bench.report import TaskReport, comparable, findings, notes, overall_notes, task_table
from paretograd.bench.roster import RULES
from paretograd.bench.statistics import (
    against,
    bootstrap,
    corrected,
    critical_difference,
    delta_m,
    mean_ranks,
    overall,
    paired,
    rows_of,
)
from paretograd.bench.task import Metric
from paretograd.bench.training import Curves, Trial

TASK = Toy()


class Mixed(Toy):
    """An accuracy and an error."""

    metrics = (Metric("accuracy", 0), Metric("error", 1, higher=False))


class Fair(Toy):
    """An accuracy and a gap that may vanish."""

    metrics = (Metric("accuracy", 0), Metric("gap", 1, higher=False, relative=False))


def outcome(quality: float, test: list[list[float]], reason: str = "") -> Outcome:
    table = np.array(test)
    tuning = Tuning([Trial("mean", 0.1, 0)], table[:1], np.array([quality]), [reason], 1.0)
    return Outcome(tuning, table, table, [""] * len(table), Curves(*[np.empty(0)] * 4), 1.0)


def test_delta_m_counts_what_is_worse():
    found = delta_m(Mixed(), np.array([[90.0, 2.0], [110.0, 1.0]]), np.array([100.0, 1.0]))
    np.testing.assert_allclose(found, [(10.0 + 100.0) / 2, (-10.0 + 0.0) / 2])


def test_delta_m_takes_points_of_what_may_vanish():
    found = delta_m(Fair(), np.array([[80.0, 6.0], [90.0, 1.0]]), np.array([80.0, 0.0]))
    np.testing.assert_allclose(found, [6.0 / 2, (-12.5 + 1.0) / 2])


def test_the_optimizer_is_chosen_on_validation_rows():
    outcomes = {
        Setting("mgda", "sgd"): outcome(1.0, [[5.0, 5.0], [6.0, 6.0]]),
        Setting("mgda", "adamw"): outcome(2.0, [[9.0, 9.0], [9.0, 9.5]]),  # worse on test rows, which nobody has seen
        Setting("tuned-mean", "sgd"): outcome(1.0, [[1.0, 1.0], [1.0, 1.0]]),
        Setting("single(0)", "sgd"): outcome(1.0, [[2.0, 7.0], [2.0, 7.0]]),
        Setting("single(1)", "sgd"): outcome(1.0, [[7.0, 4.0], [7.0, 4.0]]),
    }
    rows = {row.rule: row for row in rows_of(TASK, outcomes)}
    assert set(rows) == {"mgda", "tuned-mean"}
    assert rows["mgda"].optimizer == "adamw"
    np.testing.assert_allclose(rows["tuned-mean"].delta, [(-50.0 - 75.0) / 2] * 2)  # against (2, 4)
    np.testing.assert_allclose(rows["mgda"].delta, [(350.0 + 125.0) / 2, (350.0 + 137.5) / 2])
    assert rows["tuned-mean"].rank == 1.0
    assert rows["mgda"].rank == 2.0


def test_a_rule_without_a_result_is_last_and_says_why():
    outcomes = {
        Setting("tuned-mean", "sgd"): outcome(1.0, [[1.0, 1.0]] * 2),
        Setting("gls", "sgd"): outcome(math.nan, [[math.nan] * 2] * 2, "a loss is zero"),
    }
    rows = rows_of(TASK, outcomes)
    assert [row.rule for row in rows] == ["tuned-mean", "gls"]
    assert rows[1].why == "a loss is zero"
    assert math.isinf(rows[1].mean_delta)
    assert math.isnan(rows[1].p)


def test_networks_that_end_without_finite_metrics_have_a_reason():
    rows = rows_of(TASK, {Setting("mgda", "sgd"): outcome(-math.inf, [[math.nan] * 2] * 2)})
    assert [row.why for row in rows] == ["no trial has finite metrics"]


def test_paired_test_is_that_of_scipy():
    rng = np.random.default_rng(0)
    mine, theirs = rng.normal(size=5), rng.normal(size=5)
    assert paired(mine, theirs) == pytest.approx(stats.ttest_rel(mine, theirs).pvalue, rel=1e-12)
    assert paired(mine, mine) == 1.0
    assert math.isnan(paired(mine, np.full(5, math.nan)))


def test_holm_on_a_worked_example():
    """Four tests: 0.005 x 4, 0.01 x 3, then 0.03 x 2 and 0.04, which may not fall below it."""
    found = corrected({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": math.nan})
    assert {name: round(value, 12) for name, value in found.items() if name != "e"} == {
        "a": 0.03,
        "b": 0.06,
        "c": 0.06,
        "d": 0.02,
    }
    assert math.isnan(found["e"])


def test_bootstrap_covers_the_mean_and_shrinks():
    rng = np.random.default_rng(0)
    base = np.full((5, 2), 100.0)
    few, many = 100.0 + rng.normal(size=(5, 2)), 100.0 + rng.normal(size=(80, 2))
    low, high = bootstrap(TASK, few, base)
    assert low < delta_m(TASK, few, base[0]).mean() < high
    assert np.diff(bootstrap(TASK, many, base)) < (high - low) / 2
    assert all(map(math.isnan, bootstrap(TASK, few, None)))


def test_ranks_share_ties_and_put_missing_results_last():
    means = {"a": np.array([1.0, 2.0]), "b": np.array([1.0, 1.0]), "c": np.array([math.nan, math.nan])}
    assert mean_ranks(TASK, means) == {"a": 1.75, "b": 1.25, "c": 3.0}


def test_overall_ranks_common_rules_over_tasks():
    def table(mgda: float, mean: float, extra: bool) -> list:
        found = {
            Setting("mgda", "sgd"): outcome(1.0, [[mgda, mgda], [mgda, mgda * 1.01]]),
            Setting("tuned-mean", "sgd"): outcome(1.0, [[mean, mean], [mean, mean * 1.02]]),
            Setting("single(0)", "sgd"): outcome(1.0, [[1.0, 9.0]] * 2),
            Setting("single(1)", "sgd"): outcome(1.0, [[9.0, 1.0]] * 2),
        }
        return rows_of(TASK, found | ({Setting("upgrad", "sgd"): outcome(1.0, [[1.0, 1.0]] * 2)} if extra else {}))

    rows = overall({"one": table(1.0, 2.0, True), "two": table(1.0, 3.0, False), "three": table(2.0, 1.0, False)})
    assert [(row.rule, round(row.rank, 6), row.tasks) for row in rows] == [
        ("mgda", 1.333333, 3),
        ("tuned-mean", 1.666667, 3),
    ]


def test_tasks_that_miss_rules_are_left_out_if_two_are_whole():
    def report(title: str, names: tuple[str, ...], positive: bool = True) -> TaskReport:
        task, number = Toy(), Protocol("support.toy:Toy")
        task.title, task.positive = title, positive  # type: ignore[misc]
        rows = rows_of(task, {Setting(name, "sgd"): outcome(1.0, [[1.0, 2.0]] * 2) for name in names})
        return TaskReport(task, number, {}, rows, "", {})

    whole, other, part = report("Whole", RULES), report("Other", RULES), report("Part", RULES[:5])
    assert comparable([whole, part, other]) == [whole, other]
    assert comparable([whole, part]) == [whole, part]
    acting = report("Acting", RULES, positive=False)
    assert comparable([whole, acting, other]) == [whole, other]
    assert overall_notes([whole, part, other, acting]) == [
        "Tasks: Whole, Other.",
        "Not all rules were run on Part.",
        "Rules that read losses cannot be used on Acting.",
        "With 2 tasks, p over tasks is at least 0.500: it cannot tell rules apart.",
    ]


def test_rules_that_cannot_be_used_are_named_once():
    none = np.full((1, 2), math.nan)
    words = "GLS reads the values of the losses", "STCH reads the values of the losses", "cap=2 is too large"
    found = {Setting("tuned-mean", "sgd"): outcome(1.0, [[1.0, 2.0]] * 2)}
    for rule, reason in zip(("gls", "stch", "capped-mgda"), words, strict=True):
        tuning = Tuning([Trial(rule, 0.1, 0)], none, none[:, 0], [reason], 0.0)
        found[Setting(rule, "sgd")] = Outcome(tuning, none, none, [reason], Curves(*[np.empty(0)] * 4), 0.0)
    report = TaskReport(TASK, Protocol("support.toy:Toy"), found, rows_of(TASK, found), "", {})
    assert [row["rule"] for row in task_table(report)] == ["Mean, tuned weights"]
    told = notes(report)
    assert "Cannot be used here: GLS, STCH (reads the values of the losses)." in told
    assert "Cannot be used here: Capped MGDA (cap=2 is too large)." in told
    assert not any("Without a complete result" in line for line in told)


def test_critical_difference_is_that_of_the_table_of_demsar():
    """Demsar (2006), table 5: q is 2.569 for four classifiers and 3.164 for ten."""
    for rules, q in ((2, 1.960), (4, 2.569), (10, 3.164)):
        expected = q * math.sqrt(rules * (rules + 1) / (6.0 * 14))
        assert critical_difference(rules, 14) == pytest.approx(expected, rel=5e-4)


def test_findings_compare_with_both_baselines():
    """A rule may beat the tuned mean only because the latter is worse than equal weights."""
    found = {
        Setting("tuned-mean", "sgd"): outcome(1.0, [[2.0, 2.0], [2.1, 2.1]]),
        Setting("mean", "sgd"): outcome(1.0, [[1.0, 1.0], [1.1, 1.1]]),
        Setting("mgda", "sgd"): outcome(1.0, [[1.0, 1.1], [1.1, 1.2]]),
        Setting("gls", "sgd"): outcome(1.0, [[math.nan] * 2] * 2, "a loss is zero"),
        Setting("single(0)", "sgd"): outcome(1.0, [[1.0, 9.0]] * 2),
        Setting("single(1)", "sgd"): outcome(1.0, [[9.0, 1.0]] * 2),
    }
    rows = rows_of(TASK, found)
    expected = {row.rule: row.p for row in rows if row.rule != "tuned-mean"}
    assert against({row.rule: row.delta for row in rows}, "tuned-mean") == pytest.approx(expected, nan_ok=True)
    (told,) = findings([TaskReport(TASK, Protocol("support.toy:Toy"), found, rows, "", {})])
    assert told.startswith("Toy: 2 of 2 rules with a result beat the tuned mean: Mean (-100.00), MGDA (-95.00); 0 are")
    assert told.endswith("Equal weights are beaten by 0, and beat 2.")


def test_notes_say_how_often_the_search_ends_at_its_edge():
    def chosen(best: int) -> Outcome:
        quality = np.arange(3) == best
        tuning = Tuning(
            [Trial("mean", rate, 0) for rate in (0.1, 0.3, 0.2)], np.ones((3, 2)), quality * 1.0, [""] * 3, 1.0
        )
        return outcome(1.0, [[1.0, 1.0]] * 2)._replace(tuning=tuning)

    found = {
        Setting("mean", "sgd"): chosen(1),
        Setting("mgda", "sgd"): chosen(2),
        Setting("upgrad", "sgd"): chosen(1),
        Setting("mean", "adamw"): chosen(0),
        Setting("single(0)", "sgd"): chosen(0),  # no rule
    }
    told = notes(TaskReport(TASK, Protocol("support.toy:Toy"), found, rows_of(TASK, found), "", {}))
    assert "sgd: of 3 rules, 0 chose the lowest learning rate that was tried, and 2 the highest." in told
    assert "adamw: of 1 rules, 1 chose the lowest learning rate that was tried, and 0 the highest." in told
