"""Nodes that fail: how many must be left, and who is to blame."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict
from grid import Client, Loopback, content

import paretograd as pg
from paretograd.federated import FedPareto

TARGET = np.random.default_rng(0).normal(size=200)
START = ArrayRecord({"x": Array(np.zeros(200))})


def honest(node: int) -> Client:
    """A client that goes three tenths of the way to a target near the common one."""
    target = TARGET + 0.3 * np.random.default_rng(node).normal(size=TARGET.size)

    def reply(instruction: RecordDict, kind: str) -> RecordDict:
        x = instruction["arrays"]["x"].numpy()
        return content({"x": x + 0.3 * (target - x)})

    return reply


def hostile(instruction: RecordDict, kind: str) -> RecordDict:
    return content({"x": np.full(TARGET.size, 1e30)})


# ---- the quorum ------------------------------------------------------------------------------------------------------


class Failing(Loopback):
    """A grid on which all nodes but some fail in one round of training."""

    def __init__(self, clients: dict[int, Client], well: set[int], rounds: int) -> None:
        super().__init__(clients)
        self.well, self.rounds = well, rounds

    def send_and_receive(self, messages: list, *, timeout: float | None = None) -> list:
        found = super().send_and_receive(messages, timeout=timeout)
        self.rounds -= bool(found)
        if self.rounds:
            return found
        for message in found:
            if message.metadata.src_node_id not in self.well:
                message.__dict__.update(_content=None, _error=Error(code=0, reason="out of memory"))
        return found


@pytest.mark.parametrize("evil", [{9}, {8, 9}])
def test_who_alone_answers_does_not_own_the_model(evil: set[int], caplog: pytest.LogCaptureFixture) -> None:
    clients = {node: hostile if node in evil else honest(node) for node in range(10)}
    strategy = FedPareto(pg.CappedMGDA(eps=0.67), fraction_evaluate=0.0)
    result = strategy.start(Failing(clients, evil, 5), START, num_rounds=20)
    x = result.arrays["x"].numpy()
    # A rule that nobody attacks ends at 0.11; it is a mean over targets that are 0.3 apart from the common one.
    assert np.linalg.norm(x - TARGET) < 0.25 * np.linalg.norm(TARGET)
    assert result.train_metrics_clientapp[5]["mo/valid"] == 0.0
    assert result.train_metrics_clientapp[6]["mo/valid"] == 10.0
    why = f"{len(evil)} of 10 clients sent a valid reply, and the quorum is 6"
    assert [record.getMessage() for record in caplog.records if "quorum" in record.getMessage()] == [
        f"round 5, training: this round leaves the model unchanged: {why} (more than half of them)"
    ]


@pytest.mark.parametrize(("left", "sampled", "needed"), [(10, 10, 6), (8, 8, 6), (6, 6, 6)])
def test_a_quorum_of_the_nodes_that_are_expected(left: int, sampled: int, needed: int) -> None:
    """If four of ten leave, more than half of ten must still reply: those that stay may be hostile."""
    nodes = {"min_train_nodes": 10, "min_evaluate_nodes": 10, "min_available_nodes": 10}
    strategy = FedPareto(pg.Mean(), **nodes)
    for number, count in ((1, 10), (2, left)):
        grid = Loopback({node: honest(node) for node in range(count)})
        asked = list(strategy.configure_train(number, START, ConfigRecord(), grid))
    assert len(asked) == sampled
    for valid in (needed - 1, needed):
        _, metrics = strategy.aggregate_train(2, grid.send_and_receive(asked[:valid]))
        assert metrics["mo/valid"] == (valid if valid == needed else 0.0)


def test_the_summary_names_the_quorum(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        FedPareto(pg.Mean()).summary()
        FedPareto(pg.Mean(), min_valid=3).summary()
    assert "Least valid replies: more than half" in caplog.text
    assert "Least valid replies: 3" in caplog.text
