"""Whole runs: what was recorded, a theorem's hypotheses and bound on it, and what inexact solves cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paretograd.errors import ParameterError
from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.guarantees import RESULTS

#: Assumed error of losses, slopes and points, in units in the last place of the terms that they sum.
UNITS = 32.0


@dataclass(frozen=True)
class Condition:
    """One hypothesis of a theorem, checked on a run.

    Attributes:
        text: the hypothesis.
        holds: whether it holds.
        detail: the number that decided it, and the step.
    """

    text: str
    holds: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.text}: {'yes' if self.holds else 'NO'} ({self.detail})"


@dataclass(frozen=True)
class RunCheck:
    """One result of the paper on one run: its hypotheses, its bound, and what was measured.

    If some hypothesis does not hold, the result says nothing about the run: the run is *not covered*. This is no
    failure.

    Attributes:
        label: of the result, a key of `RESULTS`.
        claim: the inequality, in words.
        conditions: the hypotheses.
        bound: the side of the inequality that the theorem predicts; NaN if it predicts none.
        measured: the other side, from the run.
        slack: margin of the inequality, negative if it fails.
        rounding: how far rounding may push the slack below 0.
        note: further details, such as the constants.
    """

    label: str
    claim: str
    conditions: tuple[Condition, ...]
    bound: float
    measured: float
    slack: float
    rounding: float
    note: str = ""

    @property
    def name(self) -> str:
        """The result's name in the paper."""
        return RESULTS[self.label].name

    @property
    def covered(self) -> bool:
        """Return True if all hypotheses hold, so that the theorem applies to this run."""
        return all(condition.holds for condition in self.conditions)

    @property
    def holds(self) -> bool:
        """Return True if the claim holds to rounding. The theorem promises this only for a covered run."""
        return self.slack >= -self.rounding

    @property
    def verdict(self) -> str:
        """``holds``, ``FAILS``, or ``not covered``."""
        return "not covered" if not self.covered else "holds" if self.holds else "FAILS"

    @property
    def quantity(self) -> str:
        """The measured quantity: the left side of the claim."""
        return self.claim.replace(" >= ", " <= ").partition(" <= ")[0]

    @property
    def missing(self) -> Condition | None:
        """The first hypothesis that does not hold; None if all hold."""
        return next((condition for condition in self.conditions if not condition.holds), None)

    def __str__(self) -> str:
        head = f"{self.name}: {self.verdict}"
        if not self.covered:
            return f"{head}. {self.missing}"
        return f"{head}. {self.claim}: {self.measured:.6g} against {self.bound:.6g}, slack {self.slack:.3g}"


