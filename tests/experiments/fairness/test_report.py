"""The fairness study's table, figures and page, also if a run is not finite."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.fairness import ADULT, SMALL, example, run

import paretograd as pg
from paretograd.descent import Stop
from paretograd.experiments.fairness import (
    FairnessResults,
    FairnessStudy,
    read_results,
)
from paretograd.experiments.fairness import run as run_module
from paretograd.experiments.fairness.report import write_fairness
from paretograd.experiments.fairness.result import result_of
from paretograd.experiments.fairness.table import close, write

pytestmark = pytest.mark.usefixtures("small")


class TestTable:
    STUDY = FairnessStudy(methods=("mgda", "mean"))

    def results(self, folder: Path) -> FairnessResults:
        return FairnessResults(self.STUDY, folder, {"MGDA": example(), "Mean": example("Mean")})

    def test_values(self, tmp_path):
        mgda, mean = self.results(tmp_path).rows
        assert mgda["accuracy_mean"] == pytest.approx(76.0)
        assert mgda["accuracy_std"] == pytest.approx(np.sqrt(2 / 3))  # of a sample: (1 + 0 + 1 + 0) / 3
        assert mgda["deo1_difference"] == pytest.approx(61.0 - 61.04)
        assert (mgda["deo2_paper"], mgda["deo2_paper_std"]) == (7.56, 0.28)
        assert (mgda["steps_min"], mgda["steps_max"], mgda["steps_in_all"]) == (1, 2, 6)
        assert mgda["ended_by"] == "gamma 2, steps 1, not-finite 1"
        assert (mgda["conflicting_steps"], mgda["final_f2_mean"], mgda["last_gamma_mean"]) == (3, 5.5, 0.5)
        assert mgda["theorem"].startswith("Theorem 2")
        assert mean["accuracy_paper"] is mean["accuracy_difference"] is None

    def test_files(self, tmp_path):
        write(run_module.FairnessFolder(tmp_path), self.STUDY, self.results(tmp_path).methods)
        text = (tmp_path / "table.md").read_text()
        assert "| MGDA | 76.00 ± 0.82 | 75.70 ± 0.06 | +0.30 | 61.00 ± 0.82 | 61.04 ± 0.59 | -0.04 |" in text
        assert "| Mean | 76.00 ± 0.82 |  |  |" in text
        assert "Within 1 point of accuracy and 3 of DEO1 and DEO2 of the paper: MGDA." in text
        assert "MGDA, seed 100: a loss or gradient is not finite" in text
        assert "paretograd reproduce fairness --methods mgda,mean" in text
        with (tmp_path / "table.csv").open() as file:
            [first, _] = csv.DictReader(file)
        assert float(first["deo1_mean"]) == pytest.approx(61.0)

    def test_one_seed_has_no_deviation(self, tmp_path):
        results = run(tmp_path, replace(SMALL, methods=("mgda",), seeds=(24,), steps=2))
        [row] = results.rows
        assert row["accuracy_std"] is None
        text = (tmp_path / "table.md").read_text()
        assert "Seed 24, in percent" in text
        assert "not the paper's protocol (seeds 24, steps 2, lr 0.05, stop 0.0, width 4)" in text

    def test_close_to_the_paper(self, tmp_path):
        rows = self.results(tmp_path).rows
        assert close(rows) == (["MGDA"], [])
        assert close([rows[0] | {"deo2_difference": -3.01}]) == ([], ["MGDA"])


class TestReport:
    def test_figures_and_page(self, done, tmp_path):
        shutil.copytree(done, tmp_path / "s")
        paths = write_fairness(read_results(tmp_path / "s"), {"command": "c"})
        stems = ["fairness_two_1", "fairness_mixed_seed100", "tradeoff"]
        assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")] + [
            "report.html"
        ]
        page = paths[-1].read_text(encoding="utf-8")
        (text,) = re.findall(r'<script type="application/json" id="study">(.*?)</script>', page)
        data = json.loads(text)
        assert [method["label"] for method in data["methods"]] == ["MGDA", "MAS-Rand", "UPGrad*"]
        assert data["seeds"] == ["100", "24"]
        assert [panel["kind"] for panel in data["panels"]] == ["loss", "loss", "loss", "gamma", "space"]
        assert len(data["runs"]) == 6
        assert "Objective f₁, cross entropy" in page
        assert "not the paper&#x27;s protocol" in page
        svg = paths[1].read_text(encoding="utf-8")
        assert "cross entropy" in svg or "<path" in svg

    def test_methods_of_neither_figure(self, tmp_path):
        results = run(tmp_path, replace(SMALL, methods=("mean",), seeds=(24,), steps=2))
        assert [path.name for path in write_fairness(results, {})] == ["tradeoff.png", "tradeoff.svg", "report.html"]

    def test_nothing_done_yet(self, tmp_path):
        with pytest.raises(pg.ParameterError, match="no method of the study"):
            write_fairness(FairnessResults(SMALL, tmp_path, {}), {})


class TestNotFinite:
    def test_is_not_judged(self, tmp_path):
        """One seed is broken: its measures are NaN, and so are the means."""
        study = replace(SMALL, methods=("mgda",), steps=3)
        training = run_module.Training(study.setting(), pg.MGDA(), ADULT.train)
        training.advance(1)
        training._groups[0].ensemble.parameters[0] = np.nan
        training._groups[0].start()
        training.advance(3)
        assert training.reasons == [Stop.NOT_FINITE, Stop.STEPS]
        found = result_of(training, "MGDA", ADULT)
        for part in ("train", "validation", "test"):
            assert np.isnan(getattr(found, part)[0]).all()
            assert not np.isnan(getattr(found, part)[1][0])
        results = FairnessResults(study, tmp_path, {"MGDA": found})
        assert np.isnan(results.rows[0]["accuracy_mean"])
        write(run_module.FairnessFolder(tmp_path), study, results.methods)
        text = (tmp_path / "table.md").read_text()
        assert "| MGDA | nan | 75.70 ± 0.06 |  | nan |" in text
        assert "MGDA, seed 24: a loss or gradient is not finite at the next point, so the run stays" in text
        assert "(step 0). Its classifier is not judged." in text
        assert write_fairness(results, {})[-1].exists()

    def test_nor_is_one_whose_last_step_breaks_it(self, tmp_path):
        """No loss is looked at after the last step."""
        found = run(tmp_path, replace(SMALL, methods=("mean",), steps=1, lr=3e38))
        [row] = found.rows
        assert row["ended_by"] == "steps"
        assert np.isnan(row["accuracy_mean"])
        text = (tmp_path / "table.md").read_text()
        told = r"Mean, seed \d+: all steps were taken \(step 1\)\. Its logits are NaN: its classifier is not judged\."
        assert re.search(told, text), text  # of which seed depends on the last digits of a machine
        assert write_fairness(found, {})[-1].exists()
