"""A user's own r, written in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paretograd.errors import HypothesisError, ParameterError
from paretograd.guarantees import Hypothesis
from paretograd.subproblem.probing import check_radial
from paretograd.subproblem.regularizers import ABOVE, CONVEX, INCREASING, ZERO, Regularizer


class Radial(Regularizer):
    """An increasing convex function of the length, written in torch on a scalar tensor.

    Args:
        value: r, with ``r(0) = 0``.
        conjugate: ``r*``, where it is known: its derivative then gives the best length without a search.
        derivative: ``r'``; torch finds it from the value otherwise.
    """

    def __init__(
        self,
        value: Callable[[Tensor], Tensor],
        conjugate: Callable[[Tensor], Tensor] | None = None,
        derivative: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        for what, function in (("value", value), ("conjugate", conjugate), ("derivative", derivative)):
            if function is not None and not callable(function):
                raise ParameterError(f"{what}={function!r}: a function of a scalar tensor is needed")
        self.function, self.conjugate, self.derivative = value, conjugate, derivative
        self.formula = f"{getattr(value, '__name__', 'r')}(|d|)"
        self._checked = check_radial(self.value, (CONVEX, INCREASING, ZERO, ABOVE))
        self.above_half_square = all(hypothesis.holds for hypothesis in self._checked if hypothesis.text == ABOVE)
        for hypothesis in self._checked:
            if not hypothesis.holds and hypothesis.text != ABOVE:
                raise HypothesisError(
                    hypothesis.text,
                    f"Theorem 4 needs that {hypothesis.text}, but {hypothesis.detail}. Give an increasing convex "
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
        raise ParameterError(f"a function of the length returns one number as a tensor; got {value!r}")
    return float(value)


def _slope(function: Callable[[Tensor], Tensor], at: float) -> float:
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True, device="cpu")
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(function(point), point)
    return float(slope)
