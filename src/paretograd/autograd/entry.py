"""Entry to the engine: arguments, functions that `torch.compile` does not trace, delegation to several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from paretograd.autograd.call import Call, Plan
from paretograd.autograd.step import Step
from paretograd.autograd.sums import Gradients, Sums

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def opaque(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Wrap a function so that compiled code calls it uncompiled, between two graphs.

    `torch.compiler.disable` achieves this, but imports the compiler, which takes longer than importing torch itself. It
    is therefore applied only once something else has imported the compiler; before that, nothing is compiled.
    """
    hidden: list[Callable[Arguments, Answer]] = []

    @wraps(call)
    def outer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        if "torch._dynamo" not in sys.modules:
            return call(*args, **kwargs)
        if not hidden:
            hidden.append(torch.compiler.disable(call))  # type: ignore[no-untyped-call]
        return hidden[0](*args, **kwargs)

    return outer


class Handler(Protocol):
    """Distributed versions of `backward`, `gramian` and `accumulate`.

    They return None if the call concerns this process alone.
    """

    def backward(self, call: Call) -> Step | None:
        """Do the work of `paretograd.backward`."""

    def gramian(self, call: Call) -> Tensor | None:
        """Do the work of `paretograd.gramian` for losses."""

    def shards(self, call: Call, sure: bool) -> tuple[Plan, Gradients, list[int] | None] | None:
        """Return the shards of the gradients of a micro-batch, and its samples; None if parameters are whole.

        Args:
            call: the call.
            sure: True if the parameters are known to be sharded.
        """

    def step(self, call: Call, sums: Sums, problem: Exception | None) -> Step | None:
        """Aggregate the sums of all processes, or raise on all of them if one has a problem."""


_HANDLER: list[Handler] = []


def register(handler: Handler) -> None:
    """Register the handler for all later calls: `paretograd.distributed`, the layer above."""
    _HANDLER[:] = [handler]


def several_processes() -> bool:
    """Return True if `torch.distributed` is initialised with more than one process."""
    return _is_initialised() and torch.distributed.get_world_size() > 1


def handler() -> Handler | None:
    """Return the handler if `torch.distributed` is initialised, else None."""
    return _HANDLER[0] if _HANDLER and _is_initialised() else None


def _is_initialised() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


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
