"""Whole runs: a theorem's bound and what was measured; what inexact solves cost (footnote of eq. sd-conic)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paretograd.errors import ParameterError
from paretograd.guarantees import RESULTS


@dataclass
class RunCertificate:
    """The sum of ``eta_t epsilon_t`` over the steps of a run.

    Where a subproblem is solved inexactly, so that condition (A) is missed by epsilon_t, the bound
    ``sum_t c_t^2 Gamma_t^2 <= 2 L F(w_0)`` (eq. PS-ts) is weakened by an error of the order of this sum.

    Attributes:
        steps: how many were recorded.
        inexactness: the sum of ``eta_t epsilon_t``.
        largest: the largest epsilon_t.
        uncovered: steps without an epsilon_t, as Theorem 4 does not cover their rule.
    """

    steps: int = 0
    inexactness: float = 0.0
    largest: float = 0.0
    uncovered: int = 0

    def record(self, step_size: float, alignment_gap: float | None) -> None:
        """Add a step.

        Args:
            step_size: eta_t, the learning rate.
            alignment_gap: epsilon_t, from `SubproblemSolution`; None where Theorem 4 does not cover the rule.
        """
        if not (math.isfinite(step_size) and step_size >= 0.0):
            raise ParameterError(f"step_size={step_size!r}: a learning rate is finite and at least 0")
        if alignment_gap is not None and not alignment_gap >= 0.0:
            raise ParameterError(f"alignment_gap={alignment_gap!r}: it is at least 0, or None where it is not known")
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


@dataclass(frozen=True)
class Condition:
    """One hypothesis of a theorem, checked on a run.

    Attributes:
        text: the hypothesis.
        holds: whether it does.
        detail: the number that decided it, and where.
    """

    text: str
    holds: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.text}: {'yes' if self.holds else 'NO'} ({self.detail})"


@dataclass(frozen=True)
class RunCheck:
    """One result of the paper on one run: its hypotheses, its bound, and what was measured.

    A result whose hypotheses do not all hold says nothing about the run: it is *not covered*, which is no failure.

    Attributes:
        label: of the result, a key of `RESULTS`.
        claim: the inequality, in words.
        conditions: the hypotheses.
        bound: the side of the inequality that the theorem computes in advance; NaN where it cannot.
        measured: the other side, from the run.
        slack: by how much the inequality holds; below 0 where it does not.
        rounding: how far rounding may push the slack below 0.
        note: what else a reader should know, such as the constants.
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
        """Whether all hypotheses hold, so that the theorem speaks about this run."""
        return all(condition.holds for condition in self.conditions)

    @property
    def holds(self) -> bool:
        """Whether the claim holds to rounding; for a run that is not covered it may or may not."""
        return self.slack >= -self.rounding

    @property
    def verdict(self) -> str:
        """``holds``, ``FAILS``, or ``not covered``."""
        return "not covered" if not self.covered else "holds" if self.holds else "FAILS"

    @property
    def quantity(self) -> str:
        """What is measured: the left side of the claim."""
        return self.claim.replace(" >= ", " <= ").partition(" <= ")[0]

    @property
    def missing(self) -> Condition | None:
        """The first hypothesis that does not hold; None where all do."""
        return next((condition for condition in self.conditions if not condition.holds), None)

    def __str__(self) -> str:
        head = f"{self.name}: {self.verdict}"
        if not self.covered:
            return f"{head}. {self.missing}"
        return f"{head}. {self.claim}: {self.measured:.6g} against {self.bound:.6g}, slack {self.slack:.3g}"
