"""Validation of what several rules take: weight vectors, numbers, losses and random generators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array


def as_weights(values: Sequence[float] | Tensor | Array, what: str, m: int | None = None) -> Array:
    """Validate a vector of finite, non-negative numbers, one per objective, and return it as a new array.

    At least one of the numbers must be positive.

    Args:
        values: the vector.
        what: its name in error messages.
        m: the number of objectives, if known.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().to(torch.float64).numpy()
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{what} is a vector with one number per objective; got {values!r}") from None
    if array.ndim != 1 or not len(array):
        raise ParameterError(f"{what} is a vector with one number per objective; got shape {array.shape}")
    if m is not None and len(array) != m:
        raise ParameterError(f"{what} has {len(array)} numbers, but there are m = {m} objectives; give one for each")
    if not np.isfinite(array).all() or array.min() < 0.0 or array.max() == 0.0:
        raise ParameterError(f"{what} holds finite numbers >= 0, at least one of them above 0; got {array.tolist()}")
    return array


def as_number(value: object, what: str) -> float:
    """Validate a real number other than NaN and return it as a float."""
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int too large for a float
            number = float(value)
    if math.isnan(number):
        raise ParameterError(f"{what}={value!r}: a real number is needed")
    return number


def as_rate(value: object, what: str) -> float:
    """Validate a step size or the like: a finite number of at least zero."""
    number = as_number(value, what)
    if not 0.0 <= number < math.inf:
        raise ParameterError(f"{what}={value!r}: a finite number of at least 0 is needed")
    return number


def as_positive_losses(losses: Sequence[float | Tensor] | Tensor, label: str) -> Array:
    """Validate the values of losses for a rule that takes their logarithms or ratios. Scalars may have a graph."""
    if isinstance(losses, Tensor):
        given: object = losses.detach().tolist()
    else:
        given = [loss.detach().item() if isinstance(loss, Tensor) else loss for loss in losses]
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{label} needs the losses as numbers, one per objective; got {losses!r}") from None
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0.0)))
    if values.ndim != 1 or len(bad):
        shown = (
            ", ".join(f"losses[{k}] = {values[k]:g}" for k in bad[:4]) if values.ndim == 1 else f"shape {values.shape}"
        )
        raise ParameterError(f"{label} needs positive losses, of which it takes logarithms or ratios; got {shown}")
    return values


def observed_losses(losses: Array | None, label: str, m: int) -> Array:
    """Return the losses that a rule has observed; raise if there are none, or not m of them."""
    if losses is None:
        raise ParameterError(
            f"{label} needs the values of the losses: call rule.observe(losses) before each step. "
            "paretograd.backward does so"
        )
    if len(losses) != m:
        raise ParameterError(f"{label} observed {len(losses)} losses, but there are m = {m} gradients")
    return losses


def is_whole(value: object) -> TypeGuard[int]:
    """Return True if the value is an int, of Python or numpy, and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole_number(owner: str, what: str, value: object, least: int | None = 1) -> int:
    """Validate an int of at least ``least``.

    Args:
        owner: problem, function or class that has the parameter, for the message.
        what: name of the parameter, for the message.
        value: the value to validate.
        least: the smallest value allowed; None for any.
    """
    if not is_whole(value):
        raise ParameterError(f"{owner}: {what}={value!r} must be a whole number")
    if least is not None and value < least:
        raise ParameterError(f"{owner}: {what}={value} is too small; the smallest is {least}")
    return int(value)


def as_count(value: object, what: str, least: int) -> int:
    """Validate a whole number of at least ``least``; unlike `whole_number`, it accepts floats such as 2.0."""
    number = as_number(value, what)
    if not math.isfinite(number) or number != int(number) or number < least:
        raise ParameterError(f"{what}={value!r}: a whole number of at least {least} is needed")
    return int(number)


def shown_value(value: object) -> str:
    """Format a parameter as a Python expression."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(shown_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def shown_number(value: float) -> str:
    """Format a number as `shown_value` does, but without the decimal point of a whole number."""
    return f"{value:g}" if float(f"{value:g}") == value and math.isfinite(value) else shown_value(value)


def make_rng(seed: int | None, generator: torch.Generator | None) -> np.random.Generator:
    """Return a numpy generator. Its seed is ``seed``, or drawn from the given torch generator or torch's global one.

    numpy draws a handful of numbers in a quarter of the time that torch takes.
    """
    if generator is not None and seed is not None:
        raise ParameterError("give a seed or a generator, not both")
    if seed is not None and (not is_whole(seed) or seed < 0):
        raise ParameterError(f"seed={seed!r}: a whole number of at least 0 is needed, or None")
    if not isinstance(generator, torch.Generator | None):
        raise ParameterError(f"generator={generator!r}: a torch.Generator is needed, or None")
    if seed is None:
        device = "cpu" if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device).item())
    return np.random.default_rng(seed)
