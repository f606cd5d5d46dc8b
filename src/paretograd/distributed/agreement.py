"""Agreement between processes: all do the same thing, or all raise the same error.

Before anything large is sent, the processes sum one number each. It encodes the kind of step that a process means,
among those that all remember, and the number of its samples. Only if some process failed or means a kind that is not
remembered, or if they mean different kinds, do they exchange more. An ordinary step thus costs eight bytes.

A process contributes the code v of its kind, and v squared. Zero is the code of a failure and of an unknown kind. The
points (v, v * v) lie on a strictly convex curve, so their mean is one of them only if all are the same. Each process
can thus tell by itself whether all mean the same kind, and all come to the same conclusion.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paretograd import errors
from paretograd.aggregators.base import Aggregator
from paretograd.distributed.ranks import Ranks
from paretograd.errors import NonFiniteGradientError, ParameterError, ParetogradError, ProcessError
from paretograd.scalarizations.base import Weighting

#: Number of kinds of step to remember. Very many processes remember fewer: see `_Code`.
_KINDS = 16

#: Bits of the summed number that encode the kind. The samples use the rest.
_BITS = 32

#: Number of characters of a value that an error shows.
_SHOWN = 200

#: Largest difference between copies of a parameter, relative to its norm. It allows for rounding only.
_ALIKE = 1e-3


@dataclass(frozen=True)
class View:
    """One process's view of a step.

    Attributes:
        params: the ``id`` of each parameter, which is meaningful only in this process.
        m: number of losses of this process.
        names: their names, if they have any.
        reached: for each parameter, a bit for every loss that reaches it.
        shapes: shapes and dtypes of the parameters.
        compiled: True if some of them belong to compiled models.
        options: other values that must be the same on all processes, by their names in error messages.
    """

    params: tuple[int, ...]
    m: int
    names: tuple[str, ...] | None
    reached: tuple[int, ...]
    shapes: tuple[Any, ...]
    compiled: bool
    options: dict[str, Any]


class _Code:
    """Encoding of a kind of step in a number that is summed over the processes.

    Attributes:
        kinds: number of kinds that can be distinguished: 16 for up to 1,023 processes.
    """

    def __init__(self, size: int) -> None:
        self._size, self.kinds = size, _KINDS
        while self.kinds > 1 and self._first + (size * self.kinds**2).bit_length() > _BITS:
            self.kinds -= 1

    @property
    def _first(self) -> int:
        """Number of bits for the sum of the codes. Those for the sum of their squares follow."""
        return (self._size * self.kinds).bit_length()

    def encode(self, slot: int | None, samples: int) -> int:
        """Return the number to sum: a slot, None if there is none, and a number of samples."""
        code = 0 if slot is None else slot + 1
        return code | code * code << self._first | samples << _BITS

    def agrees(self, slot: int, total: int) -> bool:
        """Return True if all processes mean this slot. The result is the same on all processes."""
        return total & (1 << _BITS) - 1 == self._size * self.encode(slot, 0)

    def samples(self, total: int) -> int:
        """Return the number of samples of all processes."""
        return total >> _BITS


@dataclass
class _State:
    """Digest of a rule after its latest step. The kinds of step that share the rule share this, too."""

    digest: str


@dataclass(frozen=True)
class _Kept:
    """A remembered kind of step: this process's view, the settled result, and the state of the rule."""

    view: View | None
    settled: Any
    state: _State


class _Memory:
    """Kinds of step on which all processes agreed, the same ones in the same slots on all of them."""

    def __init__(self, size: int) -> None:
        self.code = _Code(size)
        self._kept: dict[int, _Kept] = {}  # by slot, the most recently used last

    def find(self, view: View | None, digest: str) -> int | None:
        """Return the slot of such a step, or None."""
        for slot, kept in reversed(self._kept.items()):
            if kept.state.digest == digest and kept.view == view:
                return slot
        return None

    def use(self, slot: int) -> Any:
        """Return the settled result of a slot, which is now the most recently used."""
        kept = self._kept[slot] = self._kept.pop(slot)
        return kept.settled

    def keep(self, view: View | None, settled: Any, digest: str) -> None:
        """Remember a kind of step, in the place of the least recently used if all slots are taken."""
        states = [kept.state for kept in self._kept.values() if kept.state.digest == digest]
        slot = len(self._kept) if len(self._kept) < self.code.kinds else next(iter(self._kept))
        self._kept.pop(slot, None)
        self._kept[slot] = _Kept(view, settled, states[0] if states else _State(digest))

    def advance(self, digest: str) -> None:
        """Note the state of the rule after a step of the most recently used kind."""
        next(reversed(self._kept.values())).state.digest = digest


#: Remembered steps, by the first process group and the key of all. They are forgotten with the group, because the next
#: one may have the same ``id``.
_AGREED: WeakKeyDictionary[Any, dict[tuple[int, ...], _Memory]] = WeakKeyDictionary()


