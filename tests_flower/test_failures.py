"""Nodes that fail: how many must be left, and who is to blame."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
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


# ---- senders ---------------------------------------------------------------------------------------------------------

NODES = list(range(10, 20))


def asked(numbered: bool, phase: str = "train") -> tuple[FedPareto, dict[int, Message]]:
    """Return a strategy with a round under way, and its messages by node. They get their numbers when they are sent."""
    strategy, grid = FedPareto(pg.CappedMGDA(eps=0.67)), Loopback({node: honest(node) for node in NODES})
    messages = list(getattr(strategy, f"configure_{phase}")(1, START, ConfigRecord(), grid))
    for message in messages if numbered else ():
        message.metadata.__dict__["_message_id"] = message.object_id
    return strategy, {message.metadata.dst_node_id: message for message in messages}


def reply(to: Message, says: int | None = None) -> Message:
    found = Message(honest(to.metadata.dst_node_id)(to.content, "train"), reply_to=to)
    if says is not None:
        found.metadata.__dict__["_src_node_id"] = says
    return found


def stepped(strategy: FedPareto, replies: list[Message]) -> tuple[dict[int, str], MetricRecord]:
    """Return the nodes that were dropped, with the reasons."""
    for order in (replies, replies[::-1]):
        _, metrics = strategy.aggregate_train(1, order)
    return dict(strategy.last.dropped), metrics


def test_a_node_that_was_not_asked_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    strategy, messages = asked(numbered=False)
    replies = [reply(message, 424242 if node == 19 else None) for node, message in messages.items()]
    dropped, _ = stepped(strategy, replies)
    assert dropped == {19: "it sent no reply"}
    assert strategy.last.nodes == tuple(range(10, 19))
    assert "in the name of node 424242 answers no message of this round and is ignored" in caplog.text


@pytest.mark.parametrize("says", [12, 424242, 1])
def test_a_reply_belongs_to_the_node_that_was_asked(says: int) -> None:
    """Whatever number it names: the number of the message decides, so nobody speaks for another."""
    strategy, messages = asked(numbered=True)
    dropped, _ = stepped(strategy, [reply(message, says if node == 19 else None) for node, message in messages.items()])
    assert not dropped
    assert strategy.last.nodes == tuple(NODES)


def test_an_old_message_is_not_answered_again(caplog: pytest.LogCaptureFixture) -> None:
    _, before = asked(numbered=True)
    strategy, messages = asked(numbered=True)
    replies = [reply(before[19] if node == 19 else message) for node, message in messages.items()]
    assert stepped(strategy, replies)[0] == {19: "it sent no reply"}
    assert "a reply in the name of node 19 answers no message of this round" in caplog.text


def test_one_node_that_replies_twice_is_dropped_alone() -> None:
    strategy, messages = asked(numbered=True)
    replies = [reply(message) for message in messages.values()]
    dropped, _ = stepped(strategy, [*replies, reply(messages[19], says=12)])
    assert dropped == {19: "the node replied more than once"}


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_dead_nodes_are_reported_one_by_one(phase: str, caplog: pytest.LogCaptureFixture) -> None:
    """Flower's SuperLink answers for all of them, as node 1."""
    strategy, messages = asked(numbered=True, phase=phase)
    replies = [
        create_message_error_unavailable_res_message(message.metadata, "node_unavail") if node < 13 else reply(message)
        for node, message in messages.items()
    ]
    if phase == "train":
        dropped, metrics = stepped(strategy, replies)
        assert dropped.keys() == {10, 11, 12}
        assert all(reason.startswith("no reply arrived: 'Error: Node Unavailable") for reason in dropped.values())
    else:
        metrics = strategy.aggregate_evaluate(1, replies)
    assert metrics["mo/dropped-nodes"] == [10, 11, 12]
    assert (metrics["mo/valid"], metrics["mo/dropped"]) == (7.0, 3.0)
    for node in (10, 11, 12):
        assert f"node {node} " in caplog.text


def test_a_silent_node_is_reported() -> None:
    for numbered in (False, True):
        strategy, messages = asked(numbered)
        dropped, metrics = stepped(strategy, [reply(message) for node, message in messages.items() if node > 11])
        assert dropped == dict.fromkeys((10, 11), "it sent no reply")
        assert metrics["mo/dropped"] == 2.0


def test_without_numbers_the_error_of_a_dead_node_belongs_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    strategy, messages = asked(numbered=False)
    dead = [create_message_error_unavailable_res_message(messages[n].metadata, "node_unavail") for n in (10, 11)]
    dropped, _ = stepped(strategy, [*dead, *(reply(message) for node, message in messages.items() if node > 11)])
    assert dropped == dict.fromkeys((10, 11), "it sent no reply")
    assert "an error in the name of node 1 answers no message of this round and is ignored: no reply" in caplog.text
