"""Step sizes as a person writes them: ``0.001``, ``smooth``, ``armijo(start=0.5)``."""

from __future__ import annotations

import difflib
from inspect import signature

from paretograd.aggregators.notation import read_rule
from paretograd.descent import Aligned, Armijo, Constant, Monotone, Smooth, StepSize
from paretograd.errors import ParameterError, UnknownNameError

#: Rules by name. `Constant` is a number.
RULES: dict[str, type[StepSize]] = {"smooth": Smooth, "aligned": Aligned, "monotone": Monotone, "armijo": Armijo}


def step_size(text: str) -> StepSize:
    """The step size that a number or the name of a rule stands for."""
    try:
        return Constant(float(text))
    except ParameterError:
        raise
    except ValueError:
        pass
    written = read_rule(text)
    if written.name not in RULES or written.starred:
        near = difflib.get_close_matches(written.name, RULES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"no step size is called {text!r}.{hint} Give a number, or one of {', '.join(RULES)}")
    rule = RULES[written.name]
    try:
        return rule(*written.values, **dict(written.keywords))
    except TypeError as error:
        taken = ", ".join(signature(rule).parameters)
        raise ParameterError(f"{text}: {error}. {written.name} takes {taken}") from None
