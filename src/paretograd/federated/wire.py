"""`Unpacked`: replies from Flower's SuperLink, pulled object by object and inflated under a limit of memory.

A client uploads its reply as a tree of objects: the message, its records, their arrays, and the parts of an array's
data. This module uses what Flower 1.41 does not declare public, so importing it may fail with another version.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import NamedTuple

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from paretograd.errors import InputError

#: Bytes that count for each object of a reply besides its content, for the memory and the time that it takes to pull.
_OBJECT = 2048

#: How the content of an object begins that holds a part of an array's data.
_PART = b"ArrayChunk "


class Limit(NamedTuple):
    """Most bytes that a reply may take.

    Attributes:
        arrays: the data of its arrays.
        records: everything else, such as metrics and the names and shapes of arrays.
    """

    arrays: int
    records: int


def limit_of(instruction: Message) -> Limit:
    """Return the limit for the reply to a message. The arrays of a valid reply are as large as those in the message.

    Args:
        instruction: the message, with the global model.
    """
    arrays = [array for record in instruction.content.array_records.values() for array in record.values()]
    size = sum(len(array.data) for array in arrays)
    # An array and its data are at least two objects. Flower divides data into parts of 5 MB, or as a client is told.
    return Limit((16 << 20) + 2 * size, (4 << 20) + 4 * _OBJECT * len(arrays) + size // 64)


class _Upload:
    """Objects of a reply that have arrived, and the numbers of those that have not."""

    def __init__(self, run: int, top: str, objects: list[str], limit: Limit) -> None:
        self.run, self.top, self.limit = run, top, limit
        self.missing = list(dict.fromkeys(objects))
        self.contents: dict[str, bytes] = {}
        self._arrays = self._records = 0

    def add(self, number: str, content: bytes) -> None:
        """Keep the content of an object. Raise beyond the limit."""
        part = content.startswith(_PART)
        self._arrays += len(content) if part else 0
        self._records += _OBJECT if part else _OBJECT + len(content)
        if self._records > self.limit.records:
            raise InputError(f"it takes more than {self.limit.records} bytes besides the data of its arrays")
        self._check_arrays(self._arrays)
        self.contents[number] = content

    def check(self) -> None:
        """Raise if inflating the reply takes more than the limit: an array may name the same part many times."""
        size = 0
        for content in self.contents.values():
            if get_object_type_from_object_content(content) != Array.__qualname__:
                continue
            parts = get_object_children_ids_from_object_content(content)
            if not all(self.contents[part].startswith(_PART) for part in parts):
                raise InputError("the data of an array is not in parts")
            named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            size += sum(len(self.contents[parts[k]]) for k in named)
            self._check_arrays(size)

    def _check_arrays(self, size: int) -> None:
        if size > self.limit.arrays:
            raise InputError(f"its arrays take more than {self.limit.arrays} bytes, far more than the model's")


class Unpacked:
    """Replies by the number of the message that they answer.

    Args:
        grid: the grid of a deployment.
    """

    def __init__(self, grid: Grid) -> None:
        self._client, self._node = grid._runtime_client, grid.node
        self._uploads: dict[str, _Upload] = {}

    @staticmethod
    def serves(grid: Grid) -> bool:
        """Return True for the grid of a deployment."""
        return isinstance(grid, HttpGrid)

    def take(self, number: str, instruction: Message) -> Message | None:
        """Return a reply once all its objects have arrived, and None until then. Raise if it cannot be read.

        Args:
            number: number of the message.
            instruction: the message.
        """
        upload = self._uploads.get(number) or self._begun(number, instruction)
        if upload is None:
            return None
        try:
            if not self._complete(upload):
                return None
            upload.check()
            message = inflate_object_from_contents(upload.top, upload.contents)
        except Exception:
            self.forget(number)
            raise
        self.forget(number)
        if not isinstance(message, Message):
            raise InputError(f"it is a {type(message).__name__}, not a message")
        return message

    def forget(self, number: str) -> None:
        """Discard what has arrived of a reply, here and on the SuperLink."""
        upload = self._uploads.pop(number, None)
        if upload is not None:
            request = ConfirmMessageReceivedRequest(node=self._node, run_id=upload.run, message_object_id=upload.top)
            with suppress(Exception):  # this only frees the SuperLink's memory
                self._client.ConfirmMessageReceived(request)

    def _begun(self, number: str, instruction: Message) -> _Upload | None:
        """Return the upload of a reply, or None if it has not begun. The SuperLink tells only once."""
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=[number]))
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            # The SuperLink may add messages from others, and knows which reply is whose.
            if head.metadata.reply_to_message_id == number:
                objects = [part.object_id for part in iterate_object_tree(tree)]
                run, top = instruction.metadata.run_id, head.metadata.message_id
                self._uploads[number] = _Upload(run, top, objects, limit_of(instruction))
        return self._uploads.get(number)

    def _complete(self, upload: _Upload) -> bool:
        """Pull the objects that have arrived. Return True if none is missing."""
        while upload.missing:
            number = upload.missing[-1]
            found = self._client.PullObject(PullObjectRequest(node=self._node, run_id=upload.run, object_id=number))
            if not found.object_found:
                raise InputError("a part of it was not uploaded")
            if not found.object_available:
                return False
            upload.add(number, found.object_content)
            upload.missing.pop()
        return True
