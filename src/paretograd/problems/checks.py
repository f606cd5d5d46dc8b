"""Validation of sizes, seeds and other whole numbers."""

from __future__ import annotations

import numpy as np

from paretograd.errors import ParameterError


def whole_number(problem: str, what: str, value: object, least: int | None = 1) -> int:
    """Validate a whole number of at least ``least`` and return it as an int.

    Args:
        problem: name of the problem, for error messages.
        what: name of the parameter, for error messages.
        value: the value to validate.
        least: the smallest allowed value; None for no limit.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ParameterError(f"{problem}: {what}={value!r} must be a whole number")
    if least is not None and value < least:
        raise ParameterError(f"{problem}: {what}={value} is too small; the smallest is {least}")
    return int(value)
