"""What inexact solves cost over a whole run (footnote of eq. sd-conic)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paretograd.errors import ParameterError


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
