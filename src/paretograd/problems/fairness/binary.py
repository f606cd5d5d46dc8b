"""Validation of labels and groups. Values other than bool, 0 and 1 would be miscounted silently."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.errors import InputError

#: Number of values shown in an error message.
_SHOWN = 5


def check_binary(**parts: Tensor) -> None:
    """Raise if an entry is neither 0 nor 1 nor a bool.

    On a GPU this synchronises once per call, which a rule does for the Gramian in every step anyway. The check is
    skipped while a graph is compiled or captured, when synchronising is not allowed.

    Args:
        **parts: the tensors, by their names in error messages.
    """
    numbers = {name: values for name, values in parts.items() if values.dtype is not torch.bool}
    if not numbers or torch.compiler.is_compiling():
        return
    if any(values.is_cuda for values in numbers.values()) and torch.cuda.is_current_stream_capturing():
        return
    wrong = {name: (values != 0) & (values != 1) for name, values in numbers.items()}  # NaN is neither
    if not torch.stack([entries.any() for entries in wrong.values()]).any():
        return
    for name, entries in wrong.items():
        if entries.any():
            values = numbers[name][entries].double().sort().values
            found = list(dict.fromkeys(f"{value:g}" for value in values.tolist()))
            more = ", ..." if len(found) > _SHOWN else "."
            raise InputError(
                f"{name} must be bool or hold only 0 and 1; {int(entries.sum())} of {entries.numel()} are not: "
                f"{', '.join(found[:_SHOWN])}{more} Give {name} == X, where X is the value that stands for 1"
            )
