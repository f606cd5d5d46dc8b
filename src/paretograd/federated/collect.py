"""`Collector`: a Flower grid that collects each reply by itself, so that a client can spoil nothing but its own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Any, Protocol

from flwr.app import Error, Message, MessageType
from flwr.serverapp import Grid

from paretograd.errors import InputError
from paretograd.federated.messages import FAILED
from paretograd.federated.replies import shown

_LOG = logging.getLogger("flwr")

#: Seconds between two looks for replies: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 0.1, 3.0

#: Least number of seconds that the last nodes have after most have replied.
_LEAST = 30.0


class _Source(Protocol):
    """Replies by the number of the message that they answer."""

    def take(self, number: str, instruction: Message) -> Message | None: ...

    def forget(self, number: str) -> None: ...


class Collector:
    """A grid with another `send_and_receive`.

    Flower 1.41 unpacks all replies together, and believes what they say about their sender. One that cannot be parsed
    ends the run, one that names the same part of an array many times fills the memory, and one whose upload does not
    end delays all others. Here each reply is pulled by the number of the message that it answers, as it arrives, under
    a limit of memory and inside a ``try``. If that fails, it becomes an error of the node that was asked.

    Flower waits for the last node until the timeout, an hour by default. Here the last nodes have a deadline: once more
    than half have replied, ``patience`` times as long as that took, and at least 30 seconds. Nodes that fail count
    neither as replies nor among the nodes.

    Everything else is left to the grid, and so is `send_and_receive` if the grid's class defines one of its own.

    Args:
        grid: the grid to use.
        patience: time for the last nodes; infinite to wait for them until the timeout.
        least: in training, the deadline begins after this number of replies if it is more than half.
    """

    def __init__(self, grid: Grid, patience: float = math.inf, least: int = 0) -> None:
        self._grid, self._patience, self._least = grid, patience, least

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the replies: errors of the nodes whose replies fail, or do not arrive in time.

        Args:
            messages: the messages to send.
            timeout: most seconds to wait; None for no limit.
        """
        messages = list(messages)
        method = getattr(type(self._grid), "send_and_receive", None)
        if not getattr(method, "__module__", "").startswith("flwr."):
            replies: Iterable[Message] = self._grid.send_and_receive(messages, timeout=timeout)
            return replies
        sent = set(self._grid.push_messages(messages)) if messages else set()  # numbers the messages
        waiting = {message.metadata.message_id: message for message in messages}
        return self._collect({number: waiting[number] for number in waiting if number in sent}, timeout)

    def _collect(self, waiting: dict[str, Message], timeout: float | None) -> list[Message]:
        source, total, pause, settled = _source(self._grid), len(waiting), _PAUSE, False
        replies: list[Message] = []
        start = now = time.monotonic()
        end = math.inf if timeout is None else start + timeout
        while waiting:
            for number, instruction in list(waiting.items()):
                reply = _taken(source, number, instruction)
                if reply is not None:
                    replies.append(reply)
                    del waiting[number]
            now = time.monotonic()
            if not settled and self._most(replies, total):
                settled, end = True, min(end, now + max(_LEAST, self._patience * (now - start)))
            if now >= end:
                break
            if waiting:
                time.sleep(min(pause, end - now))
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        for number, instruction in waiting.items():
            source.forget(number)
            replies.append(_failed(instruction, f"it sent no complete reply within {now - start:.0f} s"))
        return replies

    def _most(self, replies: list[Message], total: int) -> bool:
        """Return True if more than half of the nodes that have not failed have replied."""
        good = [reply for reply in replies if reply.has_content()]
        left = total - (len(replies) - len(good))
        training = any(reply.metadata.message_type == MessageType.TRAIN for reply in good)
        return len(good) >= max(left // 2 + 1, min(self._least, left) if training else 0)


def _source(grid: Grid) -> _Source:
    try:
        from paretograd.federated.wire import Unpacked

        if Unpacked.serves(grid):
            return Unpacked(grid)
    except (ImportError, AttributeError) as error:
        _LOG.warning(
            "FedPareto does not know this version of Flower (%s), and cannot limit the memory of replies", error
        )
    return _Pulled(grid)


class _Pulled:
    """Replies from a grid that unpacks them itself, or need not, as in a simulation."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def take(self, number: str, instruction: Message) -> Message | None:
        return next(iter(self._grid.pull_messages([number])), None)

    def forget(self, number: str) -> None: ...


def _taken(source: _Source, number: str, instruction: Message) -> Message | None:
    """Return a reply in the name of the node that was asked: an error if it cannot be read, None if it is not there."""
    try:
        found = source.take(number, instruction)
        if found is None:
            return None
        if found.has_error():
            # Codes below 0 are ours.
            return Message(Error(max(found.error.code, 0), found.error.reason), reply_to=instruction)
        return Message(found.content, reply_to=instruction)
    except InputError as error:
        why = f"the reply is refused: {error}"
    except Exception as error:  # noqa: BLE001  a client's bytes may break the parser in any way
        why = f"the reply cannot be read: {type(error).__name__}: {shown(error, 120)}"
    return _failed(instruction, why)


def _failed(instruction: Message, why: str) -> Message:
    return Message(Error(FAILED, why), reply_to=instruction)
