"""A grid without a network: each node is a function from its instruction to a reply, and arrival can be shuffled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Messages carry who made them, which Flower sets in the process of a ServerApp.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Client = Callable[[RecordDict, str], RecordDict | Error | None]


class Loopback(Grid):
    """Nodes by their number; one that answers None does not reply."""

    def __init__(self, clients: dict[int, Client], seed: int = 0) -> None:
        self.clients, self.random, self.sent = dict(clients), random.Random(seed), 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            self.sent += 1
            node = message.metadata.dst_node_id
            found = self.clients[node](message.content, message.metadata.message_type)
            if found is not None:
                replies.append(answer(node, found))
        self.random.shuffle(replies)
        return replies

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def answer(node: int, content: RecordDict | Error) -> Message:
    """A reply as Flower makes it: from the node to which the instruction went."""
    instruction = Message(RecordDict(), dst_node_id=node, message_type="train")
    if isinstance(content, Error):
        return Message(content, reply_to=instruction)
    return Message(content, reply_to=instruction)


def arrays(values: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in values.items()})


def content(values: dict[str, np.ndarray], **metrics: float) -> RecordDict:
    """What FedAvg's clients send: arrays and metrics."""
    return RecordDict({"arrays": arrays(values), "metrics": MetricRecord({"num-examples": 10, **metrics})})
