"""A smooth convex s written in torch: Newton's method on the m-dimensional primal problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import HypothesisError, ShapeError
from paretograd.geometry.gramian import Array, as_array
from paretograd.guarantees import Hypothesis
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.nonneg_qp import factor
from paretograd.subproblem import probing
from paretograd.subproblem.scalarization import CONVEX, DECREASING, DualPoint, Quadratic
from paretograd.subproblem.written import Written


class Smooth(Written):
    """A twice differentiable convex function of x, written in torch; infinite or NaN outside its domain.

    The direction lies in the span of the gradients, so that in an orthonormal basis of it the problem has at most m
    unknowns: ``min over p of s(x0 + L p) + |p|^2 / (2 beta)`` with ``L L' = G``. Derivatives come from torch.autograd.

    Args:
        function: takes x, a float64 tensor of shape ``(m,)``, and returns a scalar tensor.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``: it is checked, and puts the
            multipliers on the simplex.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], risk: bool = False) -> None:
        super().__init__(function, risk)

    def value(self, x: Array) -> float:
        found = self.function(torch.from_numpy(np.array(x)))
        if not isinstance(found, Tensor):
            raise HypothesisError(
                "s returns a scalar tensor",
                f"s returned {type(found).__name__}; write it in torch, so that it can be differentiated, or wrap a "
                "function that builds a cvxpy expression in paretograd.subproblem.Cvxpy",
            )
        if found.numel() != 1 or found.is_complex():
            raise ShapeError(
                f"s returns one real number; for x of shape ({len(x)},) it returned shape {tuple(found.shape)}. "
                "Reduce it, for instance with .sum() or .mean()"
            )
        number = float(found)
        return number if number > -math.inf else math.inf  # NaN, too: outside the domain

    def dual(self, problem: Quadratic) -> DualPoint:
        unit, beta = problem.unit, problem.beta
        x0 = problem.slopes
        L = unit.expand(factor(unit.C) * unit.norms).T
        start = self._start(problem, L, x0)
        if start is None:
            return DualPoint(np.zeros(unit.m), 0.0, 0.0, 0, stationary=True)
        x, slope, residual, steps = self._newton(L, x0, beta, *start)
        # The gradient of s at x is where <-lambda, x> - s(x) is largest: that is the conjugate, exactly.
        return DualPoint(-slope, float(slope @ x) - self.value(x), residual, steps)

    def _start(self, problem: Quadratic, L: Array, x0: Array) -> tuple[Array, _Jet] | None:
        """A point at which s has derivatives, and these: the centre, or else a multiple of MGDA's direction."""
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

    def _newton(self, L: Array, x0: Array, beta: float, p: Array, jet: _Jet) -> tuple[Array, Array, float, int]:
        """Damped Newton steps until the optimality condition ``p = -beta L' grad s`` holds to rounding."""
        best, best_residual, stalled, steps = (x0 + L @ p, jet.slope), math.inf, 0, 0
        while steps < 200:
            steps += 1
            pull = L.T @ jet.slope
            gradient = pull + p / beta
            terms = np.abs(L.T) @ np.abs(jet.slope) + np.abs(p) / beta
            residual = float(np.abs(gradient).max() / terms.max()) if terms.max() > 0.0 else 0.0
            if residual < best_residual:
                best, best_residual, stalled = (x0 + L @ p, jet.slope), residual, 0
            else:
                stalled += 1
            if residual <= 1e-16 * (4 + len(x0)) or (stalled >= 3 and best_residual < 1e-10) or stalled >= 20:
                break
            hessian = L.T @ jet.curvature @ L
            hessian.ravel()[:: len(p) + 1] += 1.0 / beta
            step = np.asarray(-np.linalg.solve(hessian, gradient), dtype=np.float64)
            moved = self._line_search(L, x0, beta, p, step, jet, float(gradient @ step))
            if moved is None:
                break
            p, jet = moved
        return *best, best_residual, steps

    def _line_search(
        self, L: Array, x0: Array, beta: float, p: Array, step: Array, jet: _Jet, descent: float
    ) -> tuple[Array, _Jet] | None:
        """The first step length of 1, 1/2, ... that makes progress; None if there is none.

        Progress is a lower value or, where values differ by rounding only, a slope along the step that has shrunk:
        along a line, a convex function falls until its slope is zero.
        """
        here = jet.value + 0.5 * float(p @ p) / beta
        t = 1.0
        for _ in range(60):
            trial = p + t * step
            value = self.value(x0 + L @ trial) + 0.5 * float(trial @ trial) / beta
            lower = value <= here + 1e-4 * t * descent
            if lower or value <= here + 1e-6 * (1.0 + abs(here)):
                found = self._jet(x0 + L @ trial)
                if found is not None and (lower or (found.slope @ L + trial / beta) @ step <= -0.5 * descent):
                    return trial, found
            t *= 0.5
        return None

    def _jet(self, x: Array) -> _Jet | None:
        """Value, gradient and Hessian at x; None where one of them is not finite."""
        value = self.value(x)
        if not math.isfinite(value):
            return None
        # A batched second backward takes a fifth of the time of torch.func.hessian for so few unknowns.
        point = torch.from_numpy(np.array(x)).requires_grad_()
        with torch.enable_grad():
            y = self.function(point).reshape(())
            if not y.requires_grad:  # constant
                return _Jet(value, np.zeros_like(x), np.zeros((len(x), len(x))))
            (slope,) = torch.autograd.grad(y, point, create_graph=True)
        if not bool(torch.isfinite(slope).all()):
            return None
        if not slope.requires_grad:  # linear
            return _Jet(value, as_array(slope), np.zeros((len(x), len(x))))
        eye = torch.eye(len(x), dtype=torch.float64, device="cpu")
        (curvature,) = torch.autograd.grad(slope, point, eye, is_grads_batched=True)
        return _Jet(value, as_array(slope), as_array(curvature)) if bool(torch.isfinite(curvature).all()) else None

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        return self._completed(
            m,
            probing.check_convex(self.value, m, CONVEX),
            probing.check_decreasing(self.value, m, DECREASING),
        )

    def surrogate(self, m: int) -> Array | None:
        jet = self._jet(np.zeros(m))
        return probing.find_surrogate(self.value, m) if jet is None else -jet.slope


class _Jet(NamedTuple):
    value: float
    slope: Array
    curvature: Array
