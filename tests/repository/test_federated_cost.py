"""The benchmark of the federated server: its page shows its results, and its verdicts follow from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

#: Two entries for each strategy: memory beyond the replies in their units, and seconds.
GOOD = {"memory": 0.2, "seconds": 0.1}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import federated_cost

    return federated_cost


def test_the_page_has_the_results(script: Any) -> None:
    """`python benchmarks/federated_cost.py --render` writes it again."""
    saved = json.loads(script.RESULTS.read_text(encoding="utf-8"))
    assert list(saved["rounds"]) == script.names()
    assert f"\n\n{script.text(saved)}\n\n" in script.PAGE.read_text(encoding="utf-8")


def test_a_broken_promise_is_seen(script: Any) -> None:
    found = {name: dict(GOOD) for name in script.names()}
    assert script.broken(found) == []
    mean, trimmed = "`FedPareto`, mean", "`FedPareto`, TrimmedMean(2)"
    assert script.broken(found | {mean: GOOD | {"seconds": 0.31}}) == [mean]
    assert script.broken(found | {trimmed: GOOD | {"seconds": 0.31}}) == []
    assert script.broken(found | {trimmed: GOOD | {"memory": 0.31}}) == [trimmed]
    assert script.broken(found | {script.WHOLE: {"memory": 2.0, "seconds": 9.0}}) == []


def test_a_round_on_disk_is_measured(script: Any, tmp_path: Path) -> None:
    found = script.spooled(tmp_path, 10_000, 5)
    assert len(list(tmp_path.iterdir())) == 5 * script.LAYERS
    assert found["replies"] == pytest.approx(5 * 4e-5)
    assert found["seconds"] > 0.0
    assert len(script.spooled_table([found])) == 3
