"""The example app without an engine: every attack that it knows, for ten clients of which one is hostile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import run_in_process

ATTACKS = ["sign-flip", "zero", "scaled", "nan", "shape", "keys", "boast"]


def accuracy(folder: Path, **config: object) -> float:
    run_in_process(folder, 10, **{"num-rounds": 10, **config})
    with np.load(folder / "model.npz") as arrays:
        assert all(np.isfinite(array).all() for array in arrays.values())
    rounds = json.loads((folder / "results.json").read_text(encoding="utf-8"))["test"]
    return rounds[max(rounds, key=int)]["accuracy"]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy(tmp_path_factory.mktemp("unharmed"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_attacker_in_ten_costs_little(attack: str, unharmed: float, tmp_path: Path) -> None:
    assert unharmed > 0.95
    assert accuracy(tmp_path, attacks=attack) > 0.9 * unharmed


def test_the_mean_without_a_bound_is_lost(tmp_path: Path) -> None:
    """FedAvg's rule: one scaled update ends the training, though not the server."""
    assert accuracy(tmp_path, attacks="scaled", rule="mean", bound="none") < 0.3


def test_mgda_without_a_cap_stalls(tmp_path: Path) -> None:
    assert accuracy(tmp_path, attacks="zero", rule="mgda") < 0.3


def test_an_unknown_attack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="sign-flip, zero"):
        run_in_process(tmp_path, 4, attacks="magic")
