"""The fairness study on disk: protocol, folder, table, figures, commands, and what is left after a kill."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from support.adult import made_adult
from support.killing import Press, killed_at_every_write, results_in
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.console import shown
from paretograd.descent import Stop, archive
from paretograd.experiments import Method, Study, run_study
from paretograd.experiments.fairness import (
    FairnessResults,
    FairnessStudy,
    MethodResult,
    ensemble,
    load_classifiers,
    read_results,
    run_fairness,
)
from paretograd.experiments.fairness import run as run_module
from paretograd.experiments.fairness.__main__ import main
from paretograd.experiments.fairness.report import FAIRNESS, write_fairness
from paretograd.experiments.fairness.result import kept_steps, result_of
from paretograd.experiments.fairness.study import PUBLISHED, OwnData
from paretograd.experiments.fairness.table import close, setting, write
from paretograd.experiments.progress import Bars, Lines, Pace
from paretograd.experiments.registry import STUDIES
from paretograd.experiments.terminal import run_program
from paretograd.problems.fairness import Adult, Rows, fairness_metrics, load_adult

ADULT = made_adult(300)
SMALL = FairnessStudy(methods=("mgda", "mas-rand", "upgrad*"), seeds=(24, 100), steps=12, width=4, lr=0.05, stop=0.0)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Few rows take the place of Adult, unless a folder is named, and are filled up with few zeros."""
    patch.setattr(ensemble, "_SLICE", 256)
    patch.setattr(
        run_module, "load_adult", lambda folder, scaling: ADULT if folder is None else load_adult(folder, scaling)
    )


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


def run(folder: Path, study: FairnessStudy = SMALL, **options: object) -> FairnessResults:
    return run_fairness(study, folder, **({"device": "cpu"} | options))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return run(tmp_path_factory.mktemp("done") / "study").folder


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


