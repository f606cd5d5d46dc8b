"""Step-size rules: constant, the paper's theorems, and a multi-objective line search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.aggregators.base import Aggregator
from paretograd.checks import as_number, whole_number
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import STEP, SUM, Guarantee
from paretograd.problems.base import Problem
from paretograd.scalarizations.base import Weighting

#: A slope below this counts as zero. It is relative to the sum of the absolute products that make up the slope.
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


class Position(NamedTuple):
    """The input of a step-size rule: B points and the direction chosen at each.

    Attributes:
        losses: ``(B, m)``.
        gradient_norms: ``|g_k|``, ``(B, m)``.
        weights: ``(B, m)``; NaN if the direction is no combination of the gradients.
        slopes: ``<g_k, d>``, ``(B, m)``.
        norms: ``|d|``, ``(B,)``.
        losses_after: maps step sizes ``(R,)`` and run indices ``(R,)`` to the losses after these steps, ``(R, m)``.
    """

    losses: Array
    gradient_norms: Array
    weights: Array
    slopes: Array
    norms: Array
    losses_after: Callable[[Array, NDArray[np.intp]], Array]


class StepSize(ABC):
    """A rule for eta_t. It returns NaN for a run that has no acceptable step, and this run stops."""

    def bind(self, problem: Problem, aggregator: Aggregator | Weighting) -> StepSize:
        """Return the rule with its constants taken from problem and aggregator; raises if one is missing."""
        return self

    @abstractmethod
    def __call__(self, at: Position) -> Array:
        """Return eta_t for every run, ``(B,)``."""


def as_step_size(lr: float | StepSize) -> StepSize:
    """Convert the user's ``lr`` to a step-size rule."""
    return lr if isinstance(lr, StepSize) else Constant(lr)


def positive(value: object, what: str) -> float:
    """Validate a finite number above 0."""
    number = as_number(value, what)
    if not 0.0 < number < math.inf:
        raise ParameterError(f"{what}={number:g}: it must be finite and above 0")
    return number


class Constant(StepSize):
    """The same step size at every step.

    Args:
        lr: above 0.
    """

    def __init__(self, lr: float) -> None:
        self.lr = positive(lr, "lr")

    def __call__(self, at: Position) -> Array:
        return np.full(len(at.norms), self.lr)

    def __repr__(self) -> str:
        return f"Constant({self.lr!r})"


class _FromSmoothness(StepSize):
    """Base class of the rules that need a smoothness constant.

    Args:
        smoothness: L such that every objective's gradient is L-Lipschitz; None takes the problem's.
        surrogate_smoothness: the same for F, if it is known to be less than the sum of its terms' constants.
    """

    def __init__(self, smoothness: float | None = None, surrogate_smoothness: float | None = None) -> None:
        self.smoothness = None if smoothness is None else positive(smoothness, "smoothness")
        given = surrogate_smoothness
        self.surrogate_smoothness = None if given is None else positive(given, "surrogate_smoothness")

    def _constants(self, problem: Problem, aggregator: Aggregator | Weighting) -> tuple[float, Array, float]:
        """Return L of the objectives, the weights phi of ``F = sum_k phi_k f_k``, and L of F."""
        L = problem.smoothness if self.smoothness is None else self.smoothness
        if L is None:
            raise ParameterError(
                f"{type(self).__name__} needs the smoothness constant L of the objectives, and {problem.name} declares "
                f"none; give it as {type(self).__name__}(smoothness=L), or use pg.descent.Armijo()"
            )
        promise = with_fixed_weights(aggregator.guarantee)
        phi = (SUM if promise.rescaled else promise.F).phi(problem.m)
        return L, phi, float(phi.sum()) * L if self.surrogate_smoothness is None else self.surrogate_smoothness

    def __repr__(self) -> str:
        pairs = (("smoothness", self.smoothness), ("surrogate_smoothness", self.surrogate_smoothness))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs if value is not None)})"


class Smooth(_FromSmoothness):
    r"""The step size of the rule's guarantee: $\eta = c / L$ (Corollary 1).

    c is the rule's constant in condition (A), and L is the smoothness constant of its F. Rules without c that never
    conflict, such as Nash-MTL, use $\eta_t = 1 / (L \|w_t\|_1)$. This is their starred variant with a constant step
    (Theorem 2).
    """

    _scale, _dynamic = math.nan, False

    def bind(self, problem: Problem, aggregator: Aggregator | Weighting) -> Smooth:
        L = self._constants(problem, aggregator)[2]
        promise = with_fixed_weights(aggregator.guarantee)
        constant = promise.alignment if promise.beyond_hull else None
        if constant is None and not promise.rescaled:
            raise ParameterError(f"no theorem gives {aggregator!r} a step size: {_obstacle(aggregator.guarantee)}")
        bound = Smooth(self.smoothness, self.surrogate_smoothness)
        bound._scale = (1.0 if constant is None else constant) / L
        bound._dynamic = constant is None
        return bound

    def __call__(self, at: Position) -> Array:
        eta = np.full(len(at.norms), self._scale)
        return eta / np.abs(at.weights).sum(axis=1) if self._dynamic else eta


