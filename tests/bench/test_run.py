"""Running a task: search, report, resuming after a kill, several processes, and what users bring."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.killing import Press

from paretograd.bench.folder import TaskFolder
from paretograd.bench.protocol import Protocol, Setting
from paretograd.bench.roster import RULES, draw, label_of, make
from paretograd.bench.run import quality, run_task
from paretograd.bench.tasks import task_of
from paretograd.disk import read_arrays
from paretograd.errors import InputError, ParameterError, UnknownNameError

HERE = Path(__file__).parent.parent
TOY = "support.toy:Toy"
PROTOCOL = Protocol(TOY, trials=3, seeds=2)


def results(folder: Path) -> dict[str, dict[str, object]]:
    """All results, without the times."""
    found = {}
    for path in sorted((folder / "settings").glob("*.npz")):
        values = read_arrays(path)
        found[path.stem] = {name: value for name, value in values.items() if "seconds" not in name}
    return found


def same(first: Path, second: Path) -> bool:
    a, b = results(first), results(second)
    assert set(a) == set(b)
    assert a
    return all(
        np.array_equal(a[name][key], b[name][key], equal_nan=a[name][key].dtype.kind == "f")
        if isinstance(a[name][key], np.ndarray)
        else a[name][key] == b[name][key]
        for name in a
        for key in a[name]
    )


def test_search_chooses_on_validation_rows_and_reports_test_rows(tmp_path):
    place = run_task(PROTOCOL, tmp_path, rules=["mgda", "single"], device="cpu")
    task = task_of(TOY)
    assert place.done() == [
        Setting(rule, name) for rule in ("mgda", "single(0)", "single(1)") for name in ("adamw", "sgd")
    ]
    outcome = place.load(Setting("mgda", "sgd"))
    tuning = outcome.tuning
    assert tuning.trials == PROTOCOL.search(Setting("mgda", "sgd"), task)
    assert tuning.best == int(np.argmax([task.quality(row) for row in tuning.scores]))
    assert outcome.test.shape == outcome.validation.shape == (2, 2)
    assert not np.array_equal(outcome.test, outcome.validation)
    assert outcome.curves.losses.shape == (20, 2, 2)
    assert np.isfinite(outcome.curves.gamma).all()
    assert not list((place.path / "working").glob("*.npz"))  # nothing but locks is left


def test_networks_of_one_loss_are_chosen_by_its_metrics(tmp_path):
    """The other head is not trained: its errors are noise. Lower is better for both metrics of this task."""
    place = run_task(PROTOCOL, tmp_path, rules=["single", "mean"], device="cpu")
    for setting, outcome in place.outcomes().items():
        scores, k = outcome.tuning.scores, {"single(0)": 0, "single(1)": 1}.get(setting.rule)
        expected = -scores.mean(axis=1) if k is None else -scores[:, k]
        np.testing.assert_allclose(outcome.tuning.quality, expected, rtol=1e-12)
    assert quality(task_of("adult"), "single(1)", np.array([85.0, 3.0, 4.0, 70.0])) == 70.0  # has no metric
    assert np.isnan(quality(task_of(TOY), "single(0)", np.array([1.0, np.nan])))


def test_same_seed_same_numbers_and_nothing_is_done_twice(tmp_path):
    for name in ("one", "two"):
        run_task(PROTOCOL, tmp_path / name, rules=["mas-rand", "rlw"], device="cpu")
    assert same(tmp_path / "one" / "toy", tmp_path / "two" / "toy")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.npz")}
    run_task(PROTOCOL, tmp_path / "one", rules=["mas-rand", "rlw"], device="cpu")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.npz")}


def test_learning_rates_are_those_of_all_rules_and_dials_their_own():
    task = task_of(TOY)
    searches = [PROTOCOL.search(Setting(rule, "sgd"), task) for rule in ("mean", "cagrad", "stch")]
    assert len({tuple(trial.rate for trial in trials) for trials in searches}) == 1
    low, high = task.rates["sgd"]
    intervals = sorted(int(3 * np.log(trial.rate / low) / np.log(high / low)) for trial in searches[0])
    assert intervals == [0, 1, 2]  # one in each
    assert len({trial.rule for trial in searches[1]}) == 3
    assert {trial.rule for trial in searches[0]} == {"mean"}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_made_at_both_ends_of_its_dial(name):
    rng = np.random.default_rng(0)
    for u in (0.0, 1.0):
        for m in (2, 14):
            make(draw(name, u, m, rng), m, 0)
    assert label_of(name, 3)


def test_interrupt_and_resume(tmp_path):
    run_task(PROTOCOL, tmp_path / "whole", rules=["moco", "famo"], optimizers=["adamw"], device="cpu")
    for label, steps in (("moco", 3), ("famo", 35)):  # in the search, and among the reported networks
        with pytest.raises(KeyboardInterrupt):
            run_task(
                PROTOCOL,
                tmp_path / "parts",
                rules=["moco", "famo"],
                optimizers=["adamw"],
                device="cpu",
                watch=Press(label, steps),
            )
    run_task(PROTOCOL, tmp_path / "parts", rules=["moco", "famo"], optimizers=["adamw"], device="cpu")
    assert same(tmp_path / "whole" / "toy", tmp_path / "parts" / "toy")


@pytest.mark.slow
def test_kill_9_and_two_processes(tmp_path):
    """Two processes share a folder; one is killed, and its setting is taken over where it stood."""
    rules = "mgda,gradnorm,tuned-mean"
    protocol = ["--trials", "3", "--seeds", "2", "--steps", "150"]
    command = [sys.executable, "-m", "paretograd.bench", "run", TOY, "--rules", rules, *protocol, "--device", "cpu"]
    command += ["--checkpoint-every", "0.05", "--out", str(tmp_path / "shared")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    working = tmp_path / "shared" / "toy" / "working"
    with subprocess.Popen(command, **silent) as first:
        until = time.monotonic() + 60.0
        while not list(working.glob("*.npz")) and first.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        with subprocess.Popen(command, **silent) as second:
            first.send_signal(signal.SIGKILL)
            assert second.wait(timeout=300) == 0
    run_task(Protocol(TOY, trials=3, seeds=2, steps=150), tmp_path / "shared", rules=rules.split(","), device="cpu")
    run_task(Protocol(TOY, trials=3, seeds=2, steps=150), tmp_path / "alone", rules=rules.split(","), device="cpu")
    assert same(tmp_path / "shared" / "toy", tmp_path / "alone" / "toy")


def test_packed_runs_stay_when_a_rule_is_added(tmp_path):
    first = run_task(PROTOCOL, tmp_path, rules=["mean"], optimizers=["sgd"], device="cpu")
    first.pack()
    shutil.rmtree(first.path / "settings")
    place = run_task(PROTOCOL, tmp_path, rules=["mean", "mgda"], optimizers=["sgd"], device="cpu")
    assert place.done() == [Setting("mgda", "sgd")]  # the other is not done twice
    place.pack()
    assert set(place.kept()) == set(place.outcomes()) == {Setting("mean", "sgd"), Setting("mgda", "sgd")}


def test_a_setting_of_another_process_is_left_alone(tmp_path):
    place = TaskFolder(tmp_path / "toy")
    with place.claimed(Setting("mean", "sgd")) as mine:
        assert mine
        run_task(PROTOCOL, tmp_path, rules=["mean"], optimizers=["sgd"], device="cpu")
        assert place.done() == []


def test_another_protocol_is_refused(tmp_path):
    run_task(PROTOCOL, tmp_path, rules=["mean"], optimizers=["sgd"], device="cpu")
    with pytest.raises(InputError, match="trials=3 instead of 4"):
        run_task(Protocol(TOY, trials=4, seeds=2), tmp_path, rules=["mean"], device="cpu")
    other = tmp_path / "other"
    (other / "toy").mkdir(parents=True)
    (other / "toy" / "letter.txt").write_text("keep me")
    with pytest.raises(InputError, match="not empty"):
        run_task(PROTOCOL, other, rules=["mean"], device="cpu")
    assert (other / "toy" / "letter.txt").read_text() == "keep me"


def test_damaged_files_are_named(tmp_path):
    place = run_task(PROTOCOL, tmp_path, rules=["mean"], optimizers=["sgd"], device="cpu")
    setting = Setting("mean", "sgd")
    whole = place.result(setting).read_bytes()
    place.result(setting).write_bytes(whole[:-30])
    with pytest.raises(InputError, match=r"mean-sgd\.npz"):
        place.load(setting)
    place.result(setting).write_bytes(whole)
    place.result(setting).rename(place.path / "settings" / "mgda-sgd.npz")
    with pytest.raises(InputError, match="renamed"):
        place.done()
    place.config.write_text(json.dumps({"schema": 7}))
    with pytest.raises(InputError, match=r"config\.json"):
        place.protocol()


def test_a_rule_that_does_not_suit_the_task_says_why(tmp_path):
    place = run_task(PROTOCOL, tmp_path, rules=["trimmed-mean"], optimizers=["sgd"], device="cpu")
    outcome = place.load(Setting("trimmed-mean", "sgd"))
    assert outcome.tuning.best is None
    assert "trim=1" in outcome.tuning.reasons[0]
    assert np.isnan(outcome.test).all()


def test_rules_that_read_losses_do_not_suit_surrogates(tmp_path):
    place = run_task(
        Protocol("fruit-tree", small=True, trials=1, seeds=1, steps=2),
        tmp_path,
        rules=["stch", "tuned-mean", "rlw", "gradnorm"],
        optimizers=["sgd"],
        device="cpu",
    )
    reasons = {setting.rule: place.load(setting).tuning.reasons[0] for setting in place.done()}
    assert reasons["tuned-mean"] == reasons["rlw"] == ""
    assert "mean nothing on fruit-tree" in reasons["stch"]
    assert "mean nothing on fruit-tree" in reasons["gradnorm"]


def test_a_users_rule_and_task(tmp_path, monkeypatch):
    (tmp_path / "brought.py").write_text(
        "import paretograd as pg\n"
        "from support.toy import Toy\n"
        "class Half(pg.MGDA):\n"
        "    name = 'half'\n"
        "class Own(Toy):\n"
        "    name = 'own'\n"
    )
    monkeypatch.chdir(tmp_path)
    place = run_task(
        Protocol("brought.py", trials=2, seeds=2),
        tmp_path / "out",
        rules=["brought:Half", "mgda"],
        optimizers=["sgd"],
        device="cpu",
    )
    mine, theirs = (place.load(Setting(rule, "sgd")) for rule in ("brought:Half", "mgda"))
    assert place.path.name == "own"
    assert np.array_equal(mine.test, theirs.test)
    for wrong, error in (("brought:Toy", "a rule is"), ("brought:None", "has no"), ("nowhere:X", "module:Class")):
        with pytest.raises(InputError, match=error):
            make(wrong, 2, 0)
    with pytest.raises(InputError, match="no Python file"):
        task_of("missing.py")
    with pytest.raises(InputError, match="no subclass"):
        task_of("brought:Half")


def test_errors_name_what_is_allowed():
    with pytest.raises(UnknownNameError, match="Known names"):
        task_of("multi-mist")
    with pytest.raises(UnknownNameError, match="cagrad"):
        make("cagard", 2, 0)
    with pytest.raises(ParameterError, match="2 losses"):
        make("single(2)", 2, 0)
    with pytest.raises(ParameterError, match="trials"):
        Protocol(TOY, trials=0)
