"""The federated study on disk: its folder, its files, and how a killed or interrupted study resumes."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.federated import ATTACK, DATA, SMALL, example, run
from support.killing import Press, killed_at_every_write, results_in

import paretograd as pg
from paretograd.disk import read_arrays, write_arrays
from paretograd.experiments.federated import (
    Run,
    RunResult,
    read_results,
)
from paretograd.experiments.federated import run as run_module
from paretograd.experiments.federated.training import Training
from paretograd.problems.cifar10 import Images

NO_GPU = {"condition": not torch.cuda.is_available(), "reason": "there is no GPU"}


class TestFolder:
    def test_holds_all(self, done):
        names = sorted(path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file())
        assert names == [
            "checkpoints/.gitignore", "config.json", "runs/capped-mgda-c-0.1-no-attack-seed-0.npz",
            "runs/capped-mgda-c-0.1-rho-0.15-seed-0.npz", "runs/mgda-no-attack-seed-0.npz",
            "runs/mgda-rho-0.15-seed-0.npz", "table.csv", "table.md",
        ]  # fmt: skip
        config = json.loads((done / "config.json").read_text())
        assert config["study"] == json.loads(json.dumps(SMALL.plain()))
        [session] = config["sessions"]
        assert session["device"].startswith("CPU")
        assert set(session["versions"]) == {"python", "torch", "numpy", "paretograd"}
        assert set(config["durations"]) == set(SMALL.labels())
        assert all(found["steps"] == 3 for found in config["durations"].values())

    @pytest.mark.parametrize("rule", ["dualproj*", "upgrad*", "mgda", "mean", "krum"])
    def test_conflicts_are_counted_beyond_rounding(self, federation, rule):
        """A direction that is orthogonal to a gradient is so to rounding, and in no conflict."""
        training = Training(replace(SMALL, epochs=3), Run(rule, ATTACK, 0), federation)
        training.advance(3)
        slopes, norms = training.records[:, 2], training.records[:, 1]
        assert training.conflicts <= int((slopes < 0.0).sum())
        assert training.conflicts >= int((slopes < -1e-3 * norms).sum())
        if rule in ("dualproj*", "upgrad*", "mgda"):
            assert training.conflicts == 0

    def test_results_are_the_training_s(self, done, federation):
        case = Run("mgda", ATTACK, 0)
        found = read_results(done).runs[case]
        training = Training(SMALL, case, federation)
        training.advance(3)
        assert found.epochs.tolist() == [0, 1, 2]
        assert np.array_equal(np.stack([found.losses, found.norms, found.slopes, found.gamma], 1),
                              training.records.astype(np.float32))  # fmt: skip
        assert found.looks.tolist() == [0, 2, 3]
        assert np.array_equal(found.weights, training.weights[[0, 2]].astype(np.float16))
        assert found.accuracy == pytest.approx(training.accuracies[-1].mean())

    def test_a_run_of_a_thousand_epochs_stays_small(self, tmp_path):
        example(0.5).save(tmp_path / "r.npz")
        assert (tmp_path / "r.npz").stat().st_size < 18_000
        assert RunResult.load(tmp_path / "r.npz").accuracy == pytest.approx(0.5)

    @pytest.mark.parametrize(
        "change",
        [{"format": "other"}, {"extra": 1}, {"losses": np.zeros((2, 2))}, {"reason": "WHY"}, {"epochs": 3},
         {"accuracies": np.full((101, 10), np.nan)}, {"overall": "good"}],
        ids=lambda change: next(iter(change)),
    )  # fmt: skip
    def test_a_result_that_is_none(self, change, tmp_path):
        example(0.5).save(tmp_path / "r.npz")
        write_arrays(tmp_path / "r.npz", read_arrays(tmp_path / "r.npz") | change, overwrite=True)
        with pytest.raises(pg.InputError, match=r"r\.npz (is damaged|holds no run)"):
            RunResult.load(tmp_path / "r.npz")

    def test_a_folder_that_holds_no_study(self, tmp_path):
        with pytest.raises(pg.InputError, match="holds no study"):
            read_results(tmp_path)


class TestResume:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_loses_nothing(self, tmp_path, done, number):
        """A checkpoint of that epoch, then KeyboardInterrupt; the rest ends with the same bytes."""
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "s", watch=Press("Capped", 1, number))
        [path] = (tmp_path / "s" / "checkpoints").glob("*.npz")
        assert read_arrays(path)["0_epoch"] >= 1
        assert "Not trained yet: 3 of 4 runs." in (tmp_path / "s" / "table.md").read_text()
        run(tmp_path / "s", resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        assert len(json.loads((tmp_path / "s" / "config.json").read_text())["sessions"]) == 2

    def test_killed_at_every_write(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), epochs=2, seeds=(0, 1))
        assert killed_at_every_write(run, study, tmp_path, dense=3, stride=3) > 5

    def test_a_run_that_is_done_is_not_trained_again_and_needs_no_data(self, tmp_path, monkeypatch, done):
        shutil.copytree(done, tmp_path / "s")
        monkeypatch.setattr(run_module, "Training", lambda *_: 1 / 0)
        monkeypatch.setattr(run_module, "load_cifar10", lambda *_: 1 / 0)
        before = (tmp_path / "s" / "config.json").read_bytes()
        run(tmp_path / "s", data=None, resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        assert (tmp_path / "s" / "config.json").read_bytes() == before

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(**NO_GPU))])
    def test_seeds_that_are_trained_together_end_as_alone(self, tmp_path, device):
        """On a GPU also in the sense that what runs side by side has nothing in common that it writes to."""
        epochs = 100 if device == "cuda" else 3
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1), epochs=epochs)
        together = run(tmp_path / "together", study, device=device).folder
        for seed in study.seeds:
            alone = run(tmp_path / str(seed), replace(study, seeds=(seed,)), device=device).folder
            [path] = (alone / "runs").iterdir()
            assert path.read_bytes() == (together / "runs" / path.name).read_bytes()

    def test_a_run_whose_file_was_removed_is_trained_again(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1))
        before = results_in(run(tmp_path, study).folder)
        next((tmp_path / "runs").glob("*seed-1.npz")).unlink()
        assert results_in(run(tmp_path, study, resume=True).folder) == before

    def test_images_of_one_s_own_are_known_again(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1))
        own = run(tmp_path, study, data=DATA)
        assert len(own.study.own_data) == 64
        assert "not the paper's protocol (seeds 0,1, " in (tmp_path / "table.md").read_text()
        assert "images of one's own" in (tmp_path / "table.md").read_text()
        assert own.study.command().endswith(", FOLDER, data=DATA)")
        assert read_results(tmp_path).study == own.study
        run(tmp_path, study, data=DATA, resume=True)
        other = DATA._replace(test=Images(DATA.test.pixels.flip(0), DATA.test.labels))
        for changed in ({"data": other}, {}):
            with pytest.raises(pg.InputError, match="own data"):
                run(tmp_path, study, resume=True, **changed)

    def test_nothing_is_overwritten_unless_asked(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        with pytest.raises(pg.InputError, match="this study, finished"):
            run(tmp_path / "s")
        with pytest.raises(pg.InputError, match="epochs: 3 there, 4 here"):
            run(tmp_path / "s", replace(SMALL, epochs=4), resume=True)
        assert results_in(tmp_path / "s") == results_in(done)

    @pytest.mark.parametrize("damage", ["truncate", "nan", "shape", "epoch"])
    def test_a_damaged_checkpoint_is_refused(self, tmp_path, damage):
        study = replace(SMALL, methods=("mgda",), parts=("table",))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, study, watch=Press("MGDA", 1))
        [path] = (tmp_path / "checkpoints").glob("*.npz")
        state = read_arrays(path)
        changes = {"nan": {"0_parameters": state["0_parameters"] * np.nan}, "shape": {"0_weights": np.zeros(3)}}
        if damage == "truncate":
            path.write_bytes(path.read_bytes()[:100])
        else:
            write_arrays(path, state | changes.get(damage, {"0_epoch": 99}), overwrite=True)
        with pytest.raises(pg.InputError, match=r"(?s)cannot be used.*--resume runs MGDA, rho 0.15 from its"):
            run(tmp_path, study, resume=True)

    def test_a_result_of_another_run_is_refused(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        runs = tmp_path / "s" / "runs"
        shutil.copy(runs / "mgda-rho-0.15-seed-0.npz", runs / "mgda-no-attack-seed-0.npz")
        with pytest.raises(pg.InputError, match=r"of another study: MGDA, rho.*--resume runs MGDA, no attack"):
            run(tmp_path / "s", resume=True)

    def test_missing_data_are_told_before_anything_is_written(self, tmp_path):
        with pytest.raises(pg.DataError, match="empty holds neither"):
            run(tmp_path / "s", data=None, data_dir=tmp_path / "empty")
        assert not (tmp_path / "s").exists()
        assert not (tmp_path / "s").exists()
