"""Reading of Flower's messages without trust: a client chooses the bytes, names and numbers in its reply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.errors import InputError
from paretograd.federated.replies import LARGEST, Dropped, shown

if TYPE_CHECKING:
    from flwr.app import Array, Error, Message, Metadata, MetricRecord, RecordDict

#: Upper bound on the header of an .npy file, which has at most a few hundred bytes for the shapes of a model.
_HEADER = 4096

#: Functions that read the header of an .npy file, by its version.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

#: Code of an error that the server itself made, so that its reason needs no quotes.
FAILED = -1

#: Codes of the errors by which Flower replaces a reply that expired, or that of a node that is not connected.
_UNAVAILABLE = (3, 4, 5)

#: Prefix of the server's own metrics.
OWN = "mo/"

#: Type of a metric in Flower.
Value = int | float | list[int] | list[float]

#: Form that two records must share to be averaged: names, and lengths of lists (None for a number).
_Form = tuple[tuple[str, int | None], ...]


class Metrics(NamedTuple):
    """Contents whose metrics can be averaged, in the order of their node numbers, and the reasons to drop others."""

    contents: list[RecordDict]
    nodes: list[int]
    dropped: list[Dropped]


class Answers(NamedTuple):
    """Answers to the messages of a round.

    Attributes:
        contents: content of the reply of each node that was asked, in the order of node numbers; an exception where
            there is none.
        strays: descriptions of replies that answer none of the messages.
    """

    contents: dict[int, RecordDict | Exception]
    strays: list[str]


def by_node(replies: Iterable[Message], asked: Sequence[Metadata] | None) -> Answers:
    """Match replies to the messages that they answer.

    The sender that a reply names is its own claim. If the messages have numbers, which they get when they are sent, the
    number of the message decides which node replied.

    Args:
        replies: replies of all nodes, in any order.
        asked: metadata of the messages that were sent; None if they are unknown, to believe the replies.
    """
    messages = {message.message_id: message.dst_node_id for message in asked or () if message.message_id}
    nodes = None if asked is None else {message.dst_node_id for message in asked}
    found: dict[int, RecordDict | Exception] = {}
    strays = []
    for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = reply.metadata.src_node_id
        if messages:
            node = messages.get(reply.metadata.reply_to_message_id)
        elif nodes is not None and node not in nodes:
            node = None
        if node is None:
            strays.append(_stray(reply))
        else:
            # The order of arrival must not matter.
            found[node] = InputError("the node replied more than once") if node in found else _content(reply)
    for node in (nodes or set()) - set(found):
        found[node] = InputError("it sent no reply")
    return Answers(dict(sorted(found.items())), strays)


def _content(reply: Message) -> RecordDict | Exception:
    if reply.has_error():
        return InputError(_failure(reply.error))
    return reply.content if reply.has_content() else InputError("it is empty")


def _stray(reply: Message) -> str:
    """Describe a reply that belongs to no node, without blaming the one that it names."""
    named = f"in the name of node {reply.metadata.src_node_id} answers no message of this round and is ignored"
    return f"an error {named}: {_failure(reply.error)}" if reply.has_error() else f"a reply {named}"


def _failure(error: Error) -> str:
    if error.code == FAILED:
        return str(error.reason)
    what = "no reply arrived" if error.code in _UNAVAILABLE else "the client failed"
    return f"{what}: {shown(error.reason or error.code, 200)}"


def read_arrays(content: RecordDict | Exception, sizes: Mapping[str, int]) -> object:
    """Return the arrays in a reply by name, or an exception that says why there are none.

    Args:
        content: content of a reply.
        sizes: sizes of the global model's arrays in bytes, by name. Larger or unknown arrays are not unpacked.
    """
    if isinstance(content, Exception):
        return content
    records = list(content.array_records.values())
    if len(records) != 1:
        return InputError(f"it holds {len(records)} array records; one is expected")
    found: dict[str, object] = {}
    for name, array in records[0].items():
        if name not in sizes:
            found[name] = None
            continue
        if len(array.data) > sizes[name] + _HEADER:
            return InputError(f"{name} is larger than the model's")
        try:
            found[name] = shared(array)
        except Exception as error:  # noqa: BLE001  a client's bytes may break the parser in any way
            return InputError(f"{name} cannot be read: {type(error).__name__}: {shown(error, 80)}")
    return found


def shared(array: Array) -> NDArray[np.generic]:
    """Return an array of a record, read-only, in the memory that holds its bytes. `Array.numpy` would copy them.

    Nothing is unpickled, here or by Flower, which reads what is not in the plain form of `numpy.save`.
    """
    head, found = BytesIO(array.data), None  # shares the memory
    if array.stype == "numpy.ndarray" and array.data.startswith(np.lib.format.MAGIC_PREFIX):
        read = _HEADERS.get(np.lib.format.read_magic(head))
        shape, by_columns, dtype = read(head) if read else ((), False, np.dtype(object))
        count = math.prod(shape)
        if count and min(shape, default=1) > 0 and not dtype.hasobject:
            entries = np.frombuffer(array.data, dtype, count, head.tell())
            found = entries.reshape(shape[::-1]).T if by_columns else entries.reshape(shape)
    return np.asarray(array.numpy()) if found is None else found


def packed(array: NDArray[np.generic]) -> Array:
    """Return an array for a record. Flower's own `Array(array)` needs the memory of two copies."""
    from flwr.app import Array

    array = np.asarray(array, order="C")
    np.lib.format.write_array_header_1_0(head := BytesIO(), np.lib.format.header_data_from_array_1_0(array))
    return Array(str(array.dtype), array.shape, "numpy.ndarray", b"".join([head.getvalue(), array]))  # type: ignore[list-item]


