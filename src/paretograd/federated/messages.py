"""What Flower's messages hold, read without trust: the bytes, names and numbers in a reply are the client's choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from paretograd.errors import InputError
from paretograd.federated.replies import LARGEST, Dropped, shown

if TYPE_CHECKING:
    from flwr.app import Message, MetricRecord, RecordDict

#: An .npy file's header is at most a few hundred bytes long for any shape that a model has.
_HEADER = 4096

#: How names of the server's own metrics begin.
OWN = "mo/"

#: What a metric may be in Flower.
Value = int | float | list[int] | list[float]

#: What two records must share to be averaged: names, and lengths of lists (None for a number).
_Form = tuple[tuple[str, int | None], ...]


class Metrics(NamedTuple):
    """Contents whose metrics can be averaged, in the order of their nodes' numbers, and why those of others cannot."""

    contents: list[RecordDict]
    nodes: list[int]
    dropped: list[Dropped]


def by_node(replies: Iterable[Message]) -> dict[int, RecordDict | Exception]:
    """Contents of replies by their node, in the order of the nodes' numbers; an exception where there is none."""
    found: dict[int, RecordDict | Exception] = {}
    for message in sorted(replies, key=lambda message: message.metadata.src_node_id):
        node = message.metadata.src_node_id
        if node in found:
            # Which came first must not matter.
            found[node] = InputError("the node replied more than once")
        elif message.has_error():
            found[node] = InputError(f"the client failed: {shown(message.error.reason or message.error.code, 200)}")
        elif not message.has_content():
            found[node] = InputError("it is empty")
        else:
            found[node] = message.content
    return found


def read_arrays(content: RecordDict | Exception, sizes: Mapping[str, int]) -> object:
    """The arrays in a reply by their names, or an exception that says why there are none.

    Args:
        content: of a reply.
        sizes: of the global model's arrays in bytes, by their names. What is larger or unknown is not unpacked.
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
            found[name] = array.numpy()  # Flower never unpickles
        except Exception as error:  # noqa: BLE001  bytes of a client's choice may break the parser in any way
            return InputError(f"{name} cannot be read: {type(error).__name__}: {shown(error, 80)}")
    return found


def check_metrics(contents: Mapping[int, RecordDict | Exception], weight: str) -> Metrics:
    """Sort out metrics that cannot be averaged: not one record, not finite, or not of the form that most have.

    Args:
        contents: of replies by their node, in the order of the nodes' numbers.
        weight: the name of the number of examples, which cannot be negative.
    """
    faults = {node: _metrics_fault(content, weight) for node, content in contents.items()}
    forms = {
        node: _form(content)
        for node, content in contents.items()
        if faults[node] is None and not isinstance(content, Exception)
    }
    # Of forms that are equally frequent the one that is last in the alphabet, so that the order never matters.
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
        # Not a call of isfinite, which fails for whole numbers beyond the range of floats.
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
    """Each metric's mean over clients, and for single numbers its median, unless clients report one of that name.

    All clients count the same, since the number of examples is a client's own claim. The median stands as long as
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