def with_fixed_weights(promise: Guarantee) -> Guarantee:
    """Return the guarantee for an F with fixed weights: without a constant for the sum, if F is nonlinear."""
    if promise.F != STEP:
        return promise
    return replace(promise, F=SUM, alignment=None, note="Its constant is for F, a nonlinear function of the losses.")


def _obstacle(promise: Guarantee) -> str:
    """Explain why a guarantee yields no step size, and suggest alternatives."""
    if promise.F == STEP:
        return (
            "its F is a nonlinear function of the losses, whose smoothness constant is not known. "
            "Give lr a number, or use pg.descent.Armijo()"
        )
    if promise.alignment is None:
        return (
            "it does not guarantee condition (A), and may conflict. "
            "Give lr a number, or use pg.descent.Aligned() or pg.descent.Armijo()"
        )
    reason = "its weights may sum to less than one" if promise.in_cone else "d may leave the cone of the gradients"
    return (
        f"it guarantees condition (A) with c = {promise.alignment:.3g}, but not |d| >= gamma, because {reason}: "
        "the step c / L would bound |d| and not gamma. Use pg.descent.Aligned(), which measures "
        "the alignment of each step, or pg.descent.Armijo(), or give lr a number"
    )


class Aligned(_FromSmoothness):
    r"""The step size of Theorem 1, with the measured alignment of each step.

    $$ \eta_t = \frac{c_t \Gamma_t}{L \|d_t\|} = \frac{\langle d_t, \nabla F(w_t) \rangle}{L \|d_t\|^2} $$

    It minimises the descent lemma's bound on F for any Gamma. A run stops if F increases along ``-d``.
    """

    _phi, _L = np.empty(0), math.nan

    def bind(self, problem: Problem, aggregator: Aggregator | Weighting) -> Aligned:
        bound = Aligned(self.smoothness, self.surrogate_smoothness)
        _, bound._phi, bound._L = self._constants(problem, aggregator)
        return bound

    def __call__(self, at: Position) -> Array:
        return _positive_ratio((at.slopes * self._phi).sum(axis=1), self._L * at.norms**2)


class Monotone(_FromSmoothness):
    r"""The largest step for which smoothness guarantees that no objective increases (remark to Theorem 3).

    $$ \eta_t = \frac{\min_k \langle g_k, d_t \rangle}{L \|d_t\|^2} $$

    A run stops if, up to rounding, some objective does not decrease along ``-d``. This is usual with DualProj, whose
    directions lie on the boundary of the dual cone.
    """

    _L = math.nan

    def bind(self, problem: Problem, aggregator: Aggregator | Weighting) -> Monotone:
        bound = Monotone(self.smoothness, self.surrogate_smoothness)
        bound._L = self._constants(problem, aggregator)[0]
        return bound

    def __call__(self, at: Position) -> Array:
        terms = (np.abs(at.weights) * at.gradient_norms).sum(axis=1)
        rounding = _ROUNDING * np.where(np.isnan(terms), at.norms, terms)[:, None] * at.gradient_norms
        down = np.where(at.slopes > rounding, at.slopes, 0.0)
        return _positive_ratio(down.min(axis=1), self._L * at.norms**2)


def _positive_ratio(above: Array, below: Array) -> Array:
    """Return ``above / below`` where both are positive, and NaN elsewhere."""
    good = (above > 0.0) & (below > 0.0)
    return np.asarray(np.where(good, above / np.where(good, below, 1.0), math.nan))


class Armijo(StepSize):
    r"""Multi-objective line search: halve the step until every objective has decreased enough.

    $$ f_k(w - \eta d) \le f_k(w) - \sigma \eta \langle g_k, d \rangle \quad\text{for every } k $$

    It needs no smoothness constant. Each trial evaluates the losses but not the gradients. A run stops with
    ``Stop.NO_STEP`` if no trial succeeds: its direction conflicts, or the decrease is below rounding.

    Args:
        start: first trial of every step.
        sigma: sufficient share of the linear decrease, in (0, 1).
        halvings: maximum number of halvings.
    """

    def __init__(self, start: float = 1.0, sigma: float = 1e-4, halvings: int = 40) -> None:
        self.start, self.sigma = positive(start, "start"), positive(sigma, "sigma")
        self.halvings = whole_number("Armijo", "halvings", halvings, least=0)
        if not self.sigma < 1.0:
            raise ParameterError(f"sigma={sigma:g}: it must be below 1, since no step can exceed its linear decrease")

    def __call__(self, at: Position) -> Array:
        eta, trial = np.full(len(at.norms), math.nan), self.start
        left = np.arange(len(at.norms))
        for _ in range(self.halvings + 1):
            after = at.losses_after(np.full(len(left), trial), left)
            good = (after <= at.losses[left] - self.sigma * trial * at.slopes[left]).all(axis=1)
            eta[left[good]] = trial
            left, trial = left[~good], 0.5 * trial
            if not len(left):
                break
        return eta

    def __repr__(self) -> str:
        return f"Armijo(start={self.start!r}, sigma={self.sigma!r}, halvings={self.halvings})"
