"""A study that is killed, interrupted or damaged at any moment, and what resuming makes of it: the same bytes."""

from __future__ import annotations

import json
import os
import pickle
import random
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.killing import Killed, Moments, results_in

from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError
from paretograd.experiments import Method, Study, Watch, run_study
from paretograd.experiments.folder import write_text
from paretograd.experiments.synthetic import run as run_module

#: One rule of each kind: without a state, with a position, and with a generator of random numbers.
RULES = ("mgda", "mas-rand", "rgw")
STUDY = Study(
    problem="vlmop2", methods=tuple(Method(rule, "0.01") for rule in RULES), seeds=(24, 42), steps=60, stop_gamma=0.0
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run_study(STUDY, folder)
    return results_in(folder)


class After(Watch):
    """Does something once, when a method has taken some steps."""

    def __init__(self, label: str, steps: int, action) -> None:
        self.label, self.count, self.action, self.now = label, steps, action, ""

    def method(self, label: str, resumed_at: int) -> None:
        self.now = label

    def steps(self, taken: int, running: int, gamma: float) -> None:
        if self.now == self.label and taken >= self.count and self.action is not None:
            action, self.action = self.action, None
            action()


def stopped(folder: Path, label: str = "MAS-Rand", steps: int = 20) -> None:
    """Run the study, and press Ctrl-C there."""
    press = After(label, steps, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_study(STUDY, folder, watch=press)


@pytest.mark.slow
def test_kill_9_at_random_moments(tmp_path):
    """A real process, killed again and again while it works, ends with the bytes of one that was not."""
    folder = tmp_path / "killed"
    study = replace(
        STUDY, methods=tuple(Method(rule) for rule in RULES), steps=5000, stop_norm=0.0, parameters={"n": 4}
    )
    command = [sys.executable, "-m", "paretograd", *shlex.split(study.command())[1:], "--out", str(folder)]
    command += ["--no-report", "--checkpoint-every", "0.02", "--resume"]
    moments, kills = random.Random(0), 0
    for _ in range(3):
        seen = time.time_ns()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        config = folder / "config.json"
        while process.poll() is None and not (config.exists() and config.stat().st_mtime_ns > seen):
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.5))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stderr.close()
    assert kills >= 2
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads((folder / "config.json").read_text())["sessions"]) >= kills
    run_study(study, tmp_path / "undisturbed")
    assert results_in(folder) == results_in(tmp_path / "undisturbed")


def test_killed_at_every_write(tmp_path, monkeypatch, undisturbed):
    """Before and after every fsync and every rename: whatever is there can be resumed, and comes out the same."""
    moments = Moments()
    monkeypatch.setattr(os, "fsync", moments.deadly(os.fsync))
    monkeypatch.setattr(Path, "replace", moments.deadly(Path.replace))
    for fatal in moments.one_after_another(
        lambda fatal: partial(run_study, STUDY, tmp_path / str(fatal), checkpoint_every=0.0), dense=12, stride=5
    ):
        assert results_in(tmp_path / str(fatal)) == undisturbed
    assert fatal > 40


