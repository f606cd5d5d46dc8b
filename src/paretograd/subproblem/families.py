"""Linear s, power means of the decreases (eq. pmean), s rebuilt from each Gramian, and the minimum of several s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from paretograd.checks import as_number, as_weights, shown_number
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import MEAN, SUM, THEOREM_2, Alternative, Evidence, Hypothesis, Surrogate
from paretograd.solution import Outcome, Status, outcome_of
from paretograd.solvers.dual_cone import project_dual_cone
from paretograd.solvers.power import power_mean_point
from paretograd.subproblem.scalarization import CONVEX, DualPoint, Family, Quadratic, Scalarization
from paretograd.subproblem.smooth import Smooth


class Linear(Family):
    r"""Linear scalarization, $s(x) = -\langle a, x \rangle$, whose direction is $J^\top a$.

    Args:
        weights: the vector a, one number per objective; None for 1/m each.
    """

    formula = "-<a, x>"
    homogeneous = True
    continuous = continuous_inside = True
    citation = "linear"
    note = ""

    def __init__(self, weights: Sequence[float] | Tensor | Array | None = None) -> None:
        self.weights = None if weights is None else as_weights(weights, "weights")
        self.m = None if self.weights is None else len(self.weights)
        self.total = 1.0 if self.weights is None else float(self.weights.sum())
        self.risk = abs(self.total - 1.0) <= 1e-12
        self.F = MEAN if self.weights is None else Surrogate(tuple(self.weights.tolist()))
        self.theorem = "thm:PS-cvx" if self.sums_to_one_at_least else "thm:PS-fd"

    @property
    def sums_to_one_at_least(self) -> bool:
        return self.total >= 1.0 - 1e-12

    def weights_for(self, m: int) -> Array:
        """Return the vector a for m objectives."""
        return np.full(m, 1.0 / m) if self.weights is None else as_weights(self.weights, "weights", m)

    def value(self, x: Array) -> float:
        return -float(self.weights_for(len(x)) @ x)

    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        return Outcome(self.weights_for(unit.m))

    def dual(self, problem: Quadratic) -> DualPoint:
        return DualPoint(self.weights_for(problem.unit.m), 0.0, 0.0, 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.weights is None else self.weights.tolist()})"


class NonConflicting(Linear):
    r"""Linear scalarization that lets no objective increase: $-\langle a, x \rangle$ if $x \ge 0$, else infinity.

    Its direction is the projection of $J^\top a$ onto the dual cone; uniform weights give DualProj. The dual set is
    $\lambda \ge a$, which implies Proposition 1.

    Args:
        weights: the vector a, one number per objective; None for 1/m each.
    """

    formula = "-<a, x>, x >= 0"
    citation = "linear on a convex cone"
    non_conflicting = True
    continuous = False

    def __init__(self, weights: Sequence[float] | Tensor | Array | None = None) -> None:
        super().__init__(weights)
        if not self.risk:
            self.note = "The weights do not sum to 1: the step scales with their sum."
        self.risk = False
        # d is no longer than J.T a, and conflicts with no gradient: max_k a_k <d, grad sum> >= <d, J.T a> = |d|^2.
        c = 1.0 if self.weights is None else 1.0 / float(self.weights.max())
        self.theorem, self.alternatives = "thm:PS_proj_cvg", (Alternative("thm:PS_proj_cvg", c, SUM),)

    def value(self, x: Array) -> float:
        # Slopes that rounding moved below zero count as zero.
        return super().value(x) if x.min() >= -1e-9 * np.abs(x).max() else math.inf

    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        return outcome_of(project_dual_cone(unit, self.weights_for(unit.m), least=least))

    def dual(self, problem: Quadratic) -> DualPoint:
        shift = 0.0 if problem.center is None else problem.center.weights / problem.beta
        found = project_dual_cone(problem.unit, self.weights_for(problem.unit.m) + shift, least=problem.least)
        return DualPoint(found.weights - shift, 0.0, found.residual / found.growth, found.steps)


class MinusPowerMean(Family):
    r"""$s(x) = -M_p(x)$ with $M_p(x) = (\frac1m \sum_k x_k^p)^{1/p}$, infinite if some $x_k < 0$ (unless p = 1).

    p = 1 is the mean, p = 0 the geometric mean (Nash-MTL), p = -1 the harmonic mean (FairGrad) and p = -inf the worst
    case.

    Args:
        p: the exponent, at most 1; ``-math.inf`` is allowed.
    """

    formula = "-M_p(x)"
    homogeneous = True
    continuous_inside = True
    citation = "Hardy, Littlewood and Polya 1934, on x >= 0"

    def __init__(self, p: float = 0.0) -> None:
        self.p = as_number(p, "p")
        if self.p > 1.0:
            raise ParameterError(f"p={p:g}: the power mean is concave only for p <= 1 (-inf included)")
        self.risk = self.p in (1.0, -math.inf)
        self.non_conflicting = self.p < 1.0
        self.scale_invariant = self.p == 0.0  # a geometric mean factors
        # M_p with p <= 0 vanishes if one slope does, so d vanishes as the point becomes stationary.
        self.continuous = self.p <= 0.0 or self.p == 1.0
        if self.p == -math.inf:
            self.theorem, self.alternatives = "thm:cvg_nonconflict", (THEOREM_2,)

    @property
    def sums_to_one_at_least(self) -> bool:
        """Always True: ``|lambda|_1 >= m M_q(lambda) >= 1`` for q <= 1."""
        return True

    def value(self, x: Array) -> float:
        p = self.p
        if p == 1.0:
            return -float(x.mean())
        if p == -math.inf:
            return -float(x.min())
        if x.min() < 0.0:
            return math.inf
        if (x.min() == 0.0 and p <= 0.0) or not x.any():
            return 0.0
        logs = np.log(np.maximum(x, 1e-320))
        if p == 0.0:
            return -math.exp(logs.mean())
        top = float((p * logs).max())
        return -math.exp((top + math.log(np.exp(p * logs - top).mean())) / p)

    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        return power_mean_point(unit, self.p)

    def dual(self, problem: Quadratic) -> DualPoint:
        if problem.center is not None and not self.risk:
            return Smooth(self._in_torch).dual(problem)
        # s is homogeneous: the multipliers do not depend on beta, and s* is zero on its domain.
        outcome = power_mean_point(problem.shifted(), self.p)
        return DualPoint(outcome.weights, 0.0, outcome.residual, outcome.steps, outcome.status is Status.STATIONARY)

    def _in_torch(self, x: Tensor) -> Tensor:
        x = torch.where(x > 0.0, x, torch.nan)
        if self.p == 0.0:
            return -torch.exp(torch.log(x).mean())
        return -((x**self.p).mean() ** (1.0 / self.p))

    def __repr__(self) -> str:
        return f"MinusPowerMean({shown_number(self.p)})"


class FromGramian(Scalarization):
    """An s rebuilt from the Gramian at every step, such as DualProj's ``-<a, x>`` with a from a projection.

    Theorem 4 needs one F for the whole run. It covers such an s only if ``grad s(0)`` stays the same.

    Args:
        make: function that takes the Gramian, a float64 tensor of shape ``(m, m)``, and returns an s.
    """

    formula = "s depends on G"

    def __init__(self, make: Callable[[Tensor], Scalarization]) -> None:
        self.make = make

    def at(self, G: Array) -> Scalarization:
        made = self.make(torch.from_numpy(G.copy()))
        if not isinstance(made, Scalarization):
            raise ParameterError(f"FromGramian's function must return an s of paretograd.subproblem; got {made!r}")
        return made.at(G)

    def value(self, x: Array) -> float:
        raise NotImplementedError("s depends on the Gramian: call .at(G) first")

    def dual(self, problem: Quadratic) -> DualPoint:
        return self.at(problem.G).dual(problem)

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        return (
            Hypothesis("grad s(0) is the same at every step", False, Evidence.CITED, "s is rebuilt from each Gramian"),
        )

    def surrogate(self, m: int) -> Array | None:
        return None

    def __repr__(self) -> str:
        return f"FromGramian({getattr(self.make, '__name__', self.make)})"


class Lowest(Scalarization):
    """The minimum ``min_k s_k(x)``, which is not convex (Greedy-DCP). Each ``s_k`` is solved, and the best is kept.

    Args:
        parts: the ``s_k``, with half the squared norm as regularizer.
    """

    formula = "min_k s_k(x)"

    def __init__(self, parts: Sequence[Scalarization]) -> None:
        if not parts:
            raise ParameterError("Lowest needs at least one s")
        self.parts = list(parts)

    def value(self, x: Array) -> float:
        return min(part.value(x) for part in self.parts)

    def dual(self, problem: Quadratic) -> DualPoint:
        points = [part.dual(problem) for part in self.parts]
        # The optimal primal value is minus the optimal dual value.
        return max(points, key=lambda point: _dual_value(problem, point))

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        return (Hypothesis(CONVEX, len(self.parts) == 1, Evidence.CITED, "a minimum of convex functions"),)

    def surrogate(self, m: int) -> Array | None:
        return None

    def __repr__(self) -> str:
        return f"Lowest({self.parts})"


def _dual_value(problem: Quadratic, point: DualPoint) -> float:
    lam = point.multipliers
    linear = 0.0 if problem.center is None else float(lam @ problem.center.slopes)
    return point.conjugate + linear + 0.5 * problem.beta * float(lam @ problem.G @ lam)
