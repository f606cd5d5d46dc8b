"""The table of hostile clients: its short version keeps the promises, and its networks train as torch's do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from support import ROOT

import paretograd as pg

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_capped_mgda_keeps_its_accuracy_under_every_attack() -> None:
    """Twenty rounds with one seed, as a person runs it; the exit status says that no promise is broken."""
    command = [sys.executable, str(FOLDER / "hostile.py"), "--only", "C = 0.2, clip", "--seeds", "1", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line[:6].strip() for line in lines[-3:]] == ["met"] * 3
    (row,) = (line for line in lines if line.startswith("Capped MGDA, C = 0.2"))
    unharmed, *attacked = (int(number) for number in re.findall(r"\d+", row.partition("0.2")[2]))
    assert unharmed > 90
    assert len(attacked) == 11
    assert "wrote" not in done.stderr


@pytest.mark.usefixtures("_benchmarks")
def test_the_table_has_every_rule_with_every_bound() -> None:
    from hostile_cases import CASES

    labels = [pg.get(name).label for name in (*pg.names(), "mas-rand") if name != "capped-mgda"]
    labels += [f"Capped MGDA, C = {cap}" for cap in (0.1, 0.15, 0.2)]
    for bound in ("clip", "normalize", "none"):
        rules = [case.rule for case in CASES if case.bound == bound]
        assert set(labels) < set(rules)
        assert len(set(rules)) == len(rules)


@pytest.mark.usefixtures("_benchmarks")
def test_every_rule_runs_with_every_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round on one batch: nothing crashes a server, every model is finite, and only what must be is dropped."""
    import hostile_run
    from hostile_cases import ATTACKS, CASES
    from hostile_clients import BATCH, drawn_digits

    data = drawn_digits(0)
    one_batch = data._replace(images=data.images[:, :BATCH], labels=data.labels[:, :BATCH])
    monkeypatch.setattr(hostile_run, "drawn_digits", lambda seed: one_batch)
    labels = [case.label for case in CASES]
    for attack in ATTACKS:
        for found in hostile_run.run(attack, 0, 1, labels):
            assert found.error is None
            assert found.finite
            assert found.hostile_dropped == (1 if attack in ("NaN", "wrong shape", "wrong keys") else 0)


@pytest.mark.usefixtures("_benchmarks")
def test_a_broken_promise_is_seen() -> None:
    import hostile_report as report
    from hostile_cases import ATTACKS
    from hostile_run import Outcome

    def outcomes(**changed: object) -> list[Outcome]:
        good = [Outcome("Capped MGDA, C = 0.2", "clip", attack, 0, True, accuracy=0.95) for attack in ATTACKS]
        for name, value in changed.items():
            setattr(good[3], name, value)
        return good

    assert [met for _, met, _ in report.verdicts(outcomes())] == [True] * 3
    assert [met for _, met, _ in report.verdicts(outcomes(error="KeyError: w"))] == [False, True, True]
    assert [met for _, met, _ in report.verdicts(outcomes(finite=False))] == [True, False, True]
    assert [met for _, met, _ in report.verdicts(outcomes(accuracy=0.85))] == [True, True, False]
    assert {attack for attacks in report.COLUMNS.values() for attack in attacks} == set(ATTACKS)


@pytest.mark.usefixtures("_benchmarks")
def test_networks_trained_together_are_those_trained_alone() -> None:
    from hostile_clients import BATCH, LR, MOMENTUM, accuracies, drawn_digits, initial, network, train

    images, labels, pictures, digits = drawn_digits(1)
    models = [initial(0), initial(1)]
    found = train(models, images, labels.expand(2, -1, -1), 7)
    order = torch.randperm(images.shape[1], generator=torch.Generator().manual_seed(7))
    for run, client in ((0, 3), (1, 9)):
        net = network()
        net.load_state_dict({name: torch.from_numpy(array) for name, array in models[run].items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images[client, batch]), labels[client, batch]).backward()
            optimizer.step()
        for name, tensor in net.state_dict().items():
            assert np.allclose(found[run][client][name], tensor.numpy(), atol=1e-4), name
        with torch.no_grad():
            right = (net.eval()(pictures).argmax(1) == digits).double().mean()
        assert accuracies([found[run][client]], pictures, digits) == [pytest.approx(float(right), abs=0.005)]
