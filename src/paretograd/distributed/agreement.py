"""All processes do the same thing, or all of them raise the same error.

Before anything large is sent, one number of every process is summed: how many failed, how many see something that
they did not see in the last step, how many samples there are. Only if one of the first two is not zero do they tell
each other more, so that a step in which nothing happens costs eight bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paretograd import errors
from paretograd.aggregators.base import Aggregator
from paretograd.distributed.ranks import Ranks
from paretograd.errors import NonFiniteGradientError, ParameterError, ParetogradError, ProcessError

#: Bits for each of the two counts in the number that is summed; the samples have the rest.
_BITS = 16

#: How many characters of a value an error shows.
_SHOWN = 200

#: What the processes last agreed on, and the digest of the rule's state after that step, by the group.
_AGREED: dict[tuple[Any, ...], tuple[Any, Any, str]] = {}


@dataclass(frozen=True)
class View:
    """What one process sees of a step.

    Attributes:
        m: how many losses it has.
        shapes: shapes and dtypes of the parameters.
        reached: for each parameter, a bit for every loss that reaches it.
        batched: whether its backward pass can be batched.
        options: what else must be the same everywhere, by the words for it.
    """

    m: int
    shapes: tuple[Any, ...]
    reached: tuple[int, ...]
    batched: bool
    options: dict[str, Any]


def agree(
    ranks: Ranks,
    view: View | None,
    aggregator: Aggregator | None,
    samples: int | None,
    error: Exception | None,
    settle: Callable[[list[View]], Any],
) -> tuple[Any, int]:
    """Go on together, or raise together.

    Args:
        ranks: the processes.
        view: what this one sees; None with an error.
        aggregator: the rule, whose state becomes the first process's where they differ.
        samples: how many samples this process has, if it said so.
        error: what went wrong here.
        settle: makes of what all of them see what they agree on, in the same way everywhere, or raises.

    Returns:
        what ``settle`` returned, now or in the step before; and the number of samples of all processes.
    """
    digest = _digest(aggregator)
    key = (ranks.key, aggregator is None)
    before = _AGREED.get(key)
    changed = before is None or before[0] != view or before[2] != digest
    number = int(error is not None) | int(changed) << _BITS | (samples or 0) << 2 * _BITS
    total = int(ranks.sum(torch.tensor([number], dtype=torch.int64, device="cpu")))
    mask = (1 << _BITS) - 1
    if total & mask:
        raise_together(ranks, error)
    if total >> _BITS & mask:
        state = None if aggregator is None else aggregator.state_dict()
        told = ranks.gather((view, _kind(aggregator), digest, state))
        if len({kind for _, kind, _, _ in told}) > 1:
            raise ProcessError(f"the processes use different rules: {', '.join(kind for _, kind, _, _ in told)}")
        settled = settle([each for each, _, _, _ in told])
        if aggregator is not None and len({digest for _, _, digest, _ in told}) > 1:
            _take_state(ranks, aggregator, told[0][3])
        _AGREED[key] = (view, settled, _digest(aggregator))
    return _AGREED[key][1], total >> 2 * _BITS


def _take_state(ranks: Ranks, aggregator: Aggregator, state: Mapping[str, Any]) -> None:
    """Give the rule the first process's state, on all processes or on none."""
    failure = None
    try:
        aggregator.load_state_dict(state)
    except ParetogradError as error:
        failure = error
    raise_together(ranks, failure)


def remember(ranks: Ranks, aggregator: Aggregator) -> None:
    """The rule's state after a step, which is the same everywhere since it was so before it."""
    view, settled, _ = _AGREED[ranks.key, False]
    _AGREED[ranks.key, False] = (view, settled, _digest(aggregator))


def _digest(aggregator: Aggregator | None) -> str:
    """A rule's kind and state."""
    if not isinstance(aggregator, Aggregator):  # whoever gave something else has an error to tell
        return ""
    state = aggregator.state_dict()
    return _kind(aggregator) + (hashlib.sha256(repr(state).encode()).hexdigest() if state else "")


def _kind(aggregator: Aggregator | None) -> str:
    """What tells a rule from others, less what its state holds, such as a seed."""
    return "" if aggregator is None else aggregator.name if aggregator.state_dict() else repr(aggregator)


def raise_together(ranks: Ranks, error: BaseException | None) -> None:
    """Raise the error of the first process that has one; return if none has."""
    told = ranks.gather(None if error is None else _packed(error))
    for number, packed in enumerate(told):
        if packed is not None:
            raise _unpacked(packed, number, len(told)) from error


def _packed(error: BaseException) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "ours": isinstance(error, ParetogradError),
        "objectives": getattr(error, "objectives", None),
    }


def _unpacked(packed: Mapping[str, Any], number: int, size: int) -> ParetogradError:
    if packed["kind"] == "NonFiniteGradientError":
        return NonFiniteGradientError(packed["objectives"])
    where = f"process {number} of {size}"
    if not packed["ours"]:
        return ProcessError(f"{where} failed, and nothing was changed: {packed['kind']}: {packed['text']}")
    kind = getattr(errors, packed["kind"], ProcessError)
    if issubclass(kind, errors.HypothesisError) or not issubclass(kind, ParetogradError):
        kind = ParameterError
    found: ParetogradError = kind(f"{packed['text']} ({where})")
    return found


def same(what: str, values: Sequence[Any]) -> None:
    """Raise unless all processes gave the same."""
    for number, value in enumerate(values):
        if value != values[0]:
            first, other = (
                text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in (repr(values[0]), repr(value))
            )
            raise ProcessError(
                f"the processes do not agree on {what}: process 0 has {first}, process {number} has {other}"
            )
