"""The tables and the figure of the study, on made-up results."""

from __future__ import annotations

import csv
import math

import pytest

from paretograd.errors import ParameterError
from paretograd.experiments.optimizers import OptimizerStudy, table
from paretograd.experiments.optimizers.report import OPTIMIZER_STUDY, conflicts_and_losses
from paretograd.experiments.optimizers.run import OptimizerFolder, OptimizerResults
from paretograd.experiments.optimizers.study import TUNING_SEED
from paretograd.experiments.optimizers.table import Interval
from paretograd.experiments.optimizers.training import Outcome

STUDY = OptimizerStudy(problems=("helmholtz",), methods=("upgrad",), optimizers=("adam",), seeds=(0, 1, 2))
PLAIN, METRIC, PROJECTED = STUDY.cases()[:3]


def outcomes(losses, conflicting=10, error=0.1):
    """Runs with these sums of losses, after a choice of the second rate."""
    tuning = [
        Outcome(lr, TUNING_SEED, 1, 1.0, (abs(lr - 0.004), 1.0), 1.0, 1, 0) for lr in (0.001, 0.004, 0.016, 0.064)
    ]
    return tuning + [
        Outcome(0.004, seed, 200, 2.0, (0.25 * loss, 0.75 * loss), error * loss, 20, conflicting)
        for seed, loss in enumerate(losses)
    ]


def rows(**changed):
    """The rows of plain, metric and projected runs: a mixed outcome, and one that is better for every seed."""
    made = {
        PLAIN: outcomes([1.0, 1.0, 1.0]),
        METRIC: outcomes([10.0, 0.1, 1.0]),
        PROJECTED: outcomes([0.1, 0.01, 0.1], 0),
    }
    return table.rows(STUDY, made | changed.get("other", {}))


class TestInterval:
    def test_student_s_t(self):
        """Quantile 4.302653 for two degrees of freedom; the deviation of 1, 2, 3 is 1."""
        assert Interval.of([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.302653 / math.sqrt(3.0)), rel=1e-6)

    def test_unknown(self):
        assert math.isnan(Interval.of([1.0]).half)
        assert all(map(math.isnan, Interval.of([1.0, math.inf])))

    @pytest.mark.parametrize(
        ("mean", "half", "verdict"),
        [(-1.0, 0.9, "better"), (1.0, 0.9, "worse"), (1.0, 1.1, "undecided"), (1.0, math.nan, "undecided")],
    )
    def test_verdict(self, mean, half, verdict):
        assert Interval(mean, half).verdict == verdict


class TestRows:
    def test_values(self):
        plain, _, projected = rows()
        assert (plain["validation_mean"], plain["validation_half"]) == (0.0, 0.0)
        assert (plain["lr"], plain["lr_at_edge"], plain["steps_per_second"]) == (0.004, False, 100.0)
        assert (plain["conflicts_percent"], projected["conflicts_percent"]) == (50.0, 0.0)
        assert plain["loss_residual"] == 0.25
        assert "loss_initial" not in plain  # Helmholtz has none
        assert projected["conflicts_percent_plain"] == 50.0

    def test_changes_are_paired(self):
        plain, metric, projected = rows()
        assert plain["validation_change"] is plain["error_verdict"] is None
        assert (metric["validation_change"], metric["validation_verdict"]) == (pytest.approx(0.0), "undecided")
        # -1, -2, -1: the deviation is 1/sqrt(3)
        assert projected["validation_change"] == pytest.approx(-4.0 / 3.0)
        assert projected["validation_change_half"] == pytest.approx(4.302653 / 3.0, rel=1e-6)
        assert projected["validation_verdict"] == projected["error_verdict"] == "undecided"

    def test_a_decided_comparison(self):
        *_, projected = rows(other={PROJECTED: outcomes([0.1, 0.09, 0.1], 0)})
        assert projected["validation_verdict"] == projected["error_verdict"] == "better"

    def test_a_diverged_run_decides_nothing(self):
        *_, projected = rows(other={PROJECTED: outcomes([0.1, math.nan, 0.1])})
        assert (projected["diverged"], projected["validation_verdict"], projected["error_verdict"]) == (
            1, "undecided", "undecided",
        )  # fmt: skip
        assert math.isnan(projected["validation_change"])
        assert math.isnan(projected["error_change"])
        shown = table.tables(rows(other={PROJECTED: outcomes([0.1, math.nan, 0.1])}))
        assert shown["Helmholtz, fresh batches"][-1]["log10 loss"] == "1 of 3 diverged"

    def test_without_its_plain_mode_a_setting_is_not_compared(self):
        [row] = table.rows(STUDY, {PROJECTED: outcomes([1.0, 1.0, 1.0])})
        assert row["validation_verdict"] is None
        assert list(table.tables([row])) == ["Helmholtz, fresh batches"]


