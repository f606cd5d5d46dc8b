"""Agreement between processes: all do the same thing, or all raise the same error.

Before anything large is sent, the processes sum one number each. It encodes how many failed or see a step unlike the
remembered ones, how many use the second of the two remembered kinds of step, and how many samples there are. Only if
the first count is not zero, or the processes use different kinds, do they exchange more. An ordinary step thus costs
eight bytes.
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

#: Bits of each of the two counts in the summed number; the samples use the rest.
_BITS = 16

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
        shapes: shapes and dtypes of the parameters.
        reached: for each parameter, a bit for every loss that reaches it.
        options: other values that must be the same on all processes, by their names in error messages.
    """

    params: tuple[int, ...]
    m: int
    shapes: tuple[Any, ...]
    reached: tuple[int, ...]
    options: dict[str, Any]


@dataclass
class _Kept:
    """A remembered kind of step: this process's view, the settled result, and the rule's digest after the step."""

    view: View | None
    settled: Any
    digest: str


@dataclass
class _Memory:
    """Two remembered kinds of step, which may alternate as with two models, and the index of the last one."""

    slots: list[_Kept | None] = field(default_factory=lambda: [None, None])
    last: int = 1

    def find(self, view: View | None, digest: str) -> int | None:
        """Return the slot of such a step, or None. The two kinds may share a rule, whose state is then the latest."""
        latest = self.slots[self.last]
        for slot in (self.last, 1 - self.last):
            kept = self.slots[slot]
            if kept is not None and latest is not None and kept.view == view:
                return slot if digest in (kept.digest, latest.digest) else None
        return None


#: Remembered steps, by process group and by the absence of a rule.
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
    """Continue on all processes, or raise on all of them.

    Args:
        ranks: the processes.
        view: this process's view; None if there is an error.
        params: parameters of which every process should hold a copy.
        aggregator: the rule; if its states differ, all processes take that of the first.
        samples: number of samples of this process, if given.
        error: the error of this process, if any.
        settle: function from the views of all processes to what they agree on. It must be deterministic, and may raise.

    Returns:
        the result of ``settle``, from now or an earlier step; and the number of samples of all processes.
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
    """Exchange all views of a step and return the settled result."""
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
        aggregator.load_state_dict(state)
    except ParetogradError as error:
        failure = error
    raise_together(ranks, failure)


def remember(ranks: Ranks, aggregator: Aggregator) -> None:
    """Remember the rule's state after a step. It is the same on all processes, as it was before the step."""
    memory = _AGREED[ranks.key, False]
    kept = memory.slots[memory.last]
    assert kept is not None
    kept.digest = _digest(aggregator)


def _digest(aggregator: Aggregator | None) -> str:
    """Return a digest of a rule's kind and state."""
    if not isinstance(aggregator, Aggregator):  # anything else is an error, which is reported elsewhere
        return ""
    state = aggregator.state_dict()
    return _kind(aggregator) + (hashlib.sha256(repr(state).encode()).hexdigest() if state else "")


def _kind(aggregator: Aggregator | None) -> str:
    """Return the ``repr`` of a rule without seeds, which its state contains, and without addresses of functions."""
    return "" if aggregator is None else re.sub(r"\bseed=\d+| at 0x[0-9a-f]+", "", repr(aggregator))


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