class TestFolder:
    def test_holds_all(self, done):
        names = sorted(path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file())
        assert names == [
            "checkpoints/.gitignore", "checkpoints/mas-rand.final.npz", "checkpoints/mgda.final.npz",
            "checkpoints/upgrad-star.final.npz", "config.json", "methods/mas-rand.npz", "methods/mgda.npz",
            "methods/upgrad-star.npz", "table.csv", "table.md",
        ]  # fmt: skip
        config = json.loads((done / "config.json").read_text())
        assert config["study"] == json.loads(json.dumps(SMALL.plain()))
        [session] = config["sessions"]
        assert session["device"].startswith("CPU")
        assert set(session["versions"]) == {"python", "torch", "numpy", "paretograd"}
        assert set(config["durations"]) == {"MGDA", "MAS-Rand", "UPGrad*"}
        for duration in config["durations"].values():
            assert duration["ms_per_step"] == pytest.approx(1e3 * duration["seconds"] / duration["steps"], abs=0.1)

    def test_results_are_the_training_s(self, done):
        found = read_results(done).methods["UPGrad*"]
        training = run_module.Training(SMALL.setting(), pg.get("upgrad*"), ADULT.train)
        training.advance(12)
        assert found.steps.tolist() == list(range(12))
        assert np.array_equal(found.losses, training.records["losses"])
        assert np.array_equal(found.gamma, training.records["gamma"][..., 0])
        assert found.reasons == (Stop.STEPS, Stop.STEPS)
        models = load_classifiers(done, "UPGrad*")
        for part in ("train", "validation", "test"):
            rows = getattr(ADULT, part)
            for model, metrics in zip(models, found.judged(part), strict=True):
                with torch.no_grad():
                    expected = fairness_metrics(model(rows.features)[:, 0], rows.labels, rows.groups)
                assert repr(metrics) == repr(expected)  # a share of nobody is NaN

    def test_a_method_of_forty_thousand_steps_stays_small(self, tmp_path):
        kept = kept_steps(40_000, [40_000, 40_000, 31_234, 7])
        assert {0, 1, 2, 7, 31_234, 39_999} <= set(kept.tolist())
        assert np.diff(kept).max() <= 54
        K = len(kept)
        shapes = {"losses": (K, 4, 3), "gamma": (K, 4), "norms": (K, 4), "weights": (K, 4, 3)}
        full = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        made = replace(example(), steps=kept, **full)
        made.save(tmp_path / "m.npz")
        assert (tmp_path / "m.npz").stat().st_size < 200_000
        assert MethodResult.load(tmp_path / "m.npz").steps.tolist() == kept.tolist()

    def test_short_runs_keep_every_step(self):
        assert kept_steps(1, [0]).tolist() == [0]
        assert kept_steps(200, [200]).tolist() == list(range(200))

    @pytest.mark.parametrize(
        "change",
        [{"format": "other"}, {"extra": 1}, {"losses": np.zeros((2, 2))}, {"reasons": ["WHY"] * 4}, {"steps": 3}],
        ids=lambda change: next(iter(change)),
    )
    def test_a_result_that_is_none(self, change, tmp_path):
        example().save(tmp_path / "m.npz")
        archive.write(tmp_path / "m.npz", archive.read(tmp_path / "m.npz") | change, overwrite=True)
        with pytest.raises(pg.InputError, match=r"m\.npz (is damaged|holds no method)"):
            MethodResult.load(tmp_path / "m.npz")

    def test_without_classifiers(self, done, tmp_path):
        with pytest.raises(pg.InputError, match="there is no file"):
            load_classifiers(done, "DualProj")
        archive.write(tmp_path / "checkpoints" / "mgda.final.npz", {"parameters": np.zeros(3)}, overwrite=True)
        with pytest.raises(pg.InputError, match="holds no classifiers"):
            load_classifiers(tmp_path, "MGDA")

    def test_a_folder_that_holds_no_study(self, tmp_path):
        with pytest.raises(pg.InputError, match="holds no study"):
            read_results(tmp_path)

    def test_studies_of_two_kinds_keep_apart(self, done, tmp_path):
        other = Study(problem="vlmop2", methods=(Method("mgda"),), steps=3)
        shutil.copytree(done, tmp_path / "s")
        for options in ({}, {"resume": True}):
            with pytest.raises(pg.InputError, match="holds another study"):
                run_study(other, tmp_path / "s", **options)
        run_study(other, tmp_path / "s", overwrite=True)
        assert not list((tmp_path / "s" / "methods").iterdir())
        with pytest.raises(pg.InputError, match=r'experiment: null there, "fairness" here'):
            run(tmp_path / "s", resume=True)
        run(tmp_path / "s", replace(SMALL, methods=("mgda",), steps=1), overwrite=True)
        assert not list((tmp_path / "s" / "trajectories").iterdir())


