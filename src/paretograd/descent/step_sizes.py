"""How far to go along ``-d``: what a step size is, a constant one, and a line search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.aggregators.base import Aggregator
from paretograd.checks import as_number
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem
from paretograd.problems.checks import whole_number


class Position(NamedTuple):
    """What a step size may look at: B points and the directions chosen there.

    Attributes:
        losses: ``(B, m)``.
        gradient_norms: ``|g_k|``, ``(B, m)``.
        weights: ``(B, m)``.
        slopes: ``<g_k, d>``, ``(B, m)``.
        norms: ``|d|``, ``(B,)``.
        losses_after: for step sizes ``(R,)`` of the runs with the numbers ``(R,)``, the losses there, ``(R, m)``.
    """

    losses: Array
    gradient_norms: Array
    weights: Array
    slopes: Array
    norms: Array
    losses_after: Callable[[Array, NDArray[np.intp]], Array]


class StepSize(ABC):
    """A rule for eta_t. Where it finds none that does what it promises it answers NaN, and the run stops."""

    def bind(self, problem: Problem, aggregator: Aggregator) -> StepSize:
        """The rule with the constants that it takes from problem and aggregator; raises where one is missing."""
        return self

    @abstractmethod
    def __call__(self, at: Position) -> Array:
        """eta_t for every run, ``(B,)``."""


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


class Armijo(StepSize):
    r"""Multi-objective line search: halve the step until every objective has decreased enough.

    $$ f_k(w - \eta d) \le f_k(w) - \sigma \eta \langle g_k, d \rangle \quad\text{for every } k $$

    It needs no smoothness constant. Each trial costs the losses, not the gradients. A run for which no trial is good
    enough stops and says so: its direction conflicts, or the decrease is below rounding.

    Args:
        start: first trial of every step.
        sigma: share of the linear decrease that is enough, in (0, 1).
        halvings: at most this many.
    """

    def __init__(self, start: float = 1.0, sigma: float = 1e-4, halvings: int = 40) -> None:
        self.start, self.sigma = positive(start, "start"), positive(sigma, "sigma")
        self.halvings = whole_number("Armijo", "halvings", halvings, least=0)
        if not self.sigma < 1.0:
            raise ParameterError(f"sigma={sigma:g}: it must be below 1, as no step decreases more than its slope says")

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


def as_step_size(lr: float | StepSize) -> StepSize:
    """A step size rule from what a user gives as ``lr``."""
    return lr if isinstance(lr, StepSize) else Constant(lr)


def positive(value: object, what: str) -> float:
    """A finite number above 0."""
    number = as_number(value, what)
    if not 0.0 < number < math.inf:
        raise ParameterError(f"{what}={number:g}: it must be finite and above 0")
    return number
