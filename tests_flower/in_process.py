"""The example app without an engine: its own server and clients, called in this process."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from grid import Loopback

APP = Path(__file__).parents[1] / "examples" / "flower"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]


class Apps(Loopback):
    """A grid whose nodes run the ClientApp."""

    def __init__(self, count: int, config: dict[str, object], seed: int = 0) -> None:
        if str(APP) not in sys.path:
            sys.path.insert(0, str(APP))
        from robust_app.client_app import app

        self.app = app
        self.contexts = {
            # Nodes have random numbers in an engine, so here they are not in the order of the partitions, either.
            7919 * (k + 1) % 101: Context(
                run_id=1,
                node_id=7919 * (k + 1) % 101,
                node_config={"partition-id": k, "num-partitions": count},
                state=RecordDict(),
                run_config=config,
            )
            for k in range(count)
        }
        super().__init__(dict.fromkeys(self.contexts, lambda *_: None), seed)

    def reply(self, message: Message) -> Message:
        # A message has a number once it was sent; its reply refers to it.
        return self.app(message, self.contexts[message.metadata.dst_node_id])

    def send_and_receive(self, messages: object, *, timeout: float | None = None) -> list[Message]:
        replies = [self.reply(message) for message in messages]
        self.random.shuffle(replies)
        return replies


def run_in_process(results: Path, count: int, **changed: object) -> None:
    """Run the ServerApp; what comes out is in the folder."""
    config = (
        CONFIG | {"results": str(results), "min-nodes": count} | {k.replace("_", "-"): v for k, v in changed.items()}
    )
    grid = Apps(count, config)
    from robust_app.server_app import app

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    app(grid, context)