@dataclass(frozen=True)
class Recorded:
    """One run of T steps.

    Attributes:
        losses: ``(T + 1, m)``, minus the objectives' lower bounds, hence non-negative.
        points: ``(T + 1, n)``.
        gamma: ``(T + 1,)``.
        weights: ``(T, m)``.
        slopes: ``<g_k, d>``, ``(T, m)``.
        norms: ``|d|``, ``(T,)``.
        step_sizes: ``(T,)``.
        gradient_norms: ``(T, m)``.
        offset: the lower bounds that were subtracted from the losses, ``(m,)``.
        eps: machine epsilon of the computation.
        domain: why L does not apply to all points of the run; empty if it does.
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
        """Bound the errors of the slopes, ``(T, m)``: the size of a negative slope that rounding may explain."""
        errors = cones.term_errors(self.gradient_norms, self.weights, UNITS * self.eps)
        return cones.conflict_threshold(self.gradient_norms, self.norms, errors, cones.conflict_tolerance(self.eps))

    @property
    def sums(self) -> Array:
        """``|w|_1``, ``(T,)``."""
        return np.asarray(np.abs(self.weights).sum(axis=1))


@dataclass(frozen=True)
class SmoothSurrogate:
    """``F = sum_k phi_k f_k >= 0`` and its smoothness constant, NaN if unknown."""

    phi: Array
    L: float

    def values(self, run: Recorded) -> Array:
        """F at every point, ``(T + 1,)``."""
        return run.losses @ self.phi

    def slopes(self, run: Recorded) -> Array:
        """``<grad F, d>`` at every step, ``(T,)``."""
        return run.slopes @ self.phi

    def rounding(self, run: Recorded) -> Array:
        """Bound the joint error of F, slope and point at each step, in units of F, ``(T,)``."""
        size = float((np.abs(run.losses).max(axis=0) + np.abs(run.offset)) @ np.abs(self.phi))
        steep = run.gradient_norms @ np.abs(self.phi)
        moved = run.step_sizes * run.norms
        at = np.sqrt((run.points[:-1] ** 2).sum(axis=1))
        # F twice, the slope along the step, and the step itself, whose end is rounded to the run's dtype.
        return np.asarray(run.eps * (UNITS * (2.0 * size + steep * moved) + steep * (at + moved)))


def smooth(run: Recorded, F: SmoothSurrogate) -> Condition:
    """Check that F is non-negative along the run and has a known smoothness constant."""
    lowest = float(F.values(run).min())
    if not F.L > 0.0:
        return Condition("F >= 0 is L-smooth", False, "no smoothness constant is known; give one")
    if run.domain:
        return Condition("F >= 0 is L-smooth", False, run.domain)
    slack = float(F.rounding(run).max(initial=0.0))
    return Condition("F >= 0 is L-smooth", lowest >= -slack, f"L = {F.L:.4g}, least F = {lowest:.3g}")


def has_steps(run: Recorded) -> Condition:
    """Check that the run is not empty."""
    return Condition("the run has steps", run.steps > 0, f"{run.steps}")


def everywhere(
    text: str, values: Array, holds: NDArray[np.bool_] | np.bool_, what: str, least: bool = False
) -> Condition:
    """Check a hypothesis at every step. The detail names the worst value and the first step that breaks it."""
    if not len(values):
        return Condition(text, True, "no steps")
    value = float(values.min() if least else values.max())
    broken = np.flatnonzero(~np.asarray(holds, dtype=bool))
    where = f", broken at {len(broken)} of {len(values)} steps, first at {int(broken[0])}" if len(broken) else ""
    return Condition(text, not len(broken), f"{what} {value:.3g}{where}")


@dataclass
class RunCertificate:
    """The sum of ``eta_t epsilon_t`` over the steps of a run.

    If a subproblem is solved inexactly and condition (A) is missed by epsilon_t, the bound
    ``sum_t c_t^2 Gamma_t^2 <= 2 L F(w_0)`` (eq. PS-ts) is weakened by an error of the order of this sum (footnote of
    eq. sd-conic).

    Attributes:
        steps: number of recorded steps.
        inexactness: the sum of ``eta_t epsilon_t``.
        largest: the largest epsilon_t.
        uncovered: steps without an epsilon_t, because Theorem 4 does not cover their rule.
    """

    steps: int = 0
    inexactness: float = 0.0
    largest: float = 0.0
    uncovered: int = 0

    def record(self, step_size: float, alignment_gap: float | None) -> None:
        """Add a step.

        Args:
            step_size: eta_t, the learning rate.
            alignment_gap: epsilon_t, from `SubproblemSolution`; None if Theorem 4 does not cover the rule.
        """
        if not (math.isfinite(step_size) and step_size >= 0.0):
            raise ParameterError(f"step_size={step_size!r}: a learning rate is finite and at least 0")
        if alignment_gap is not None and not alignment_gap >= 0.0:
            raise ParameterError(f"alignment_gap={alignment_gap!r}: it is at least 0, or None if it is not known")
        self.steps += 1
        if alignment_gap is None:
            self.uncovered += 1
            return
        self.inexactness += step_size * alignment_gap
        self.largest = max(self.largest, alignment_gap)

    def __str__(self) -> str:
        lines = [
            f"{'steps':<26}{self.steps}",
            f"{'sum of eta_t epsilon_t':<26}{self.inexactness:.3g}",
            f"{'largest epsilon_t':<26}{self.largest:.3g}",
        ]
        if self.uncovered:
            lines.append(f"{'steps without epsilon_t':<26}{self.uncovered}   (Theorem 4 does not cover their rule)")
        return "\n".join(lines)
