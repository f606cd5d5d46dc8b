"""The fairness study on a caller's own data."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.fairness import ADULT, SMALL, example, run

import paretograd as pg
from paretograd.experiments.fairness import (
    FairnessResults,
    FairnessStudy,
    read_results,
)
from paretograd.experiments.fairness import run as run_module
from paretograd.experiments.fairness.report import write_fairness
from paretograd.experiments.fairness.study import OwnData
from paretograd.experiments.fairness.table import setting, write
from paretograd.problems.fairness import Adult, Rows

pytestmark = pytest.mark.usefixtures("small")


class TestOwnData:
    STUDY = replace(SMALL, methods=("mgda",), steps=2)

    @pytest.fixture
    def own(self, tmp_path) -> Path:
        return run(tmp_path / "own", self.STUDY, data=ADULT).folder

    def test_is_recorded(self, own):
        found = json.loads((own / "config.json").read_text())["study"]["own_data"]
        assert (found["features"], found["rows"]) == (ADULT.train.features.shape[1], [210, 30, 60])
        assert re.fullmatch("[0-9a-f]{64}", found["sha256"])
        assert read_results(own).study.own_data == run(own, self.STUDY, data=ADULT, resume=True).study.own_data
        assert "own_data" not in FairnessStudy().plain()

    def test_a_study_of_results_can_be_resumed_as_it_is(self, own):
        assert run(own, read_results(own).study, data=ADULT, resume=True).study == read_results(own).study

    @pytest.mark.parametrize("part", ["train", "validation", "test"])
    @pytest.mark.parametrize("field", Rows._fields)
    def test_others_are_refused(self, own, part, field):
        rows = getattr(ADULT, part)
        values = getattr(rows, field).clone()
        values[0] = 1.0 - values[0]
        other = replace(ADULT, **{part: rows._replace(**{field: values})})
        with pytest.raises(pg.InputError, match=r"(?s)holds another study.*own data: .*sha256.* there, .* here"):
            run(own, self.STUDY, data=other, resume=True)
        with pytest.raises(pg.InputError, match="holds another study"):
            run(own, self.STUDY, data=other)

    def test_adult_does_not_go_on_with_them_nor_they_with_adult(self, own, done):
        with pytest.raises(pg.InputError, match=r"(?s)own data: .*sha256.* there, null here.*FOLDER, data=DATA\)"):
            run(own, self.STUDY, resume=True)
        with pytest.raises(pg.InputError, match=r"own data: null there"):
            run(done, data=ADULT, resume=True)

    def test_a_damaged_record(self, own):
        config = json.loads((own / "config.json").read_text())
        for wrong in (
            3,
            {},
            {"features": 1, "rows": [1, 2], "sha256": ""},
            {"features": 1, "rows": 1, "sha256": ""},
        ):
            config["study"]["own_data"] = wrong
            (own / "config.json").write_text(json.dumps(config))
            with pytest.raises(pg.InputError, match="not the configuration of a fairness study"):
                read_results(own)

    def test_texts_are_of_them(self, tmp_path):
        """A method of the paper's table with the paper's protocol, but for the data."""
        study = FairnessStudy(methods=("mgda",))
        own = replace(study, own_data=OwnData(7, (210, 30, 60), "0" * 64))
        results = FairnessResults(own, tmp_path, {"MGDA": example()})
        write(run_module.FairnessFolder(tmp_path), own, results.methods)
        paths = write_fairness(results, {"protocol": setting(own)})
        table, page = (tmp_path / "table.md").read_text(), paths[-1].read_text(encoding="utf-8")
        page = page[: page.index("<script")] + setting(own)
        for text in (table, page):
            assert "Fair classification on own data" in text
            for word in ("Adult", "paper", "men and women", "50", "census", "benchmark"):
                assert word not in text.replace("0.50", "")
        assert f"run_fairness({study!r}, FOLDER, data=DATA)" in table
        assert "7-256-256-256-1" in page
        assert "210, 30 and 60 rows" in page
        assert results.rows[0]["accuracy_paper"] is None

    @pytest.mark.parametrize(
        ("part", "change", "message"),
        [
            ("train", lambda rows: rows.to(torch.bfloat16), "train features: torch.bfloat16; .* torch.float32 or"),
            (
                "test",
                lambda rows: rows.to(torch.float64),
                "test features have torch.float64, train features torch.float32",
            ),
            ("test", lambda rows: rows._replace(features=rows.features[:, 1:]), "as many columns"),
            ("validation", lambda rows: rows._replace(labels=rows.labels[1:]), r"validation: .*\(30, \d+\), \(29,\)"),
            ("train", lambda rows: rows._replace(features=rows.features[:, 0]), r"train: features have shape \(N, F\)"),
            ("test", lambda rows: Rows(*(part[:0] for part in rows)), "test: .*at least one row"),
            ("test", lambda rows: rows._replace(labels=rows.labels + 1), "test labels must be bool or hold only 0"),
            ("train", lambda rows: rows._replace(groups=rows.groups / 2), "train groups must be bool or hold only 0"),
            ("train", lambda rows: rows._replace(features=rows.features / 0), "train features: .* not finite"),
        ],
    )
    def test_what_cannot_work_fails_before_anything_is_written(self, part, change, message, tmp_path):
        with pytest.raises(pg.InputError, match=message):
            run(tmp_path / "s", data=replace(ADULT, **{part: change(getattr(ADULT, part))}))
        assert not (tmp_path / "s").exists()

    @pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.bfloat16])
    def test_other_zeros_and_ones_are_as_good(self, own, tmp_path, kind):
        parts = (ADULT.train, ADULT.validation, ADULT.test)
        rows = [Rows(part.features, part.labels.to(kind), part.groups.to(kind)) for part in parts]
        found = run(tmp_path / "s", self.STUDY, data=Adult(*rows, ADULT.names))
        assert found.rows == read_results(own).rows

    def test_results_from_before_are_read_and_resumed(self, tmp_path):
        """They are of Adult, and say nothing of the data."""
        results = ROOT / "results" / "fairness"
        shutil.copytree(results, tmp_path / "s")
        study = read_results(tmp_path / "s").study
        assert study.own_data is None
        assert run(tmp_path / "s", FairnessStudy(), resume=True).study == study
        assert (tmp_path / "s" / "table.md").read_bytes() == (results / "table.md").read_bytes()
