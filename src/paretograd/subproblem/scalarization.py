"""What s of the subproblem (eq. sd-conic) must offer, and the quadratic dual problem that all of them solve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian, unit_gramian
from paretograd.guarantees import MEAN, Alternative, Evidence, Hypothesis, Surrogate
from paretograd.solution import Outcome
from paretograd.subproblem import probing

CONVEX = "s is convex"
DECREASING = "s is decreasing"
ZERO = "s(0) = 0"
TRANSLATION = "s(x + c) = s(x) - c"


class Center(NamedTuple):
    """A point ``g0 = J.T u`` that the regularizer measures distances from.

    Attributes:
        weights: u, shape ``(m,)``.
        slopes: ``G u``, shape ``(m,)``.
        square: ``|g0|^2``.
    """

    weights: Array
    slopes: Array
    square: float


class Quadratic(NamedTuple):
    """The dual for a quadratic regularizer: minimise ``s*(-lambda) + <lambda, x0> + beta/2 |J.T lambda|^2``.

    Every other regularizer is one of these, for the right beta (`paretograd.subproblem.solve`).

    Attributes:
        G: the Gramian, shape ``(m, m)``.
        unit: the same, as cosines and norms.
        beta: a positive number.
        center: where the regularizer is centred, whose slopes are x0; None for the origin.
        least: ask for the smallest multipliers where they are not unique.
    """

    G: Array
    unit: UnitGramian
    beta: float
    center: Center | None
    least: bool = False

    @property
    def slopes(self) -> Array:
        """x0, the decreases at the centre, shape ``(m,)``."""
        return np.zeros(self.unit.m) if self.center is None else self.center.slopes

    def shifted(self) -> UnitGramian:
        """The Gramian of ``g_k + g0 / beta``.

        For weights that sum to one, ``beta/2 |J.T lambda|^2 + <lambda, x0>`` is ``beta/2 |J.T lambda + g0/beta|^2`` up
        to a constant, so that moving the gradients does away with the centre.
        """
        if self.center is None:
            return self.unit
        shift = self.center.slopes / self.beta
        return unit_gramian(self.G + shift + shift[:, None] + self.center.square / self.beta**2, self.unit.eps)


class DualPoint(NamedTuple):
    """A solution of the dual problem.

    Attributes:
        multipliers: lambda, shape ``(m,)``.
        conjugate: ``s*(-lambda)``.
        residual: violation of the optimality conditions, relative to the terms in them.
        steps: linear systems solved.
        stationary: no direction is better than zero.
    """

    multipliers: Array
    conjugate: float
    residual: float
    steps: int
    stationary: bool = False


class Scalarization(ABC):
    """s of eq. sd-conic: how the decreases ``x = J d`` of all objectives count as one number, the lower the better."""

    #: s in a table.
    formula: str
    #: Whether ``s(t x) = t s(x)`` for t > 0: then lambda does not depend on beta.
    homogeneous: bool = False
    #: Whether s is a convex risk measure: then lambda lies in the simplex.
    risk: bool = False
    #: Whether d never conflicts, whatever the gradients.
    non_conflicting: bool = False
    #: The one number of objectives that s is made for; None for any.
    m: int | None = None
    #: Residuals up to this count as approximate solutions rather than failures.
    accuracy: float = 0.0
    #: The most specific result that covers s with half the squared norm as r, where Theorem 4 applies.
    theorem: str = "thm:PSreg"
    #: The F of Theorem 4 for every number of objectives; None if it must be found from `surrogate`.
    F: Surrogate | None = None
    #: Other constants of condition (A) for half the squared norm.
    alternatives: tuple[Alternative, ...] = ()
    #: What the guarantee depends on; None if that follows from the other attributes.
    note: str | None = None

    @property
    def sums_to_one_at_least(self) -> bool:
        """Return True if the multipliers always sum to at least one, so that ``|J.T lambda| >= gamma``."""
        return self.risk

    @abstractmethod
    def value(self, x: Array) -> float:
        """s(x), infinity outside its domain."""

    @abstractmethod
    def dual(self, problem: Quadratic) -> DualPoint:
        """Solve the quadratic dual problem."""

    @abstractmethod
    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        """What Theorem 4 asks of s, for m objectives, with the evidence."""

    @abstractmethod
    def surrogate(self, m: int) -> Array | None:
        """phi = ``-grad s(0)``, shape ``(m,)``: the theorem's F is ``sum_k phi_k f_k``. None where it is not known."""

    def at(self, G: Array) -> Scalarization:
        """s for this Gramian; itself unless s depends on the gradients."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Family(Scalarization):
    """An s whose properties are theorems of the literature, with an exact solver of its own."""

    #: Where the properties are proved.
    citation: str
    F: Surrogate | None = MEAN  # the uniform weights lie in the dual set of every symmetric family

    @abstractmethod
    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        """Weights of the direction for half the squared norm; with ``least``, the smallest if not unique."""

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        texts = (CONVEX, DECREASING, ZERO, TRANSLATION) if self.risk else (CONVEX, DECREASING, ZERO)
        return tuple(Hypothesis(text, True, Evidence.CITED, self.citation) for text in texts)

    def surrogate(self, m: int) -> Array | None:
        return None if self.F is None else self.F.phi(m)


class Written(Scalarization):
    """An s that a user wrote as a function of x. Its hypotheses must be checked.

    Args:
        function: s itself.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``. The claim is checked.
    """

    def __init__(self, function: Callable[[Any], Any], risk: bool) -> None:
        self.function, self.risk = function, risk
        self.formula = f"{getattr(function, '__name__', 's')}(x)"

    def _completed(self, m: int, *shape: Hypothesis) -> tuple[Hypothesis, ...]:
        """Return the given hypotheses on the shape of s, and those that are evaluated for every written s."""
        found = (probing.check_zero(self.value(np.zeros(m)), ZERO), *shape)
        return (*found, probing.check_translation(self.value, m, TRANSLATION)) if self.risk else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.function, '__name__', self.function)})"
