"""A smooth convex s written in torch: Newton's method on the m-dimensional primal problem."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import HypothesisError, ShapeError
from paretograd.geometry.gramian import Array, as_array
from paretograd.guarantees import Hypothesis
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.nonneg_qp import factor
from paretograd.subproblem import probing
from paretograd.subproblem.newton import Function, Jet, Problem, minimise
from paretograd.subproblem.scalarization import CONVEX, DECREASING, TRANSLATION, DualPoint, Quadratic, Written


class Smooth(Written):
    """A twice differentiable convex function of x, written in torch. It is infinite or NaN outside its domain.

    The direction lies in the span of the gradients. In an orthonormal basis of this span, the problem has at most m
    unknowns: ``min over p of s(x0 + L p) + |p|^2 / (2 beta)`` with ``L L' = G``. The derivatives are torch.autograd's.

    Args:
        function: function that takes x, a float64 tensor of shape ``(m,)``, and returns a scalar tensor.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``. The claim is checked; it implies that the
            multipliers lie in the simplex.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], risk: bool = False) -> None:
        super().__init__(function, risk)
        self._risks: dict[int, bool] = {}

    def value(self, x: Array) -> float:
        found = self.function(torch.from_numpy(np.array(x)))
        if not isinstance(found, Tensor):
            raise HypothesisError(
                "s returns a scalar tensor",
                f"s returned {type(found).__name__}; write it in torch, which can differentiate it, or wrap a "
                "function that builds a cvxpy expression in paretograd.subproblem.Cvxpy",
            )
        if found.numel() != 1 or found.is_complex():
            raise ShapeError(
                f"s must return one real number; for x of shape ({len(x)},) it returned shape {tuple(found.shape)}. "
                "Reduce it, for instance with .sum() or .mean()"
            )
        number = float(found)
        return number if number > -math.inf else math.inf  # NaN also means outside the domain

    def dual(self, problem: Quadratic) -> DualPoint:
        unit, beta = problem.unit, problem.beta
        x0 = problem.slopes
        L = unit.expand(factor(unit.C) * unit.norms).T
        start = self._start(problem, L, x0)
        if start is None:
            return DualPoint(np.zeros(unit.m), 0.0, 0.0, 0, stationary=True)
        s = Function(self.value, self._jet)
        point = minimise(s, Problem(L, x0, beta), *start, lambda: self._is_risk(unit.m))
        return DualPoint(point.multipliers, point.conjugate, point.residual, point.steps)

    def _is_risk(self, m: int) -> bool:
        """Return True if s is a risk measure, as claimed or as found at sampled points."""
        if m not in self._risks:
            self._risks[m] = self.risk or probing.check_translation(self.value, m, TRANSLATION).holds
        return self._risks[m]

    def _start(self, problem: Quadratic, L: Array, x0: Array) -> tuple[Array, Jet] | None:
        """Return a point and the derivatives of s there, or None: at the centre, or on MGDA's direction."""
        jet = self._jet(x0)
        if jet is not None:
            return np.zeros(L.shape[1]), jet
        nearest = min_norm_point(problem.unit)
        along = L.T @ nearest.weights
        for t in () if nearest.stationary else (1.0, 1e-2, 1e2, 1e-4, 1e4, 1e-6, 1e6):
            jet = self._jet(x0 + L @ (t * along))
            if jet is not None:
                return np.asarray(t * along), jet
        return None

    def _jet(self, x: Array) -> Jet | None:
        """Return the value, gradient and Hessian at x, or None if one of them is not finite."""
        value = self.value(x)
        if not math.isfinite(value):
            return None
        # For so few unknowns, a batched second backward takes a fifth of the time of torch.func.hessian.
        point = torch.from_numpy(np.array(x)).requires_grad_()
        with torch.enable_grad():
            y = self.function(point).reshape(())
            if not y.requires_grad:  # constant
                return Jet(value, np.zeros_like(x), np.zeros((len(x), len(x))))
            (slope,) = torch.autograd.grad(y, point, create_graph=True)
        if not bool(torch.isfinite(slope).all()):
            return None
        if not slope.requires_grad:  # linear
            return Jet(value, as_array(slope), np.zeros((len(x), len(x))))
        eye = torch.eye(len(x), dtype=torch.float64, device="cpu")
        (curvature,) = torch.autograd.grad(slope, point, eye, is_grads_batched=True)
        return Jet(value, as_array(slope), as_array(curvature)) if bool(torch.isfinite(curvature).all()) else None

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        return self._completed(
            m,
            probing.check_convex(self.value, m, CONVEX),
            probing.check_decreasing(self.value, m, DECREASING),
        )

    def surrogate(self, m: int) -> Array | None:
        jet = self._jet(np.zeros(m))
        return probing.find_surrogate(self.value, m) if jet is None else -jet.slope