def test_overwriting_killed_half_way_leaves_no_mixture(tmp_path, monkeypatch):
    """The old study loses its results before the new one has a configuration."""
    run_study(STUDY, tmp_path)
    other = replace(STUDY, steps=50)
    with monkeypatch.context() as patch:
        patch.setattr("paretograd.experiments.folder._write_config", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run_study(other, tmp_path, overwrite=True)
    with pytest.raises(InputError, match="steps: 60 there, 50 here"):
        run_study(other, tmp_path, resume=True)
    run_study(other, tmp_path, overwrite=True)
    assert json.loads((tmp_path / "config.json").read_text())["study"]["steps"] == 50


@pytest.mark.parametrize("label", ["MGDA", "MAS-Rand", "RGW"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_save_first(tmp_path, undisturbed, label, number):
    """Ctrl-C and the polite kill: a checkpoint of that very step, then KeyboardInterrupt; handlers are put back."""
    before = signal.getsignal(number)
    press = After(label, 20, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run_study(STUDY, tmp_path, watch=press)
    assert signal.getsignal(number) is before
    [checkpoint] = (tmp_path / "checkpoints").iterdir()
    assert read_arrays(checkpoint)["step"] >= 20
    run_study(STUDY, tmp_path, resume=True)
    assert results_in(tmp_path) == undisturbed


def test_a_second_interrupt_does_not_wait(tmp_path, undisturbed):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_study(STUDY, tmp_path, watch=After("MAS-Rand", 20, twice))
    assert not (tmp_path / "checkpoints").exists()
    run_study(STUDY, tmp_path, resume=True)
    assert results_in(tmp_path) == undisturbed


def test_a_method_that_is_done_is_not_run_again(tmp_path, monkeypatch, undisturbed):
    stopped(tmp_path)
    run: list[str] = []
    original = run_module._run_method
    monkeypatch.setattr(run_module, "_run_method", lambda *given: (run.append(given[2]), original(*given))[1])
    run_study(STUDY, tmp_path, resume=True)
    run_study(STUDY, tmp_path, resume=True)
    assert run == ["MAS-Rand", "RGW"]
    assert results_in(tmp_path) == undisturbed


def test_a_kill_between_trajectory_and_checkpoint(tmp_path, undisturbed):
    """The trajectory counts, and the checkpoint and what a killed write left go."""
    run_study(STUDY, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mgda.npz").write_bytes(b"stale")
    (tmp_path / "trajectories" / ".rgw.npz.123.part").write_bytes(b"half")
    run_study(STUDY, tmp_path, resume=True)
    assert results_in(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 61}, "steps: 60 there, 61 here"),
        ({"seeds": (24,)}, r"seeds: \[24, 42\] there, \[24\] here"),
        ({"methods": STUDY.methods[:2]}, r"methods: mgda \(lr 0.01\), mas-rand \(lr 0.01\), rgw \(lr 0.01\) there"),
        ({"parameters": {"n": 5}}, 'parameters: {} there, {"n": 5} here'),
        ({"dtype": "float32", "stop_norm": 0.0}, r"dtype: .*\n  stop norm: 0.01 there, 0.0 here"),
    ],
)
def test_another_study_is_not_continued(tmp_path, change, message):
    stopped(tmp_path)
    before = results_in(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        run_study(replace(STUDY, **change), tmp_path, resume=True)
    assert "It was made by: paretograd run vlmop2" in str(caught.value)
    assert results_in(tmp_path) == before


class Exploit:
    def __reduce__(self):
        return (os.system, ("touch exploited",))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Exploit()))


def _objects(path: Path) -> None:
    np.savez(path, step=np.array([Exploit()], dtype=object))


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("losses.npy", bytes(10**7))


def _change(**values):
    def change(path: Path) -> None:
        write_arrays(path, read_arrays(path) | values, overwrite=True)

    change.__name__ = next(iter(values))
    return change


DAMAGES = [
    _truncate,
    _pickled,
    _objects,
    _flipped,
    _bomb,
    lambda path: path.write_bytes(b""),
    _change(step=10**9),
    _change(step="many"),
    _change(reasons='{"codes": ["WHY", "NOT"]}'),
    _change(reasons="{}"),
    _change(aggregator='{"position": -1}'),
    _change(settings="[]"),
    _change(losses=np.zeros((3, 3))),
    _change(extra=1),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_<>"))
def test_a_damaged_checkpoint_is_refused_and_can_be_rerun(tmp_path, monkeypatch, undisturbed, damage):
    monkeypatch.chdir(tmp_path)
    stopped(tmp_path / "s")
    checkpoint = tmp_path / "s" / "checkpoints" / "mas-rand.npz"
    damage(checkpoint)
    with pytest.raises(InputError, match=r"mas-rand\.npz cannot be used.*(\n.*)*--resume runs MAS-Rand from its start"):
        run_study(STUDY, tmp_path / "s", resume=True)
    assert not (tmp_path / "exploited").exists()
    checkpoint.unlink()
    run_study(STUDY, tmp_path / "s", resume=True)
    assert results_in(tmp_path / "s") == undisturbed


def test_points_that_are_not_finite(tmp_path):
    stopped(tmp_path)
    checkpoint = tmp_path / "checkpoints" / "mas-rand.npz"
    points = read_arrays(checkpoint)["points"]
    points[-1] = np.nan
    _change(points=points)(checkpoint)
    with pytest.raises(InputError, match="cannot be used"):
        run_study(STUDY, tmp_path, resume=True)


@pytest.mark.parametrize("damage", [_truncate, _pickled, lambda path: path.write_bytes(b"")])
def test_a_damaged_trajectory_is_refused_and_can_be_rerun(tmp_path, undisturbed, damage):
    run_study(STUDY, tmp_path)
    damage(tmp_path / "trajectories" / "mgda.npz")
    with pytest.raises(InputError, match="Remove it, and --resume runs MGDA again"):
        run_study(STUDY, tmp_path, resume=True)
    (tmp_path / "trajectories" / "mgda.npz").unlink()
    run_study(STUDY, tmp_path, resume=True)
    assert results_in(tmp_path) == undisturbed


def test_other_versions_are_told(tmp_path):
    """Resuming with another torch is allowed, and both are on record."""
    stopped(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sessions"][0]["versions"]["torch"] = "1.0"
    write_text(tmp_path / "config.json", [json.dumps(config)])
    told: list[str] = []
    watch = Watch()
    watch.note = told.append  # type: ignore[method-assign]
    run_study(STUDY, tmp_path, resume=True, watch=watch)
    assert "last digits may differ" in told[0]
    assert len(json.loads((tmp_path / "config.json").read_text())["sessions"]) == 2
