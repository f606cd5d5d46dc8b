"""The benchmark of the server's cost: every strategy runs, and holds the replies once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import federated_cost

    return federated_cost


def test_every_strategy_aggregates(script: Any) -> None:
    for name in script.names():
        found = script.made(name, 1000, 10)()
        arrays = found.model if name == script.ALONE else found[0]
        assert len(arrays) == script.LAYERS
        if name.startswith("`FedPareto`"):
            assert found[1]["mo/valid"] == 10.0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", ["`FedPareto`, capped MGDA, eps = 0.67", "`FedPareto`, TrimmedMean(2)"])
def test_a_round_needs_less_than_a_third_of_the_replies_besides_them(name: str) -> None:
    """Replies of 80 MB: the next model as arrays and as bytes is a fifth of them."""
    command = [sys.executable, str(FOLDER / "federated_cost.py"), "--one", name, "--parameters", "2e6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["memory"] <= 0.3
