"""The fairness study: the paper's protocol, mistakes, and the command that makes it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from support.fairness import SMALL, run
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES
from paretograd.experiments.fairness import (
    FairnessStudy,
    read_results,
)
from paretograd.experiments.fairness.report import FAIRNESS
from paretograd.experiments.fairness.study import PUBLISHED

pytestmark = pytest.mark.usefixtures("small")


class TestStudy:
    def test_the_paper_s_protocol(self):
        study = FairnessStudy()
        assert study.labels()[:9] == tuple(PUBLISHED)
        assert study.labels()[9:] == (
            "Nash-MTL", "Mean", "CAGrad", "FairGrad", "Power mean", "Capped MGDA", "Greedy-DCP", "PCGrad+",
        )  # fmt: skip
        assert (study.seeds, study.steps, study.lr, study.stop) == ((24, 42, 64, 100), 40_000, 0.005, 1e-3)
        assert (study.gaps, study.scaling, study.width, study.shown_seed) == ("sums", "all", 256, 100)
        assert study.changes() == {}
        study.rehearse()

    def test_published_values(self):
        """Typed once more from the paper's table."""
        assert PUBLISHED["DualProj"] == ((79.02, 0.11), (53.97, 0.37), (6.20, 0.06))
        assert PUBLISHED["MAS-RR(2.5k)"] == ((76.25, 0.07), (60.56, 0.63), (7.69, 0.12))
        assert sum(value for row in PUBLISHED.values() for value, _ in row) == pytest.approx(692.95 + 532.60 + 64.43)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"methods": ()}, "at least one method"),
            ({"methods": "mgda"}, r"methods='mgda': .* such as \('mgda',\)"),
            ({"methods": (pg.MGDA(),)}, "methods=.*: rules as text"),
            ({"seeds": (1, 1)}, "seed 1 is given twice"),
            ({"seeds": (-1,)}, "seed=-1 is too small; the smallest is 0"),
            ({"seeds": (2**63,)}, r"seed=9223372036854775808 is too large; the largest is 9223372036854775807"),
            ({"seeds": 5}, "seeds=5: .* such as"),
            ({"lr": 1e39}, r"lr=1e\+39: .*float32"),
            ({"lr": 1e-50}, r"lr=1e-50: .*float32"),
            ({"lr": 10**400}, "lr=1000.*: a real number is needed"),
            ({"tf32": "no"}, "tf32='no': use True or False"),
            ({"steps": 0}, "the smallest is 1"),
            ({"lr": 0.0}, "lr=0: a number above 0"),
            ({"stop": -1.0}, "stop=-1: a finite number, at least 0"),
            ({"gaps": "both"}, "gaps='both': use sums or means"),
            ({"scaling": "none"}, "scaling='none': use all or train"),
            ({"width": 0}, "the smallest is 1"),
        ],
    )
    def test_mistakes(self, change, message):
        with pytest.raises(pg.ParameterError, match=message):
            replace(SMALL, **change)

    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            (("mgda", "mgda"), "MGDA is in the list twice"),
            (("capped-mgda(cap=0.2)",), "Capped MGDA cannot weigh three objectives: .*smallest feasible cap"),
            (("nash",), "no aggregator is called 'nash'"),
        ],
    )
    def test_what_cannot_work_fails_before_anything_is_written(self, rules, message, tmp_path):
        with pytest.raises(pg.InputError, match=message):
            run(tmp_path / "s", replace(SMALL, methods=rules))
        assert not (tmp_path / "s").exists()

    def test_numbers_of_numpy_and_ranges(self, tmp_path):
        """They become plain ones, which a file can hold."""
        given = FairnessStudy(
            methods=np.array(["mgda"]), seeds=np.arange(2), steps=np.int64(1), lr=np.float32(0.5), stop=np.float64(0),
            width=np.int32(4), tf32=np.bool_(True),
        )  # fmt: skip
        plain = FairnessStudy(methods=("mgda",), seeds=(0, 1), steps=1, lr=0.5, stop=0.0, width=4)
        assert replace(given, seeds=range(2)) == given == plain
        assert repr(given) == repr(plain)
        assert run(tmp_path, given).study == read_results(tmp_path).study == plain

    def test_the_largest_seed(self, tmp_path):
        run(tmp_path, replace(SMALL, methods=("mgda",), seeds=(0, 2**63 - 1), steps=1))
        assert read_results(tmp_path).study.seeds == (0, 2**63 - 1)

    def test_as_plain_data_and_back(self):
        plain = json.loads(json.dumps(SMALL.plain()))
        assert FairnessStudy.from_plain(plain) == SMALL
        for wrong in ({}, plain | {"extra": 1}, plain | {"experiment": "other"}, plain | {"seeds": 3}):
            with pytest.raises(pg.InputError, match="not the configuration of a fairness study"):
                FairnessStudy.from_plain(wrong)

    @pytest.mark.parametrize(
        "study",
        [
            FairnessStudy(),
            FairnessStudy(
                methods=("mgda", "mas-rr(10)"), seeds=(1,), steps=9, gaps="means", scaling="train", tf32=False
            ),
        ],
    )
    def test_its_command_makes_it(self, study, monkeypatch, tmp_path):
        seen = []
        monkeypatch.setitem(
            STUDIES, "fairness", replace(FAIRNESS, run=lambda made, *_, **__: seen.append(made) or 1 / 0)
        )
        with pytest.raises(ZeroDivisionError):
            CliRunner().invoke(app, shlex.split(study.command())[1:], catch_exceptions=False)
        assert seen == [study]

    def test_where_no_command_makes_it_there_is_a_call(self):
        call = SMALL.command().removeprefix("paretograd.experiments.fairness.run_fairness")
        assert eval(call, {"FairnessStudy": FairnessStudy, "FOLDER": 0}) == (SMALL, 0)

    def test_seeds_as_written(self):
        assert FairnessStudy.from_options(seeds="24").seeds == (24,)
        assert FairnessStudy.from_options(seeds="24, 42").seeds == (24, 42)
        with pytest.raises(pg.InputError, match="such as 24,42"):
            FairnessStudy.from_options(seeds="many")