class TestTables:
    def test_counts(self):
        found = rows(other={PROJECTED: outcomes([0.1, 0.09, 0.1], 0)})
        counts = {row["method"]: row for row in table.tables(found)["Losses against the plain mode"]}
        assert list(counts) == [
            "in the metric", "in the metric, fresh batches", "in the metric, Adam", "in the metric, UPGrad",
            "in the metric, Helmholtz",
            "projected", "projected, fresh batches", "projected, Adam", "projected, UPGrad", "projected, Helmholtz",
        ]  # fmt: skip
        assert counts["projected"] == {
            "method": "projected", "settings": "1", "better": "1", "worse": "0", "undecided": "0",
            "median change": "-1.015", "conflicts, plain": "50.0%", "conflicts": "0.0%",
        }  # fmt: skip
        assert counts["in the metric"]["undecided"] == "1"
        assert "conflicts" not in table.tables(found)["Errors against the plain mode"][0]

    def test_a_setting_without_measured_updates(self):
        early = [outcome._replace(measured=0, conflicting=0) for outcome in outcomes([1.0, 1.0, 1.0])]
        found = table.tables(rows(other={PROJECTED: early}))
        assert found["Helmholtz, fresh batches"][-1]["conflicts"] == ""
        assert found["Losses against the plain mode"][-1]["conflicts"] == ""

    def test_for_people(self):
        plain, _, projected = table.tables(rows())["Helmholtz, fresh batches"]
        assert plain["log10 loss"] == "0.00 ± 0.00"
        assert plain["change of loss"] == ""
        assert projected["change of loss"] == "-1.33 ± 1.43"
        better = table.tables(rows(other={PROJECTED: outcomes([0.1, 0.09, 0.1])}))["Helmholtz, fresh batches"][-1]
        assert better["change of loss"] == "-1.02 ± 0.07 better"

    def test_files(self, tmp_path):
        place, made = OptimizerFolder(tmp_path, 2), {PLAIN: outcomes([1.0] * 3), PROJECTED: outcomes([0.1] * 3)}
        table.write(place, STUDY, made)
        text = place.table_md.read_text()
        assert f"`{STUDY.command()}`" in text
        assert "There are 1 comparisons" in text
        assert "Not run yet: 4 of 6 settings." in text
        with place.table_csv.open() as file:
            assert float(list(csv.DictReader(file))[1]["validation_change"]) == pytest.approx(-1.0)

    def test_a_narrow_terminal_gets_fewer_columns(self):
        found = rows()
        wide, narrow = (table.summary(STUDY, found, width).tables["Helmholtz, fresh batches"][0] for width in (130, 80))
        assert set(wide) - set(narrow) == {"lr", "steps/s", "change of error"}


class TestFigure:
    def test_panels_and_legend(self):
        figure = conflicts_and_losses(rows())
        assert [axes.get_title() for axes in figure.axes] == ["in the metric", "projected"]
        assert {text.get_text() for text in figure.legends[0].get_texts()} == {
            "UPGrad", "SGD", "Adam", "AdamW", "fresh batches", "full batches",
        }  # fmt: skip

    def test_nothing_to_compare(self, tmp_path):
        results = OptimizerResults(STUDY, tmp_path, {PLAIN: outcomes([1.0] * 3)})
        with pytest.raises(ParameterError, match="can be compared with its plain mode"):
            OPTIMIZER_STUDY.draw(results)