class TestResume:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_loses_nothing(self, tmp_path, done, number):
        """A checkpoint of that step, then KeyboardInterrupt; the rest ends with the same bytes, schedule included."""
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "s", watch=Press("MAS-Rand", 5, number))
        assert archive.read(tmp_path / "s" / "checkpoints" / "mas-rand.npz")["step"] >= 5
        assert "Not trained yet: MAS-Rand, UPGrad" in (tmp_path / "s" / "table.md").read_text()
        run(tmp_path / "s", resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        config = json.loads((tmp_path / "s" / "config.json").read_text())
        assert len(config["sessions"]) == 2
        assert config["durations"]["MAS-Rand"]["steps"] == 12

    def test_killed_at_every_write(self, tmp_path):
        study = replace(SMALL, methods=("mgda", "mas-rand"), steps=6)
        assert killed_at_every_write(run, study, tmp_path, dense=9, stride=3) > 12

    def test_a_method_that_is_done_is_not_trained_again_and_needs_no_data(self, tmp_path, monkeypatch, done):
        shutil.copytree(done, tmp_path / "s")
        monkeypatch.setattr(run_module, "Training", lambda *_: 1 / 0)
        monkeypatch.setattr(run_module, "load_adult", lambda *_: 1 / 0)
        before = (tmp_path / "s" / "config.json").read_bytes()
        (tmp_path / "s" / "checkpoints" / "mgda.npz").write_bytes(b"stale")
        run(tmp_path / "s", resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        assert (tmp_path / "s" / "config.json").read_bytes() == before

    def test_missing_data_are_told_before_anything_is_written(self, tmp_path):
        with pytest.raises(pg.DataError, match=r"empty holds no adult\.test and no adult\.data"):
            run(tmp_path / "s", data_dir=tmp_path / "empty")
        assert not (tmp_path / "s").exists()

    def test_nothing_is_overwritten_unless_asked(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        with pytest.raises(pg.InputError, match="this study, finished"):
            run(tmp_path / "s")
        with pytest.raises(pg.InputError, match="steps: 12 there, 13 here"):
            run(tmp_path / "s", replace(SMALL, steps=13), resume=True)
        with pytest.raises(pg.InputError, match=r'methods: \["mgda", "mas-rand", "upgrad\*"\] there, \["mgda"\] here'):
            run(tmp_path / "s", replace(SMALL, methods=("mgda",)), resume=True)
        assert results_in(tmp_path / "s") == results_in(done)

    @pytest.mark.parametrize("damage", ["truncate", "nan"])
    def test_a_damaged_checkpoint_is_refused_and_can_be_rerun(self, tmp_path, done, damage):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, watch=Press("MAS-Rand", 5))
        path = tmp_path / "checkpoints" / "mas-rand.npz"
        state = archive.read(path)
        if damage == "nan":
            archive.write(path, state | {"parameters": state["parameters"] * np.nan}, overwrite=True)
        else:
            path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(
            pg.InputError, match=r"(?s)mas-rand\.npz cannot be used.*--resume runs MAS-Rand from its start"
        ):
            run(tmp_path, resume=True)
        path.unlink()
        run(tmp_path, resume=True)
        assert results_in(tmp_path) == results_in(done)

    def test_a_damaged_result_is_refused(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        shutil.copy(tmp_path / "s/methods/mgda.npz", tmp_path / "s/methods/mas-rand.npz")
        with pytest.raises(pg.InputError, match=r"is of another study: MGDA.*--resume runs MAS-Rand again"):
            run(tmp_path / "s", resume=True)

    def test_another_device_or_version_is_told(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, watch=Press("MGDA", 2))
        config = json.loads((tmp_path / "config.json").read_text())
        config["sessions"][0] |= {"device": "NVIDIA H200", "versions": {}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        told: list[str] = []
        run(tmp_path, resume=True, watch=Lines(told.append))
        assert "other versions" in told[0]
        assert "another device (NVIDIA H200)" in told[1]

    @pytest.mark.parametrize(("device", "message"), [("gpu", "use one of auto, cpu, cuda"), ("cuda", "sees no GPU")])
    def test_devices(self, tmp_path, monkeypatch, device, message):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(pg.ParameterError, match=message):
            run(tmp_path / "s", device=device)
        with pytest.raises(pg.ParameterError, match="seconds, finite"):
            run(tmp_path / "s", checkpoint_every=-1.0)


def example(label: str = "MGDA") -> MethodResult:
    """Four runs of a method, with made numbers."""
    test = np.zeros((4, 7))
    test[:, :3] = [[0.75, 0.60, 0.08], [0.76, 0.61, 0.07], [0.77, 0.62, 0.06], [0.76, 0.61, 0.07]]
    return MethodResult(
        label=label,
        seeds=(24, 42, 64, 100),
        reasons=(Stop.GAMMA, Stop.GAMMA, Stop.STEPS, Stop.NOT_FINITE),
        lengths=np.array([1, 2, 2, 1]),
        conflicts=np.array([0, 1, 0, 2]),
        steps=np.arange(3),
        losses=np.ones((3, 4, 3), np.float32),
        gamma=np.full((3, 4), 0.5, np.float32),
        norms=np.ones((3, 4), np.float32),
        weights=np.ones((3, 4, 3), np.float32),
        finals=np.arange(12.0).reshape(4, 3),
        train=test,
        validation=test,
        test=test,
    )


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
        results = Path(__file__).parent.parent / "results" / "fairness"
        shutil.copytree(results, tmp_path / "s")
        study = read_results(tmp_path / "s").study
        assert study.own_data is None
        assert run(tmp_path / "s", FairnessStudy(), resume=True).study == study
        assert (tmp_path / "s" / "table.md").read_bytes() == (results / "table.md").read_bytes()


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


def interrupted(*_, **__):
    raise KeyboardInterrupt


class TestCommands:
    ARGUMENTS = ("reproduce", "fairness", "--methods", "mgda", "--seeds", "24", "--steps", "2", "--device", "cpu")

    @pytest.fixture
    def command(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(run_module, "load_adult", lambda data_dir, scaling: ADULT)
        return lambda *given: CliRunner().invoke(app, list(given))

    def test_reproduce_and_report(self, command, tmp_path):
        first = command(*self.ARGUMENTS)
        assert first.exit_code == 0, first.output
        assert first.stderr == ""
        assert all(word in first.stdout for word in ("MGDA", "accuracy", "DEO1", "runs/fairness/report.html"))
        assert (tmp_path / "runs/fairness/figures/fairness_mixed_seed24.png").exists()  # of the seed that there is
        assert max(map(len, map(str.rstrip, first.stdout.splitlines()))) <= 100
        again = command(*self.ARGUMENTS, "--resume", "--no-report")
        assert again.stdout.splitlines()[:12] == first.stdout.splitlines()[:12]
        (tmp_path / "runs/fairness/report.html").unlink()
        drawn = command("report", "runs/fairness")
        assert (drawn.exit_code, drawn.stdout.splitlines()[-1]) == (0, "runs/fairness/report.html")
        assert (tmp_path / "runs/fairness/report.html").exists()

    def test_report_of_a_synthetic_study(self, command, tmp_path):
        study = ("run", "vlmop2", "--aggregators", "mgda", "--steps", "5", "--lr", "0.1", "--no-report")
        assert command(*study).exit_code == 0
        drawn = command("report", "runs/vlmop2")
        assert drawn.stdout.splitlines()[-1] == "runs/vlmop2/report.html"
        (tmp_path / "runs/vlmop2/trajectories/mgda.npz").unlink()
        unfinished = command("report", "runs/vlmop2")
        assert unfinished.exit_code == 2
        assert "is not finished; go on with: paretograd run vlmop2" in unfinished.stderr

    @pytest.mark.parametrize("width", [80, 120])
    def test_the_table_fits_the_terminal(self, width, tmp_path, capsys):
        study = FairnessStudy(methods=("mgda", "mas-rr(2500)"))
        ends = {"lengths": np.array([12_345, *[40_000] * 3]), "reasons": (Stop.GAMMA, *[Stop.STEPS] * 3)}
        methods = {label: replace(example(label), **ends) for label in study.labels()}
        results = FairnessResults(study, tmp_path, methods)
        Console(width=width).print(shown(FAIRNESS.summary(results, width)))
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("MAS-RR(2.5k)  "))
        assert "12,345-40,000" in row
        assert ("(-0.25)" in row) == (width == 120)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("vlmop2", "--gaps", "means"), "reproduce vlmop2 has no --gaps"),
            (("fairness", "--authors-lr"), "reproduce fairness has no --authors-lr"),
            (("fairness", "--gaps", "both"), "use sums or means"),
            (("fairness", "--seeds", "x"), "such as 24,42"),
            (("fairness", "--methods", "mgad"), "Did you mean 'mgda'"),
            (("fairness", "--device", "tpu"), "use one of auto, cpu, cuda"),
            (("fairness", "--resume", "--overwrite"), "ask for one of them"),
        ],
    )
    def test_mistakes(self, command, tmp_path, arguments, message):
        found = command("reproduce", *arguments)
        assert found.exit_code == 2
        assert found.stderr.startswith("error: ")
        assert message in found.stderr
        assert list(tmp_path.iterdir()) == []

    def test_report_of_nothing(self, command):
        assert "config.json cannot be read" in command("report", "nowhere").stderr

    def test_an_interrupt_says_how_to_go_on(self, command, monkeypatch):
        monkeypatch.setitem(STUDIES, "fairness", replace(FAIRNESS, run=interrupted))
        found = command(*self.ARGUMENTS, "--data-dir", "my data")
        assert found.exit_code == 130
        assert "--steps 2 --data-dir 'my data' --device cpu --out runs/fairness --resume" in found.stderr

    def test_without_the_extra_of_the_report(self, command, monkeypatch):
        def missing(*_):
            raise pg.MissingExtraError("figures need matplotlib")

        monkeypatch.setattr("paretograd.experiments.fairness.report.write_fairness", missing)
        found = command(*self.ARGUMENTS)
        assert found.exit_code == 0
        assert "no report: figures need matplotlib; then run: paretograd report runs/fairness" in found.stderr

    def test_the_module_writes_the_same_folder(self, command, tmp_path, capsys):
        assert command(*self.ARGUMENTS, "--no-report").exit_code == 0
        options = [*self.ARGUMENTS[2:], "--out", "other"]
        assert main(options) == 0
        told = capsys.readouterr().out
        assert "[1/1] MGDA: done, 2 steps" in told
        assert "paretograd report other" in told
        assert results_in(tmp_path / "other") == results_in(tmp_path / "runs/fairness")
        assert main(options) == 2
        assert "this study, finished" in capsys.readouterr().err
        assert main([*options, "--resume"]) == 0

    def test_the_module_after_an_interrupt(self, capsys):
        assert run_program(replace(FAIRNESS, run=interrupted), []) == 130
        assert "with --resume goes on" in capsys.readouterr().err

    def test_the_module_needs_no_extra(self):
        code = (
            "import sys\n"
            "for extra in ('typer', 'rich', 'matplotlib', 'plotly', 'pandas'): sys.modules[extra] = None\n"
            "from paretograd.experiments.fairness.__main__ import main\n"
            "sys.exit(main(['--data-dir', '/nowhere', '--out', '/nowhere/study']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: /nowhere holds no adult.test")


class TestProgress:
    def test_time_left(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("paretograd.experiments.progress.time.monotonic", lambda: now[0])
        pace = Pace()
        pace.begin(3, 1000)
        assert pace.left_in_all() == ""
        pace.method(500)
        assert pace.left_here() == ""
        now[0] = 110.0
        pace.steps(600)
        assert pace.seconds_per_step == 0.1
        assert (pace.left_here(), pace.left_in_all()) == ("0:00:40", "0:04:00")
        pace.finished()
        assert pace.left_in_all() == ""

    def test_lines(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        told: list[str] = []
        lines = Lines(told.append)
        lines.begin(["MGDA", "Mean"], 1000)
        lines.finished("MGDA", before=True)
        lines.method("Mean", 10)
        lines.losses([0.5, 0.25, 0.125])
        lines.steps(20, 4, 0.1)
        now[0] = 120.0
        lines.steps(30, 1, 0.1)
        lines.finished("Mean", before=False)
        assert told == [
            "[1/2] MGDA: was done before",
            "[2/2] Mean: goes on after step 10",
            "[2/2] Mean: step 30 of 1,000, 1 run, losses 0.50000 0.25000 0.12500, gamma 0.10000, 1000.0 ms a step, "
            "at most 0:16:10 left, 0:16:10 for all",
            "[2/2] Mean: done, 30 steps, 1000.0 ms a step",
        ]

    def test_bars(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        with Bars() as bars:
            bars.begin(["MGDA", "Mean"], 10)
            bars.method("MGDA", 0)
            bars.losses([0.5, 0.25, 0.125])
            bars.steps(3, 2, 0.1)
            states = [task.fields["state"] for task in bars._bars.tasks]
            assert re.fullmatch(r"0 of 2, at most \d:\d\d:\d\d left", states[0])
            assert states[1] == "step 3, 2 runs, f 0.500 0.250 0.125, gamma 0.1000"
            bars.finished("MGDA", before=False)
            assert bars._bars.tasks[0].fields["state"] == "1 of 2"