def agree(
    ranks: Ranks,
    view: View | None,
    params: Sequence[Tensor],
    aggregator: Aggregator | Weighting | None,
    samples: int | None,
    error: Exception | None,
    settle: Callable[[list[View]], Any],
) -> tuple[Any, int]:
    """Continue on all processes, or raise on all of them.

    Args:
        ranks: the processes.
        view: this process's view; None if there is an error.
        params: parameters of which every process should hold a copy.
        aggregator: the rule; if its states differ, all processes take that of the first. Rules that see the losses
            exchange their states later.
        samples: number of samples of this process, if given.
        error: the error of this process, if any.
        settle: function from the views of all processes to what they agree on. It must be deterministic, and may raise.

    Returns:
        the result of ``settle``, from now or an earlier step; and the number of samples of all processes.
    """
    digest = _digest(aggregator)
    memory = _AGREED.setdefault(ranks.groups[0], {}).setdefault(ranks.key, _Memory(ranks.size))
    slot = None if error is not None else memory.find(view, digest)
    number = memory.code.encode(slot, samples or 0)
    total = int(ranks.sum(torch.tensor([number], dtype=torch.int64, device="cpu")))
    if slot is not None and memory.code.agrees(slot, total):
        settled = memory.use(slot)
    else:
        settled = _tell(ranks, view, params, aggregator, error, settle)
        memory.keep(view, settled, _digest(aggregator))
    return settled, memory.code.samples(total)


def _tell(
    ranks: Ranks,
    view: View | None,
    params: Sequence[Tensor],
    aggregator: Aggregator | Weighting | None,
    error: Exception | None,
    settle: Callable[[list[View]], Any],
) -> Any:
    """Exchange all views of a step and return the settled result."""
    raise_together(ranks, error)
    digest, state = _digest(aggregator), aggregator._common_state() if isinstance(aggregator, Aggregator) else None
    told = ranks.gather((view, _kind(aggregator), digest, state, _prints(params)))
    views, kinds, digests, states, prints = zip(*told, strict=True)
    if len(set(kinds)) > 1:
        raise ProcessError(f"the processes use different rules: {', '.join(kinds)}")
    settled = settle(list(views))
    _check_copies(prints, params)
    if isinstance(aggregator, Aggregator) and len(set(digests)) > 1:
        _take_state(ranks, aggregator, states[0])
    return settled


def _prints(params: Sequence[Tensor]) -> list[list[float]]:
    """Return the sum and norm of each parameter, which identify copies of it."""
    found = []
    for param in params:
        values = torch.view_as_real(param.detach()) if param.is_complex() else param.detach()
        length = torch.linalg.vector_norm(values, dtype=torch.float64)
        found.append(torch.stack([values.sum(dtype=torch.float64), length]))
    return [print_.tolist() for print_ in found]


def _check_copies(prints: Sequence[list[list[float]]], params: Sequence[Tensor]) -> None:
    """Raise if some process has another parameter in the place of one of ours."""
    for number, others in enumerate(prints):
        for param, mine, other in zip(params, prints[0], others, strict=True):
            if any(abs(a - b) > _ALIKE * max(mine[1], other[1]) for a, b in zip(mine, other, strict=True)):
                raise ProcessError(
                    f"a parameter of shape {tuple(param.shape)} has other values on process {number} than on process "
                    "0: the processes reach the parameters in different orders, or do not hold copies of one model. "
                    "Give the model as params, and the same parameters to all processes"
                )


def _take_state(ranks: Ranks, aggregator: Aggregator, state: Mapping[str, Any]) -> None:
    """Load the first process's state into the rule, on all processes or on none."""
    failure = None
    try:
        aggregator._take_common_state(state)
    except ParetogradError as error:
        failure = error
    raise_together(ranks, failure)


def remember(ranks: Ranks, aggregator: Aggregator) -> None:
    """Remember the rule's state after a step. It is the same on all processes, as it was before the step."""
    _AGREED[ranks.groups[0]][ranks.key].advance(_digest(aggregator))


def _digest(aggregator: Aggregator | Weighting | None) -> str:
    """Return a digest of a rule's kind and state; of its kind only, if it sees the losses."""
    if isinstance(aggregator, Weighting):
        return _kind(aggregator)
    if not isinstance(aggregator, Aggregator):  # anything else is an error, which is reported elsewhere
        return ""
    state = aggregator._common_state()
    return _kind(aggregator) + (hashlib.sha256(repr(state).encode()).hexdigest() if state else "")


def _kind(aggregator: Aggregator | Weighting | None) -> str:
    """Return the ``repr`` of a rule without seeds, which its state contains, and without addresses of functions."""
    return "none" if aggregator is None else re.sub(r"\bseed=\d+| at 0x[0-9a-f]+", "", repr(aggregator))


def raise_together(ranks: Ranks, error: BaseException | None) -> None:
    """Raise the error of the first process that has one, on all processes."""
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
    """Raise if the processes gave different values."""
    for number, value in enumerate(values):
        if value != values[0]:
            first, other = (
                text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in (repr(values[0]), repr(value))
            )
            raise ProcessError(
                f"the processes do not agree on {what}: process 0 has {first}, process {number} has {other}"
            )
