"""Where `backward` and `gramian` hand over if a model is shared by several processes.

What they do then is the layer above, `paretograd.distributed`, which registers itself here. In a program that has not
set up `torch.distributed` all of this is one question, asked at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator
from paretograd.autograd.step import Step
from paretograd.errors import ParameterError

Parallel = Literal["auto", "none", "data", "objectives"]
Params = nn.Module | Iterable[Tensor] | Iterable[Iterable[Tensor]]


@dataclass(frozen=True)
class Call:
    """The arguments of `backward`, or of `gramian`, which has no rule."""

    losses: Sequence[Tensor] | Tensor
    params: Params | None
    parallel: Parallel
    process_group: Any
    samples: int | Sequence[int] | None
    chunk: int | None
    aggregator: Aggregator | None = None
    shared: Sequence[Tensor] | None = None
    specific: Sequence[Tensor] | None = None
    retain_graph: bool = True
    per_sample: bool = False
    nonfinite: Literal["raise", "propagate"] = "raise"
    has_rule: bool = True
    engine: str = "auto"


class Handler(Protocol):
    """What takes over. Both answer None where the call is this process's own affair."""

    def backward(self, call: Call) -> Step | None:
        """As `paretograd.backward`."""

    def gramian(self, call: Call) -> Tensor | None:
        """As `paretograd.gramian`, of losses."""


_HANDLER: list[Handler] = []


def register(handler: Handler) -> None:
    """Let a handler take over from now on."""
    _HANDLER[:] = [handler]


def handler() -> Handler | None:
    """What takes over, if several processes were set up."""
    distributed = torch.distributed
    return _HANDLER[0] if _HANDLER and distributed.is_available() and distributed.is_initialized() else None


def check_parallel(parallel: Parallel, samples: int | Sequence[int] | None) -> None:
    """Raise unless both are what they may be, in one process as well: a mistake should not wait for the second."""
    if parallel not in get_args(Parallel):
        raise ParameterError(f"parallel={parallel!r}: use one of {', '.join(get_args(Parallel))}")
    single = isinstance(samples, int) or not isinstance(samples, Iterable)
    counts = [] if samples is None else [samples] if single else list(samples)  # type: ignore[arg-type]
    if any(type(count) is not int or count < 0 for count in counts):
        raise ParameterError(
            f"samples={samples!r}: give how many samples this process's losses are means over, a whole number, or one "
            "for each loss"
        )


class _Unreadable:
    """In the place of something that failed when it was iterated; it does so again where others can be told of it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error


def settled(values: Any) -> Any:
    """What can be iterated once only, such as ``model.parameters()``, as lists: it will be looked at twice."""
    if isinstance(values, Tensor | nn.Module | str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    try:
        return [settled(value) for value in values]
    except Exception as error:  # noqa: BLE001  # whatever it is, the other processes must be told
        return _Unreadable(error)


def as_params(params: Params | None) -> Iterable[Tensor] | Iterable[Iterable[Tensor]] | None:
    """A module stands for its parameters that learn."""
    return [p for p in params.parameters() if p.requires_grad] if isinstance(params, nn.Module) else params
