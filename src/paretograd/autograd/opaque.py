"""Calls that `torch.compile` does not look into.

`torch.compiler.disable` says so, but imports the compiler, which takes longer than torch itself. So it is asked once
something else has imported the compiler; before that, nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def opaque(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The same call, which a compiled function makes as it is, between two graphs."""
    hidden: list[Callable[Arguments, Answer]] = []

    @wraps(call)
    def outer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        if "torch._dynamo" not in sys.modules:
            return call(*args, **kwargs)
        if not hidden:
            hidden.append(torch.compiler.disable(call))  # type: ignore[no-untyped-call]
        return hidden[0](*args, **kwargs)

    return outer
