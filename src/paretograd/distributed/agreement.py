"""All processes do the same thing, or all of them raise the same error.

Before anything large is sent, one number of every process is summed: how many failed or see something that they did
not see lately, how many mean the second of the two kinds of step that are kept, how many samples there are. Only if
the first is not zero, or some mean one kind and some the other, do they tell each other more, so that a step in which
nothing happens costs eight bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paretograd import errors
from paretograd.aggregators.base import Aggregator
from paretograd.distributed.ranks import Ranks
from paretograd.errors import NonFiniteGradientError, ParameterError, ParetogradError, ProcessError

#: Bits for each of the two counts in the number that is summed; the samples have the rest.
_BITS = 16

#: How many characters of a value an error shows.
_SHOWN = 200

#: Copies of a parameter differ by no more than this, in units of its length: rounding, but no other parameter.
_ALIKE = 1e-3


@dataclass(frozen=True)
class View:
    """What one process sees of a step.

    Attributes:
        params: the ``id`` of each parameter, which means something in this process alone.
        m: how many losses it has.
        shapes: shapes and dtypes of the parameters.
        reached: for each parameter, a bit for every loss that reaches it.
        batched: whether its backward pass can be batched.
        options: what else must be the same everywhere, by the words for it.
    """

    params: tuple[int, ...]
    m: int
    shapes: tuple[Any, ...]
    reached: tuple[int, ...]
    batched: bool
    options: dict[str, Any]


@dataclass
class _Kept:
    """A kind of step: what this process saw, what was made of what all saw, and the rule's digest after it."""

    view: View | None
    settled: Any
    digest: str


@dataclass
class _Memory:
    """Two kinds of step, which may take turns as those of two models do, and which of them was the last."""

    slots: list[_Kept | None] = field(default_factory=lambda: [None, None])
    last: int = 1

    def find(self, view: View | None, digest: str) -> int | None:
        """The slot of such a step; the rule may be another's, and is then as that one left it."""
        latest = self.slots[self.last]
        for slot in (self.last, 1 - self.last):
            kept = self.slots[slot]
            if kept is not None and latest is not None and kept.view == view:
                return slot if digest in (kept.digest, latest.digest) else None
        return None


#: By the group, and by whether there is a rule.
_AGREED: dict[tuple[Any, ...], _Memory] = {}


def agree(
    ranks: Ranks,
    view: View | None,
    params: Sequence[Tensor],
    aggregator: Aggregator | None,
    samples: int | None,
    error: Exception | None,
    settle: Callable[[list[View]], Any],
) -> tuple[Any, int]:
    """Go on together, or raise together.

    Args:
        ranks: the processes.
        view: what this one sees; None with an error.
        params: those of which every process should hold a copy.
        aggregator: the rule, whose state becomes the first process's where they differ.
        samples: how many samples this process has, if it said so.
        error: what went wrong here.
        settle: makes of what all of them see what they agree on, in the same way everywhere, or raises.

    Returns:
        what ``settle`` returned, now or in an earlier step; and the number of samples of all processes.
    """
    digest = _digest(aggregator)
    memory = _AGREED.setdefault((ranks.key, aggregator is None), _Memory())
    slot = None if error is not None else memory.find(view, digest)
    number = int(slot is None) | (slot or 0) << _BITS | (samples or 0) << 2 * _BITS
    total = int(ranks.sum(torch.tensor([number], dtype=torch.int64, device="cpu")))
    mask = (1 << _BITS) - 1
    if slot is None or total & mask or total >> _BITS & mask not in (0, ranks.size):
        settled = _tell(ranks, view, params, aggregator, error, settle)
        slot = 1 - memory.last
        memory.slots[slot] = _Kept(view, settled, _digest(aggregator))
    memory.last = slot
    kept = memory.slots[slot]
    assert kept is not None
    return kept.settled, total >> 2 * _BITS


def _tell(
    ranks: Ranks,
    view: View | None,
    params: Sequence[Tensor],
    aggregator: Aggregator | None,
    error: Exception | None,
    settle: Callable[[list[View]], Any],
) -> Any:
    """All that a process knows of a step to all others, and what they make of it."""
    raise_together(ranks, error)
    digest, state = _digest(aggregator), None if aggregator is None else aggregator.state_dict()
    told = ranks.gather((view, _kind(aggregator), digest, state, _prints(params)))
    views, kinds, digests, states, prints = zip(*told, strict=True)
    if len(set(kinds)) > 1:
        raise ProcessError(f"the processes use different rules: {', '.join(kinds)}")
    settled = settle(list(views))
    _check_copies(prints, params)
    if aggregator is not None and len(set(digests)) > 1:
        _take_state(ranks, aggregator, states[0])
    return settled


def _prints(params: Sequence[Tensor]) -> list[list[float]]:
    """Sum and length of each parameter, by which a copy of it is known."""
    found = []
    for param in params:
        values = torch.view_as_real(param.detach()) if param.is_complex() else param.detach()
        length = torch.linalg.vector_norm(values, dtype=torch.float64)
        found.append(torch.stack([values.sum(dtype=torch.float64), length]))
    return [print_.tolist() for print_ in found]


def _check_copies(prints: Sequence[list[list[float]]], params: Sequence[Tensor]) -> None:
    """Raise where a parameter's place is taken by another one on some process."""
    for number, others in enumerate(prints):
        for param, mine, other in zip(params, prints[0], others, strict=True):
            if any(abs(a - b) > _ALIKE * max(mine[1], other[1]) for a, b in zip(mine, other, strict=True)):
                raise ProcessError(
                    f"a parameter of shape {tuple(param.shape)} has other values on process {number} than on process "
                    "0: the processes reach the parameters in another order, or hold no copies of one model. Give the "
                    "model as params, and the same parameters to all processes"
                )


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
    memory = _AGREED[ranks.key, False]
    kept = memory.slots[memory.last]
    assert kept is not None
    kept.digest = _digest(aggregator)


def _digest(aggregator: Aggregator | None) -> str:
    """A rule's kind and state."""
    if not isinstance(aggregator, Aggregator):  # whoever gave something else has an error to tell
        return ""
    state = aggregator.state_dict()
    return _kind(aggregator) + (hashlib.sha256(repr(state).encode()).hexdigest() if state else "")


def _kind(aggregator: Aggregator | None) -> str:
    """What tells a rule from others, less seeds, which its state holds, and addresses of functions."""
    return "" if aggregator is None else re.sub(r"\bseed=\d+| at 0x[0-9a-f]+", "", repr(aggregator))


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
