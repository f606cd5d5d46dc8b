"""Where the SuperLink would be: what Flower's own grid asks of it, and replies that Flower would not make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.superlink.grid import HttpGrid
from grid import Client

#: The objects of a reply by their numbers, children first, and the number of the reply itself.
Objects = tuple[dict[str, bytes], str]


class Link:
    """Nodes by their number; one that answers None does not reply. ``spoil`` changes the objects of one node."""

    def __init__(self, clients: dict[int, Client], evil: int = -1, spoil: Callable[[Objects], Objects] | None = None):
        self.clients, self.evil, self.spoil = clients, evil, spoil
        self.asked: dict[str, Message] = {}
        self.heads: dict[str, tuple[str, ObjectTree]] = {}
        self.store: dict[str, bytes] = {}
        self.unavailable: set[str] = set()
        self.pulled = self.confirmed = 0

    def grid(self) -> HttpGrid:
        found = HttpGrid(token="x", insecure=True)
        found._client, found._run = self, SimpleNamespace(run_id=1)
        push = found.push_messages

        def pushed(messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            numbers = list(push(messages))
            self.asked = dict(zip(numbers, messages, strict=True))
            return numbers

        found.push_messages = pushed
        return found

    def reply(self, number: str) -> None:
        """Have a node reply to the message with this number."""
        ask = self.asked[number]
        node = ask.metadata.dst_node_id
        found = self.clients[node](ask.content, ask.metadata.message_type)
        if found is None:
            return
        reply = Message(found, reply_to=ask)
        objects = {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}, reply.object_id
        if node == self.evil and self.spoil is not None:
            objects = self.spoil(objects)
        parts, top = objects
        self.store.update(parts)
        children = [ObjectTree(object_id=key) for key in parts if key != top]
        self.heads[number] = top, ObjectTree(object_id=top, children=children)

    # ---- what HttpGrid calls

    def GetNodes(self, request: object) -> SimpleNamespace:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=node) for node in self.clients])

    def PushMessages(self, request: object) -> SimpleNamespace:
        numbers = [message.metadata.message_id for message in request.messages_list]
        return SimpleNamespace(message_ids=numbers, objects_to_push=[], session_id="")

    def PullMessages(self, request: object) -> SimpleNamespace:
        heads, trees = [], []
        for number in request.message_ids:
            if number not in self.heads:
                self.reply(number)
            if number in self.heads:
                top, tree = self.heads[number]
                heads.append(SimpleNamespace(metadata=SimpleNamespace(message_id=top, reply_to_message_id=number)))
                trees.append(tree)
        return SimpleNamespace(messages_list=heads, message_object_trees=trees)

    def PushObject(self, request: object) -> SimpleNamespace:
        return SimpleNamespace(stored=True)

    def PullObject(self, request: object) -> PullObjectResponse:
        self.pulled += 1
        number = request.object_id
        there = number in self.store and number not in self.unavailable
        return PullObjectResponse(
            object_found=number in self.store,
            object_available=there,
            object_content=self.store[number] if there else b"",
        )

    def ConfirmMessageReceived(self, request: object) -> None:
        self.confirmed += 1


def head(kind: str, children: Iterable[str], body: bytes) -> bytes:
    """Return an object as a client would upload it, with what the SuperLink checks about it."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
    validate_object_content(content)
    return content


def swapped(objects: Objects, kind: str, change: Callable[[bytes], bytes | list[bytes]]) -> Objects:
    """Return the objects with those of a kind changed (several: the last one counts), and all that refer to them."""
    parts, top = objects
    renamed: dict[str, str] = {}
    found: dict[str, bytes] = {}
    for key, content in parts.items():
        for old, new in renamed.items():
            content = content.replace(old.encode(), new.encode())
        if content.startswith(kind.encode() + b" "):
            changed = change(content)
            *more, content = changed if isinstance(changed, list) else [changed]
            found |= {get_object_id(other): other for other in more}
        renamed[key] = get_object_id(content)
        found[renamed[key]] = content
    return found, renamed[top]


def described(content: bytes, **changed: object) -> bytes:
    """Return an Array with another description."""
    first, body = content.split(b"\x00", 1)
    return head("Array", _children(first), json.dumps(json.loads(body) | changed).encode())


def _children(first: bytes) -> list[str]:
    return first.split(b" ")[1].decode().split(",")


def repeated(times: int) -> Callable[[Objects], Objects]:
    """Name the only part of each array many times."""
    return lambda objects: swapped(objects, "Array", lambda array: described(array, arraychunk_ids=[0] * times))


def nested(times: int) -> Callable[[Objects], Objects]:
    """Name an array of repeated parts as a part, many times."""

    def change(array: bytes) -> list[bytes]:
        inner = described(array, arraychunk_ids=[0] * times)
        body = array.split(b"\x00", 1)[1]
        outer = head(
            "Array", [get_object_id(inner)], json.dumps(json.loads(body) | {"arraychunk_ids": [0] * times}).encode()
        )
        return [inner, outer]

    return lambda objects: swapped(objects, "Array", change)