def check_metrics(contents: Mapping[int, RecordDict | Exception], weight: str) -> Metrics:
    """Drop metrics that cannot be averaged: not a single record, not finite, or not of the most frequent form.

    Args:
        contents: contents of replies by node, in the order of node numbers.
        weight: name of the metric with the number of examples, which cannot be negative.
    """
    faults = {node: _metrics_fault(content, weight) for node, content in contents.items()}
    forms = {
        node: _form(content)
        for node, content in contents.items()
        if faults[node] is None and not isinstance(content, Exception)
    }
    # Among equally frequent forms the last in the alphabet wins, so that the order of replies does not matter.
    usual = max(Counter(forms.values()).items(), key=lambda pair: (pair[1], repr(pair[0])), default=((), 0))[0]
    for node, form in forms.items():
        if form != usual:
            faults[node] = f"its metrics are {_named(form)}, and those of most are {_named(usual)}"
    good = [node for node in contents if faults[node] is None]
    used = [content for node in good if not isinstance(content := contents[node], Exception)]
    return Metrics(used, good, [Dropped(node, fault) for node, fault in faults.items() if fault is not None])


def _metrics_fault(content: RecordDict | Exception, weight: str) -> str | None:
    if isinstance(content, Exception):
        return str(content)
    if len(content.metric_records) != 1:
        return f"it holds {len(content.metric_records)} metric records; one is expected"
    record = _record(content)
    for name, value in record.items():
        if name.startswith(OWN):
            return f"the metric {shown(name)} would pass for one of the server's"
        # isfinite would fail for integers beyond the range of floats.
        if not all(abs(number) <= LARGEST for number in (value if isinstance(value, list) else [value])):
            return f"the metric {shown(name)} holds NaN, infinity, or a number beyond {LARGEST:g}"
    count = record.get(weight, 0)
    if isinstance(count, list) or count < 0:
        return f"the metric {weight} is not a number of examples"
    return None


def _record(content: RecordDict) -> MetricRecord:
    record: MetricRecord = next(iter(content.metric_records.values()))
    return record


def _form(content: RecordDict) -> _Form:
    record = _record(content)
    return tuple(sorted((name, len(value) if isinstance(value, list) else None) for name, value in record.items()))


def _named(form: _Form) -> str:
    parts = [shown(name) if length is None else f"{shown(name)}[{length}]" for name, length in form[:5]]
    return (", ".join(parts) or "none") + (", ..." if len(form) > 5 else "")


def average(contents: list[RecordDict], weight: str) -> dict[str, Value]:
    """Return each metric's mean over clients, and the median of single numbers unless clients report that name.

    All clients count the same, since the number of examples is a client's own claim. The median is robust as long as
    fewer than half of them lie.
    """
    found: dict[str, Value] = {}
    records = [_record(content) for content in contents]
    for name in sorted(records[0]) if records else []:
        values = [record[name] for record in records]
        if name == weight:
            continue
        if isinstance(values[0], list):
            columns = zip(*(value for value in values if isinstance(value, list)), strict=True)
            found[name] = [fmean(column) for column in columns]
        else:
            numbers = [float(value) for value in values if not isinstance(value, list)]
            found[name] = fmean(numbers)
            if f"{name}/median" not in records[0]:
                found[f"{name}/median"] = float(median(numbers))
    return found
