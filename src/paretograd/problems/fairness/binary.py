"""Labels and groups: what is neither bool nor 0 or 1 would be counted wrongly, and nobody would see it."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.errors import InputError

#: Values that a message shows.
_SHOWN = 5


def check_binary(**parts: Tensor) -> None:
    """Raise unless all entries are 0 or 1, or bool.

    On a GPU, too, where the answer is waited for once a call: a rule waits for the Gramian in every step, anyway. What
    may not wait, a graph that is being compiled or recorded, is not looked at.

    Args:
        **parts: by the names that a message calls them.
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
                f"{name}: bool, or numbers 0 and 1; {int(entries.sum())} of {entries.numel()} are not: "
                f"{', '.join(found[:_SHOWN])}{more} Give {name} == X, where X is the value that stands for 1"
            )
