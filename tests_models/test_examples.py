"""The examples for frameworks that only this environment has: each trains, and gets better at it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CHANGE = re.compile(r"(-?\d+\.\d+(?:e[+-]?\d+)?) -> (-?\d+\.\d+(?:e[+-]?\d+)?)")


def run(name: str, *arguments: str, folder: Path, **variables: str) -> str:
    """Return what the example prints. It runs in a new process, since frameworks keep global state."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src"), "DDE_BACKEND": "pytorch"} | variables
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "steps", "sign"),
    [
        ("transformers_trainer.py", "60", 1),
        ("trl_preferences.py", "40", 1),
        ("trl_rewards.py", "40", -1),  # rewards rise
        ("deepxde_heat.py", "300", 1),
    ],
)
def test_gets_better(name: str, steps: str, sign: int, tmp_path: Path) -> None:
    printed = run(name, "--steps", steps, folder=tmp_path)
    changes = [(float(before), float(after)) for before, after in CHANGE.findall(printed)]
    assert changes
    assert all(sign * after < sign * before for before, after in changes), printed


def test_wandb(tmp_path: Path) -> None:
    printed = run("trackers.py", "--tracker", "wandb", "--folder", ".", folder=tmp_path, WANDB_MODE="offline")
    assert "gamma 1." in printed
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    assert all(tag in data for tag in (b"mo/gamma", b"mo/weight/sine", b"mo/conflicts", b"mo/loss/tilted"))


def test_mlflow(tmp_path: Path) -> None:
    """The tests have no database, so files are allowed."""
    place = {"MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    run("trackers.py", "--tracker", "mlflow", "--steps", "5", folder=tmp_path, **place)
    (gamma,) = tmp_path.glob("runs/*/*/metrics/mo/gamma")
    lines = gamma.read_text().splitlines()
    assert [int(line.split()[2]) for line in lines] == list(range(5))
    assert next(tmp_path.glob("runs/*/*/metrics/mo/weight/sine")).exists()
