"""The step sizes of the paper's theorems, which know how curved the objectives are."""

from __future__ import annotations

import math

import numpy as np

from paretograd.aggregators.base import Aggregator
from paretograd.descent.step_sizes import Position, StepSize, positive
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import SUM, Guarantee
from paretograd.problems.base import Problem

#: A slope below this, relative to the products that it sums, is none.
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


class _FromSmoothness(StepSize):
    """A step size that needs to know how curved the objectives are.

    Args:
        smoothness: L such that every objective's gradient is L-Lipschitz; None takes the problem's.
        surrogate_smoothness: the same for F, where it is known to be less than the sum of its terms' constants.
    """

    def __init__(self, smoothness: float | None = None, surrogate_smoothness: float | None = None) -> None:
        self.smoothness = None if smoothness is None else positive(smoothness, "smoothness")
        given = surrogate_smoothness
        self.surrogate_smoothness = None if given is None else positive(given, "surrogate_smoothness")

    def _constants(self, problem: Problem, aggregator: Aggregator) -> tuple[float, Array, float]:
        """L of the objectives, the weights phi of ``F = sum_k phi_k f_k``, and L of F."""
        L = problem.smoothness if self.smoothness is None else self.smoothness
        if L is None:
            raise ParameterError(
                f"{type(self).__name__} needs the smoothness constant L of the objectives, and {problem.name} declares "
                f"none; give it as {type(self).__name__}(smoothness=L), or use pg.descent.Armijo()"
            )
        promise = aggregator.guarantee
        phi = (SUM if promise.rescaled else promise.F).phi(problem.m)
        return L, phi, float(phi.sum()) * L if self.surrogate_smoothness is None else self.surrogate_smoothness

    def __repr__(self) -> str:
        pairs = (("smoothness", self.smoothness), ("surrogate_smoothness", self.surrogate_smoothness))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs if value is not None)})"


def _obstacle(promise: Guarantee) -> str:
    if promise.alignment is None:
        return (
            "it promises no condition (A), and may conflict. "
            "Give lr a number, or use pg.descent.Aligned() or pg.descent.Armijo()"
        )
    return (
        f"it promises condition (A) with c = {promise.alignment:.3g}, but not |d| >= gamma, as its weights may sum to "
        "less than one: the step c / L would bound |d| and not gamma. Use pg.descent.Aligned(), which measures the "
        "alignment of each step, or pg.descent.Armijo(), or give lr a number"
    )


class Smooth(_FromSmoothness):
    r"""The step size of the rule's guarantee: $\eta = c / L$ (Corollary 1).

    c is the rule's constant of condition (A), L the constant of its F. Rules without c that never conflict, such as
    Nash-MTL, get $\eta_t = 1 / (L \|w_t\|_1)$: their starred variant with a constant step (Theorem 2).
    """

    _scale, _dynamic = math.nan, False

    def bind(self, problem: Problem, aggregator: Aggregator) -> Smooth:
        L = self._constants(problem, aggregator)[2]
        promise = aggregator.guarantee
        constant = promise.alignment if promise.beyond_hull else None
        if constant is None and not promise.rescaled:
            raise ParameterError(f"no theorem gives {aggregator!r} a step size: {_obstacle(promise)}")
        bound = Smooth(self.smoothness, self.surrogate_smoothness)
        bound._scale = (1.0 if constant is None else constant) / L
        bound._dynamic = constant is None
        return bound

    def __call__(self, at: Position) -> Array:
        eta = np.full(len(at.norms), self._scale)
        return eta / np.abs(at.weights).sum(axis=1) if self._dynamic else eta


class Aligned(_FromSmoothness):
    r"""The step size of Theorem 1 with the alignment of the step itself.

    $$ \eta_t = \frac{c_t \Gamma_t}{L \|d_t\|} = \frac{\langle d_t, \nabla F(w_t) \rangle}{L \|d_t\|^2} $$

    It minimises the descent lemma's bound on F, whatever Gamma is. Where F goes up along ``-d`` there is none.
    """

    _phi, _L = np.empty(0), math.nan

    def bind(self, problem: Problem, aggregator: Aggregator) -> Aligned:
        bound = Aligned(self.smoothness, self.surrogate_smoothness)
        _, bound._phi, bound._L = self._constants(problem, aggregator)
        return bound

    def __call__(self, at: Position) -> Array:
        return _where_positive((at.slopes * self._phi).sum(axis=1), self._L * at.norms**2)


class Monotone(_FromSmoothness):
    r"""The largest step for which smoothness promises that no objective goes up (remark to Theorem 3).

    $$ \eta_t = \frac{\min_k \langle g_k, d_t \rangle}{L \|d_t\|^2} $$

    Where some objective does not go down along ``-d``, beyond rounding, there is none. So it is for DualProj, whose
    directions lie on the boundary of the dual cone.
    """

    _L = math.nan

    def bind(self, problem: Problem, aggregator: Aggregator) -> Monotone:
        bound = Monotone(self.smoothness, self.surrogate_smoothness)
        bound._L = self._constants(problem, aggregator)[0]
        return bound

    def __call__(self, at: Position) -> Array:
        rounding = _ROUNDING * (np.abs(at.weights) * at.gradient_norms).sum(axis=1, keepdims=True) * at.gradient_norms
        down = np.where(at.slopes > rounding, at.slopes, 0.0)
        return _where_positive(down.min(axis=1), self._L * at.norms**2)


def _where_positive(above: Array, below: Array) -> Array:
    good = (above > 0.0) & (below > 0.0)
    return np.asarray(np.where(good, above / np.where(good, below, 1.0), math.nan))
