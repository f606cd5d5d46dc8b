"""Registry of problems by name. A new problem is one function, one row here and one row in the tests' table."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paretograd.errors import ParameterError, UnknownNameError
from paretograd.problems.base import Problem
from paretograd.problems.dtlz import dtlz1, dtlz2, dtlz3, dtlz4, maf1
from paretograd.problems.omnitest import omnitest
from paretograd.problems.quadratic import quadratic
from paretograd.problems.vlmop import fonseca, vlmop1, vlmop2
from paretograd.problems.zdt import zdt1, zdt2, zdt3, zdt4, zdt6

_FACTORIES: tuple[Callable[..., Problem], ...] = (
    vlmop1,
    vlmop2,
    fonseca,
    omnitest,
    quadratic,
    zdt1,
    zdt2,
    zdt3,
    zdt4,
    zdt6,
    dtlz1,
    dtlz2,
    dtlz3,
    dtlz4,
    maf1,
)

REGISTRY: dict[str, Callable[..., Problem]] = {factory.__name__: factory for factory in _FACTORIES}


def problems() -> list[str]:
    """Return the names of all test problems, for `problem`."""
    return list(REGISTRY)


def problem(name: str, **parameters: Any) -> Problem:
    """Return a test problem by name, such as ``problem("vlmop2", n=4)`` or ``problem("dtlz2", m=5)``.

    Args:
        name: one of `problems`.
        **parameters: sizes and other parameters of the problem; each has a default.
    """
    key = str(name).strip().lower()
    if key not in REGISTRY:
        near = difflib.get_close_matches(key, REGISTRY, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"no problem is called {name!r}.{hint} Known names: {', '.join(REGISTRY)}")
    signature = inspect.signature(REGISTRY[key])
    try:
        bound = signature.bind(**parameters)
    except TypeError as error:
        raise ParameterError(f"{key}: {error}. Its parameters are {', '.join(signature.parameters)}") from None
    bound.apply_defaults()
    made = REGISTRY[key](**bound.arguments)
    # A default that depends on another parameter (n on m) is None above; read its value from the problem.
    sizes = {"n": made.n, "m": made.m}
    settled = {key: sizes.get(key, value) for key, value in bound.arguments.items()}
    return replace(made, parameters={key: value for key, value in settled.items() if value is not None})
