"""Delegation of `backward` and `gramian` to `paretograd.distributed` if several processes share a model.

`paretograd.distributed` is the layer above and registers itself here. In a program without `torch.distributed`, this
costs a single test per call.
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
    """Distributed versions of both functions. They return None if the call concerns this process alone."""

    def backward(self, call: Call) -> Step | None:
        """Do the work of `paretograd.backward`."""

    def gramian(self, call: Call) -> Tensor | None:
        """Do the work of `paretograd.gramian` for losses."""


_HANDLER: list[Handler] = []


def register(handler: Handler) -> None:
    """Register the handler for all later calls."""
    _HANDLER[:] = [handler]


def handler() -> Handler | None:
    """Return the handler if `torch.distributed` is initialised, else None."""
    distributed = torch.distributed
    return _HANDLER[0] if _HANDLER and distributed.is_available() and distributed.is_initialized() else None


def check_parallel(parallel: Parallel, samples: int | Sequence[int] | None) -> None:
    """Validate both arguments, even in a single process, so that mistakes show up early."""
    if parallel not in get_args(Parallel):
        raise ParameterError(f"parallel={parallel!r}: use one of {', '.join(get_args(Parallel))}")
    single = isinstance(samples, int) or not isinstance(samples, Iterable)
    counts = [] if samples is None else [samples] if single else list(samples)  # type: ignore[arg-type]
    if any(type(count) is not int or count < 0 for count in counts):
        raise ParameterError(
            f"samples={samples!r}: give the number of samples over which this process's losses are means, a whole "
            "number, or one per loss"
        )


class _Unreadable:
    """Placeholder for an iterable that failed. It raises the error again where other processes can be told of it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error


def settled(values: Any) -> Any:
    """Convert one-shot iterables, such as ``model.parameters()``, to lists, because they are read twice."""
    if isinstance(values, Tensor | nn.Module | str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    try:
        return [settled(value) for value in values]
    except Exception as error:  # noqa: BLE001  # the other processes must be told of any error
        return _Unreadable(error)


def as_params(params: Params | None) -> Iterable[Tensor] | Iterable[Iterable[Tensor]] | None:
    """Replace a module by its parameters that require gradients."""
    return [p for p in params.parameters() if p.requires_grad] if isinstance(params, nn.Module) else params
