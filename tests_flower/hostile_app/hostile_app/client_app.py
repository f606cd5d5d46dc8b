"""Clients that upload, by Flower's own programs, what Flower's classes would not make."""

from __future__ import annotations

import json
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """Go a tenth of the way to the common target, and spoil the reply in the client's mode."""
    node = int(context.node_config["partition-id"])
    mode = str(context.run_config["modes"]).split()[node]
    x = message.content["arrays"]["x"].numpy()
    moved = x + np.float32(0.1) * (1 - x) + np.float32(0.001 * node)
    content = {"arrays": ArrayRecord({"x": Array(moved)}), "metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}
    reply = Message(RecordDict(content), reply_to=message)
    MODES[mode](reply)
    return reply


def honest(reply: Message) -> None:
    """Leave the reply as it is."""


def unparsable(reply: Message) -> None:
    """Upload three bytes for the metrics that protobuf cannot parse."""
    MetricRecord.deflate = lambda self: b"MetricRecord  3\x00\xff\xff\xff"


def bomb(reply: Message) -> None:
    """Name a part of 5 MB 200 times: 1 GB."""
    deflate = Array.deflate

    def repeated(self: Array) -> bytes:
        first, body = deflate(self).split(b"\x00", 1)
        children = first.split(b" ")[1].decode()
        body = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 200}).encode()
        return f"Array {children} {len(body)}".encode() + b"\x00" + body

    reply.content["arrays"]["x"] = Array(np.zeros((5 << 18) - 256, dtype=np.float32))
    Array.deflate = repeated


def spoof(reply: Message) -> None:
    """Name another node as the sender, where the SuperLink does not look."""
    deflate = Message.deflate

    def named(self: Message) -> bytes:
        own = self.metadata.src_node_id
        self.metadata.__dict__["_src_node_id"] = 424242
        try:
            return deflate(self)
        finally:
            self.metadata.__dict__["_src_node_id"] = own

    Message.deflate = named


def sleeps(reply: Message) -> None:
    """Reply after the round."""
    time.sleep(600)


MODES = {mode.__name__: mode for mode in (honest, unparsable, bomb, spoof, sleeps)}
