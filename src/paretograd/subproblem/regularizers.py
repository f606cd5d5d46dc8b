"""Regularizers r of the subproblem (eq. sd-conic), which limit the length of the direction.

The solver needs only ``length(rho)``, the derivative of the conjugate of r. It is the best length of a direction with
``|J.T lambda| = rho``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paretograd.checks import as_number, shown_number
from paretograd.errors import HypothesisError, ParameterError
from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Evidence, Hypothesis
from paretograd.subproblem.probing import check_radial
from paretograd.subproblem.scalarization import Center

CONVEX = "r is convex"
INCREASING = "r is increasing"
ZERO = "r(0) = 0"
ABOVE = "r(rho) >= rho^2 / 2"


class Regularizer(ABC):
    """The regularizer r, a function of the length ``rho = |d|``."""

    formula: str
    #: The paper's beta if it does not depend on rho; otherwise None.
    beta: float | None = None
    #: True if ``r(rho) >= rho^2 / 2``.
    above_half_square: bool = False
    #: ``length(t rho) = t ** degree * length(rho)``; None if there is no such degree.
    degree: float | None = None

    @abstractmethod
    def value(self, rho: float) -> float:
        """Return r(rho) for rho >= 0."""

    @abstractmethod
    def length(self, rho: float) -> float:
        """Return the derivative of the conjugate r* at rho > 0."""

    def bind(self, G: Array) -> tuple[Regularizer, Center | None]:
        """Return r for this Gramian, and the point from which it measures distances; None is the origin."""
        return self, None

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Return Theorem 4's hypotheses on r, with their evidence."""
        detail = f"elementary for {self.formula}"
        known = [Hypothesis(text, True, Evidence.CITED, detail) for text in (CONVEX, INCREASING, ZERO)]
        return (*known, Hypothesis(ABOVE, self.above_half_square, Evidence.CITED, detail))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class HalfSquare(Regularizer):
    """The default, ``c rho^2 / 2``, with beta = 1/c.

    Args:
        c: a factor above 0; Theorem 4 needs c >= 1.
    """

    def __init__(self, c: float = 1.0) -> None:
        if not 0.0 < as_number(c, "c") < math.inf:
            raise ParameterError(f"c={c:g}: the factor of the squared norm must be finite and above 0")
        self.c, self.beta, self.above_half_square, self.degree = float(c), 1.0 / c, c >= 1.0, 1.0
        self.formula = "|d|^2 / 2" if c == 1.0 else f"{c:g} |d|^2 / 2"

    def value(self, rho: float) -> float:
        return 0.5 * self.c * rho * rho

    def length(self, rho: float) -> float:
        return rho / self.c

    def __repr__(self) -> str:
        return "HalfSquare()" if self.c == 1.0 else f"HalfSquare({shown_number(self.c)})"


class Ball(Regularizer):
    """The constraint ``rho <= radius``: r is zero up to the radius and infinite beyond.

    Args:
        radius: a number above 0.
    """

    def __init__(self, radius: float = 1.0) -> None:
        if not 0.0 < as_number(radius, "radius") < math.inf:
            raise ParameterError(f"radius={radius:g}: the radius of the ball must be finite and above 0")
        self.radius, self.formula, self.degree = float(radius), f"|d| <= {radius:g}", 0.0

    def value(self, rho: float) -> float:
        return 0.0 if rho <= self.radius * (1.0 + 1e-12) else math.inf

    def length(self, rho: float) -> float:
        return self.radius

    def __repr__(self) -> str:
        return f"Ball({shown_number(self.radius)})"


class MeanBall(Regularizer):
    """The ball around the mean gradient g0 with radius ``c |g0|`` (CAGrad).

    Args:
        c: a number of at least 0. For c >= 1 the ball contains the zero direction.
    """

    def __init__(self, c: float = 0.5) -> None:
        if not 0.0 <= as_number(c, "c") < math.inf:
            raise ParameterError(f"c={c:g}: the radius must be finite and >= 0 (0 is the mean, >= 1 non-conflicting)")
        self.c, self.formula, self.degree = float(c), f"|d - g0| <= {c:g} |g0|", 1.0

    def bind(self, G: Array) -> tuple[Regularizer, Center | None]:
        uniform = np.full(len(G), 1.0 / len(G))
        size = cones.norm(G, uniform)
        center = Center(uniform, G @ uniform, size * size)
        return (Ball(self.c * size) if self.c * size > 0.0 else Origin()), center

    def value(self, rho: float) -> float:
        raise NotImplementedError("the radius depends on the Gramian: call .bind(G) first")

    def length(self, rho: float) -> float:
        raise NotImplementedError("the radius depends on the Gramian: call .bind(G) first")

    def __repr__(self) -> str:
        return f"MeanBall({shown_number(self.c)})"


