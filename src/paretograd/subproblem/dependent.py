"""s that depends on the gradients, and s that is the lowest of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Evidence, Hypothesis
from paretograd.subproblem.scalarization import CONVEX, DualPoint, Quadratic, Scalarization


class FromGramian(Scalarization):
    """An s made anew at every step from the Gramian, such as DualProj's ``-<a, x>`` with a from a projection.

    Theorem 4 needs one F for the whole run, so that it covers such an s only if ``grad s(0)`` stays the same.

    Args:
        make: takes the Gramian, a float64 tensor of shape ``(m, m)``, and returns an s.
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
        raise NotImplementedError("s depends on the Gramian: take .at(G) first")

    def dual(self, problem: Quadratic) -> DualPoint:
        return self.at(problem.G).dual(problem)

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        return (
            Hypothesis(
                "grad s(0) is the same at every step", False, Evidence.CITED, "s is made anew from each Gramian"
            ),
        )

    def surrogate(self, m: int) -> Array | None:
        return None

    def __repr__(self) -> str:
        return f"FromGramian({getattr(self.make, '__name__', self.make)})"


class Lowest(Scalarization):
    """``min_k s_k(x)``, which is not convex: solved by solving for each ``s_k`` and keeping the best (Greedy-DCP).

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
        # The optimal value of the primal problem is minus that of the dual.
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
