"""What an s that a user wrote has, in whichever language: a name, a claim, and hypotheses that must be checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paretograd.guarantees import Hypothesis
from paretograd.subproblem import probing
from paretograd.subproblem.scalarization import TRANSLATION, ZERO, Scalarization


class Written(Scalarization):
    """A function of x.

    Args:
        function: s itself.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``: it is checked.
    """

    def __init__(self, function: Callable[[Any], Any], risk: bool) -> None:
        self.function, self.risk = function, risk
        self.formula = f"{getattr(function, '__name__', 's')}(x)"

    def _completed(self, m: int, *shape: Hypothesis) -> tuple[Hypothesis, ...]:
        """The hypotheses on the shape of s, with those that are evaluated for every written one."""
        found = (probing.check_zero(self.value(np.zeros(m)), ZERO), *shape)
        return (*found, probing.check_translation(self.value, m, TRANSLATION)) if self.risk else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.function, '__name__', self.function)})"
