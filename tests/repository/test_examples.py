"""Every file in examples/ runs, prints its result, and gets better at what it trains.

Each runs as a script, for fewer steps than by default; those that need other packages or several processes run in
processes of their own. An example whose optional package is missing is skipped. tests_models/test_examples.py
runs those that need heavy frameworks.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import ROOT

EXAMPLES = ROOT / "examples"
CHANGE = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)%? -> (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)%?")

#: On a busy CPU one of several processes may abort with this at its exit, and does with plain `.backward()`, too.
TORN_DOWN = "terminate called without an active exception"


def run(name: str, *arguments: str, folder: Path, launcher: tuple[str, ...] = ()) -> str:
    """What the example prints; it must exit with zero and print no warning."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(EXAMPLES / name), *arguments]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
        if not launcher or TORN_DOWN not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example as a script in this process, where warnings are errors; returns what it prints."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with torch.random.fork_rng(devices=[]):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; it comes with the extra: pip install 'paretograd[examples]'")


def changes(printed: str) -> list[tuple[float, float]]:
    """The numbers on both sides of every arrow."""
    return [(float(before), float(after)) for before, after in CHANGE.findall(printed)]


def test_multitask(script: Callable[..., str]) -> None:
    """All three losses fall with UPGrad, and the two small ones further than with the sum."""
    printed = script("multitask.py", "--steps", "200")
    table = [[float(value) for value in line[12:].split()] for line in printed.splitlines()[1:]]
    assert len(table) == 3
    assert all(upgrad < before for before, _, upgrad in table), printed
    assert all(upgrad < plain for _, plain, upgrad in table[1:]), printed


@pytest.mark.slow
def test_per_sample(script: Callable[..., str]) -> None:
    """The cap keeps wrong labels from stopping MGDA."""
    mgda, capped, mean = changes(script("per_sample.py", "--steps", "300"))
    assert capped[1] > mgda[1] + 10.0  # percent
    assert mean[1] > mean[0]


@pytest.mark.slow
def test_pinn(script: Callable[..., str]) -> None:
    ((before, after),) = changes(script("pinn.py", "--steps", "400"))
    assert before > 0.5
    assert after < 0.05


def test_captured(script: Callable[..., str]) -> None:
    printed = script("captured.py", "--steps", "120", "--device", "cpu")
    assert "the step is eager, because" in printed
    assert len(changes(printed)) == 3
    assert all(after < 0.5 * before for before, after in changes(printed)), printed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_amp(dtype: str, script: Callable[..., str]) -> None:
    printed = script("amp.py", "--steps", "60", "--dtype", dtype)
    # Scaled by 65,536, a gradient may overflow float16 at first, as in a plain backward pass.
    assert re.search(rf"{dtype} on cpu, [01] of 60 steps skipped", printed)
    assert len(changes(printed)) == 3
    assert all(after < 0.7 * before for before, after in changes(printed)), printed


def test_amp_overflow(script: Callable[..., str]) -> None:
    """A scale at which float16 overflows is halved until it does not, and training goes on."""
    printed = script("amp.py", "--steps", "60", "--dtype", "float16", "--scale", "1e10")
    skipped = int(re.search(r"(\d+) of 60 steps skipped", printed)[1])
    assert 5 <= skipped <= 30
    assert all(after < before for before, after in changes(printed)), printed


@pytest.mark.slow
def test_distributed(script: Callable[..., str], tmp_path: Path) -> None:
    """Two processes print the numbers of one, to ten digits, however the model is shared."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    alone = script("distributed.py", "--steps", "8")
    assert alone.startswith("1 process(es)")
    for options in ((), ("--fsdp",)):
        printed = run("distributed.py", "--steps", "8", *options, folder=tmp_path, launcher=launcher)
        assert printed == alone.replace("1 process(es)", "2 process(es)")


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    need("lightning")
    printed = run("lightning_module.py", "--steps", "60", folder=tmp_path)
    assert len(changes(printed)) == 2
    assert all(after < 0.8 * before for before, after in changes(printed)), printed
    for key in ("mo/gamma", "mo/conflicts", "mo/weight/sum", "mo/loss/difference"):
        assert f"{key}=" in printed
    assert not any(tmp_path.iterdir())  # no logs, no checkpoints


@pytest.mark.slow
def test_lightning_in_two_processes(tmp_path: Path) -> None:
    """Both log the weights of the common step."""
    need("lightning")
    printed = run("lightning_module.py", "--steps", "40", "--devices", "2", folder=tmp_path)
    assert all(after < before for before, after in changes(printed)), printed
    assert len(changes(printed)) == 2
    weights = re.findall(r"mo/weight/sum=(\S+), mo/weight/difference=(\S+),", printed)
    assert len(weights) == 2
    assert weights[0] == weights[1]


def test_accelerate(tmp_path: Path) -> None:
    need("accelerate")
    printed = run("accelerate_loop.py", "--steps", "60", folder=tmp_path)
    gamma, *losses = changes(printed)
    assert len(losses) == 2
    assert all(after < 0.8 * before for before, after in [gamma, *losses]), printed


@pytest.mark.slow
def test_accelerate_in_two_processes(tmp_path: Path) -> None:
    """The processes see different batches, and hold the same parameters in the end."""
    need("accelerate")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    printed = run("accelerate_loop.py", "--steps", "40", folder=tmp_path, launcher=launcher)
    assert "2 process(es)" in printed
    assert "agree in all processes: True" in printed
    assert all(after < before for before, after in changes(printed)), printed


def test_tensorboard(script: Callable[..., str], tmp_path: Path) -> None:
    """tests_models/test_examples.py runs the other trackers."""
    need("tensorboard")
    folder = tmp_path / "runs"
    printed = script("trackers.py", "--steps", "40", "--folder", str(folder))
    ((before, after),) = changes(printed)
    assert after < 0.5 * before
    (events,) = folder.iterdir()
    data = events.read_bytes()
    assert all(tag in data for tag in (b"mo/gamma", b"mo/weight/sine", b"mo/conflicts", b"mo/loss/tilted"))


def test_every_example_is_tested_and_listed() -> None:
    files = (Path(__file__), ROOT / "tests_models" / "test_examples.py")
    tested = "".join(file.read_text(encoding="utf-8") for file in files)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in tested
        assert f"`{path.name}`" in listed
