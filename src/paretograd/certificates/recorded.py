"""What was recorded of one run, and the hypotheses about it that several theorems share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paretograd.certificates.run import Condition
from paretograd.geometry import cones
from paretograd.geometry.gramian import Array

#: Losses, slopes and points are taken to be right to this many units in the last place of the terms they sum.
UNITS = 32.0


@dataclass(frozen=True)
class Recorded:
    """One run of T steps.

    Attributes:
        losses: ``(T + 1, m)``, less the objectives' lower bounds, so that none should be below 0.
        points: ``(T + 1, n)``.
        gamma: ``(T + 1,)``.
        weights: ``(T, m)``.
        slopes: ``<g_k, d>``, ``(T, m)``.
        norms: ``|d|``, ``(T,)``.
        step_sizes: ``(T,)``.
        gradient_norms: ``(T, m)``.
        offset: what was subtracted from the losses, ``(m,)``.
        eps: machine epsilon of the computation.
        domain: whether the run stayed where L is declared, in words if not.
    """

    losses: Array
    points: Array
    gamma: Array
    weights: Array
    slopes: Array
    norms: Array
    step_sizes: Array
    gradient_norms: Array
    offset: Array
    eps: float
    domain: str = ""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.norms)

    @property
    def slope_rounding(self) -> Array:
        """Bounds on the errors of the slopes, ``(T, m)``: the size of a negative slope that rounding may explain."""
        errors = cones.term_errors(self.gradient_norms, self.weights, UNITS * self.eps)
        return cones.conflict_threshold(self.gradient_norms, self.norms, errors, cones.conflict_tolerance(self.eps))

    @property
    def sums(self) -> Array:
        """``|w|_1``, ``(T,)``."""
        return np.asarray(np.abs(self.weights).sum(axis=1))


@dataclass(frozen=True)
class SmoothSurrogate:
    """``F = sum_k phi_k f_k >= 0`` with its smoothness constant; NaN where that is not known."""

    phi: Array
    L: float

    def values(self, run: Recorded) -> Array:
        """F at every point, ``(T + 1,)``."""
        return run.losses @ self.phi

    def slopes(self, run: Recorded) -> Array:
        """``<grad F, d>`` at every step, ``(T,)``."""
        return run.slopes @ self.phi

    def rounding(self, run: Recorded) -> Array:
        """How far off each step's F, slope and point may be together, in units of F, ``(T,)``."""
        size = float((np.abs(run.losses).max(axis=0) + np.abs(run.offset)) @ np.abs(self.phi))
        steep = run.gradient_norms @ np.abs(self.phi)
        moved = run.step_sizes * run.norms
        at = np.sqrt((run.points[:-1] ** 2).sum(axis=1))
        # F twice, the slope along the step, and the step itself, which ends at a number of the run's dtype.
        return np.asarray(run.eps * (UNITS * (2.0 * size + steep * moved) + steep * (at + moved)))


def smooth(run: Recorded, F: SmoothSurrogate) -> Condition:
    lowest = float(F.values(run).min())
    if not F.L > 0.0:
        return Condition("F >= 0 is L-smooth", False, "no smoothness constant is known; give one")
    if run.domain:
        return Condition("F >= 0 is L-smooth", False, run.domain)
    slack = float(F.rounding(run).max(initial=0.0))
    return Condition("F >= 0 is L-smooth", lowest >= -slack, f"L = {F.L:.4g}, least F = {lowest:.3g}")


def has_steps(run: Recorded) -> Condition:
    return Condition("the run has steps", run.steps > 0, f"{run.steps}")


def everywhere(
    text: str, values: Array, holds: NDArray[np.bool_] | np.bool_, what: str, least: bool = False
) -> Condition:
    """A hypothesis about every step, with the worst value and the first step that breaks it."""
    if not len(values):
        return Condition(text, True, "no steps")
    value = float(values.min() if least else values.max())
    broken = np.flatnonzero(~np.asarray(holds, dtype=bool))
    where = f", broken at {len(broken)} of {len(values)} steps, first at {int(broken[0])}" if len(broken) else ""
    return Condition(text, not len(broken), f"{what} {value:.3g}{where}")