class Origin(Regularizer):
    """The ball of radius zero."""

    formula = "d = 0"

    def value(self, rho: float) -> float:
        return 0.0 if rho == 0.0 else math.inf

    def length(self, rho: float) -> float:
        return 0.0


class Power(Regularizer):
    """The power ``rho^k / k``. Long directions cost more than with half the squared norm for k > 2, and less for k < 2.

    Args:
        k: the exponent, above 1.
    """

    def __init__(self, k: float) -> None:
        if not 1.0 < as_number(k, "k") < math.inf:
            raise ParameterError(f"k={k:g}: the exponent must be finite, and above 1 to give a finite length")
        self.k, self.formula = float(k), f"|d|^{k:g} / {k:g}"
        self.above_half_square, self.degree = k == 2.0, 1.0 / (k - 1.0)
        self.beta = 1.0 if k == 2.0 else None

    def value(self, rho: float) -> float:
        return float(rho**self.k / self.k)

    def length(self, rho: float) -> float:
        return float(rho ** (1.0 / (self.k - 1.0)))

    def __repr__(self) -> str:
        return f"Power({shown_number(self.k)})"


class Radial(Regularizer):
    """An increasing convex function of the length, written in torch for a scalar tensor.

    Args:
        value: the function r, with ``r(0) = 0``.
        conjugate: the conjugate ``r*``, if known. Its derivative gives the best length without a search.
        derivative: the derivative ``r'``. If None, torch computes it from ``value``.
    """

    def __init__(
        self,
        value: Callable[[Tensor], Tensor],
        conjugate: Callable[[Tensor], Tensor] | None = None,
        derivative: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        for what, function in (("value", value), ("conjugate", conjugate), ("derivative", derivative)):
            if function is not None and not callable(function):
                raise ParameterError(f"{what}={function!r}: must be a function of a scalar tensor")
        self.function, self.conjugate, self.derivative = value, conjugate, derivative
        self.formula = f"{getattr(value, '__name__', 'r')}(|d|)"
        self._checked = check_radial(self.value, (CONVEX, INCREASING, ZERO, ABOVE))
        self.above_half_square = all(hypothesis.holds for hypothesis in self._checked if hypothesis.text == ABOVE)
        for hypothesis in self._checked:
            if not hypothesis.holds and hypothesis.text != ABOVE:
                raise HypothesisError(
                    hypothesis.text,
                    f"Theorem 4 requires that {hypothesis.text}, but {hypothesis.detail}. Give an increasing convex "
                    "function with r(0) = 0, such as lambda rho: rho**2 / 2 + rho**4",
                )

    def value(self, rho: float) -> float:
        return _number(self.function, rho)

    def length(self, rho: float) -> float:
        if self.conjugate is not None:
            return _slope(self.conjugate, rho)
        from scipy.optimize import brentq

        def excess(length: float) -> float:
            return self._slope(length) - rho

        low = high = 1.0
        while excess(high) < 0.0 and high < 1e150:
            high *= 8.0
        while excess(low) > 0.0 and low > 1e-150:
            low /= 8.0
        if excess(low) >= 0.0:
            return 0.0
        return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-15))

    def _slope(self, length: float) -> float:
        return _slope(self.function, length) if self.derivative is None else _number(self.derivative, length)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        return self._checked

    def __repr__(self) -> str:
        return f"Radial({getattr(self.function, '__name__', self.function)})"


def _number(function: Callable[[Tensor], object], at: float) -> float:
    value = function(torch.tensor(at, dtype=torch.float64, device="cpu"))
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ParameterError(f"a function of the length must return a tensor with one number; got {value!r}")
    return float(value)


def _slope(function: Callable[[Tensor], Tensor], at: float) -> float:
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True, device="cpu")
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(function(point), point)
    return float(slope)
