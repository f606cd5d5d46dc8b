"""The fairness study on disk: its folder, its files, and how a killed or interrupted study resumes."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.fairness import ADULT, SMALL, example, run
from support.killing import Press, killed_at_every_write, results_in

import paretograd as pg
from paretograd.descent import Stop
from paretograd.disk import read_arrays, write_arrays
from paretograd.experiments import Method, Study, run_study
from paretograd.experiments.fairness import (
    MethodResult,
    load_classifiers,
    read_results,
)
from paretograd.experiments.fairness import run as run_module
from paretograd.experiments.fairness.result import kept_steps
from paretograd.experiments.progress import Lines
from paretograd.problems.fairness import fairness_metrics

pytestmark = pytest.mark.usefixtures("small")


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
        write_arrays(tmp_path / "m.npz", read_arrays(tmp_path / "m.npz") | change, overwrite=True)
        with pytest.raises(pg.InputError, match=r"m\.npz (is damaged|holds no method)"):
            MethodResult.load(tmp_path / "m.npz")

    def test_without_classifiers(self, done, tmp_path):
        with pytest.raises(pg.InputError, match="there is no file"):
            load_classifiers(done, "DualProj")
        write_arrays(tmp_path / "checkpoints" / "mgda.final.npz", {"parameters": np.zeros(3)}, overwrite=True)
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
        assert read_arrays(tmp_path / "s" / "checkpoints" / "mas-rand.npz")["step"] >= 5
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
        state = read_arrays(path)
        if damage == "nan":
            write_arrays(path, state | {"parameters": state["parameters"] * np.nan}, overwrite=True)
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
