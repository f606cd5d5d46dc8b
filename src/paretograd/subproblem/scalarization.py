"""The interface of s in the subproblem (eq. sd-conic), and the quadratic dual problem that every s solves."""

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
    """The point ``g0 = J.T u`` from which the regularizer measures distances.

    Attributes:
        weights: the weights u, shape ``(m,)``.
        slopes: ``G u``, shape ``(m,)``.
        square: ``|g0|^2``.
    """

    weights: Array
    slopes: Array
    square: float


class Quadratic(NamedTuple):
    """The dual problem for a quadratic regularizer: minimise ``s*(-lambda) + <lambda, x0> + beta/2 |J.T lambda|^2``.

    Every other regularizer reduces to this problem, for the right beta (`paretograd.subproblem.solve`).

    Attributes:
        G: the Gramian, shape ``(m, m)``.
        unit: the Gramian as cosines and norms.
        beta: a positive number.
        center: the centre of the regularizer, whose slopes are x0; None is the origin.
        least: if True, return the smallest multipliers if they are not unique.
    """

    G: Array
    unit: UnitGramian
    beta: float
    center: Center | None
    least: bool = False

    @property
    def slopes(self) -> Array:
        """The decreases x0 at the centre, shape ``(m,)``."""
        return np.zeros(self.unit.m) if self.center is None else self.center.slopes

    def shifted(self) -> UnitGramian:
        """Return the Gramian of ``g_k + g0 / beta``.

        For weights that sum to one, ``beta/2 |J.T lambda|^2 + <lambda, x0>`` is ``beta/2 |J.T lambda + g0/beta|^2`` up
        to a constant. Shifting the gradients therefore eliminates the centre.
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
        residual: violation of the optimality conditions, relative to their terms.
        steps: number of linear systems solved.
        stationary: True if no direction is better than zero.
    """

    multipliers: Array
    conjugate: float
    residual: float
    steps: int
    stationary: bool = False


class Scalarization(ABC):
    """The function s of eq. sd-conic. It maps the decreases ``x = J d`` to one number; lower is better."""

    #: Printed form of s.
    formula: str
    #: True if ``s(t x) = t s(x)`` for t > 0. lambda then does not depend on beta.
    homogeneous: bool = False
    #: True if s is a convex risk measure. lambda then lies in the simplex.
    risk: bool = False
    #: True if d conflicts with no gradient, for every Jacobian.
    non_conflicting: bool = False
    #: True if the direction does not depend on the norms of the gradients, except for its length.
    scale_invariant: bool = False
    #: True if the direction for half the squared norm is a continuous function of the Jacobian: everywhere, or if
    #: gamma > 0. A finite convex s makes it continuous everywhere, because ``s(J d) + |d|^2 / 2`` is strongly convex.
    #: For an s that is continuous on ``x >= 0`` and infinite elsewhere, gamma > 0 provides a d with ``J d > 0``.
    continuous: bool = False
    continuous_inside: bool = False
    #: Number of objectives that s requires; None if any.
    m: int | None = None
    #: Largest residual that counts as an approximate solution rather than a failure.
    accuracy: float = 0.0
    #: The most specific result that covers s with half the squared norm as r, if Theorem 4 applies.
    theorem: str = "thm:PSreg"
    #: The F of Theorem 4 for every number of objectives; None if only `surrogate` gives it.
    F: Surrogate | None = None
    #: Other constants of condition (A) for half the squared norm.
    alternatives: tuple[Alternative, ...] = ()
    #: Conditions on which the guarantee depends; None if they follow from the other attributes.
    note: str | None = None

    @property
    def sums_to_one_at_least(self) -> bool:
        """True if the multipliers always sum to at least one, which implies ``|J.T lambda| >= gamma``."""
        return self.risk

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return s(x), or infinity outside its domain."""

    @abstractmethod
    def dual(self, problem: Quadratic) -> DualPoint:
        """Solve the quadratic dual problem."""

    @abstractmethod
    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        """Return Theorem 4's hypotheses on s for m objectives, with their evidence."""

    @abstractmethod
    def surrogate(self, m: int) -> Array | None:
        """Return phi = ``-grad s(0)``, shape ``(m,)``, or None if unknown. The theorem's F is ``sum_k phi_k f_k``."""

    def at(self, G: Array) -> Scalarization:
        """Return s for this Gramian: itself, unless s depends on the gradients."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Family(Scalarization):
    """A scalarization with an exact solver of its own, whose properties are proved in the literature."""

    #: Reference for the properties.
    citation: str
    F: Surrogate | None = MEAN  # the uniform weights lie in the dual set of every symmetric family

    @abstractmethod
    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        """Return the weights of the direction for half the squared norm, or the smallest of them with ``least``."""

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        texts = (CONVEX, DECREASING, ZERO, TRANSLATION) if self.risk else (CONVEX, DECREASING, ZERO)
        return tuple(Hypothesis(text, True, Evidence.CITED, self.citation) for text in texts)

    def surrogate(self, m: int) -> Array | None:
        return None if self.F is None else self.F.phi(m)


class Written(Scalarization):
    """A scalarization that a user wrote as a function of x. Its hypotheses must be checked.

    Args:
        function: the function s.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``. The claim is checked.
    """

    def __init__(self, function: Callable[[Any], Any], risk: bool) -> None:
        self.function, self.risk = function, risk
        self.formula = f"{getattr(function, '__name__', 's')}(x)"

    def _completed(self, m: int, *shape: Hypothesis) -> tuple[Hypothesis, ...]:
        """Return the given hypotheses on the shape of s and those that are checked for every such s."""
        found = (probing.check_zero(self.value(np.zeros(m)), ZERO), *shape)
        return (*found, probing.check_translation(self.value, m, TRANSLATION)) if self.risk else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.function, '__name__', self.function)})"
