"""Functions that `torch.compile` does not trace.

`torch.compiler.disable` achieves this, but imports the compiler, which takes longer than importing torch itself. It is
therefore applied only once something else has imported the compiler; before that, nothing is compiled.
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
    """Wrap a function so that compiled code calls it uncompiled, between two graphs."""
    hidden: list[Callable[Arguments, Answer]] = []

    @wraps(call)
    def outer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        if "torch._dynamo" not in sys.modules:
            return call(*args, **kwargs)
        if not hidden:
            hidden.append(torch.compiler.disable(call))  # type: ignore[no-untyped-call]
        return hidden[0](*args, **kwargs)

    return outer
