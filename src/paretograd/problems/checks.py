"""Sizes, seeds and other parameters of problems."""

from __future__ import annotations

import numpy as np

from paretograd.errors import ParameterError


def whole_number(problem: str, what: str, value: object, least: int | None = 1) -> int:
    """An int, not below ``least``.

    Args:
        problem: name of the problem, for the message.
        what: name of the parameter, for the message.
        value: what was given.
        least: the smallest value allowed; None for any.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ParameterError(f"{problem}: {what}={value!r} must be a whole number")
    if least is not None and value < least:
        raise ParameterError(f"{problem}: {what}={value} is too small; the smallest is {least}")
    return int(value)
