"""Convex s written in cvxpy. The conic solver is general but slow; the other solvers are tested against it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from paretograd.errors import HypothesisError, MissingExtraError, ShapeError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Evidence, Hypothesis
from paretograd.solvers.nonneg_qp import factor
from paretograd.subproblem import probing
from paretograd.subproblem.scalarization import CONVEX, DECREASING, DualPoint, Quadratic, Written


class Cvxpy(Written):
    """A function that builds a cvxpy expression of x, such as ``lambda x: cp.max(-x)``.

    Clarabel, an interior-point method, solves the problem to at least six digits. The residual estimates the error.
    Cvxpy needs the extra ``paretograd[cvxpy]``.

    Args:
        build: function that takes a cvxpy expression of shape ``(m,)`` and returns a convex scalar expression.
        risk: claim that s is a convex risk measure, ``s(x + c) = s(x) - c``. The claim is checked.
    """

    accuracy = 1e-5

    def __init__(self, build: Callable[[Any], Any], risk: bool = False) -> None:
        _import_cvxpy()
        super().__init__(build, risk)
        self._programs: dict[int, _Program] = {}

    def value(self, x: Array) -> float:
        program = self._program(len(x))
        program.x.value = x
        with np.errstate(all="ignore"):  # outside the domain of s
            found = program.s.value
        return math.inf if found is None or math.isnan(float(found)) else float(found)

    def dual(self, problem: Quadratic) -> DualPoint:
        unit, cp = problem.unit, _import_cvxpy()
        m = unit.m
        x0 = problem.slopes
        # The solver's tolerances are meaningful only in units of the largest gradient.
        size = float(unit.norms.max()) if len(unit.norms) else 1.0
        A = np.zeros((m, m))
        R = factor(unit.C) * (unit.norms / size) if len(unit.norms) else np.zeros((0, 0))
        A[:, : len(R)] = unit.expand(R).T
        program = self._program(m)
        scale = math.sqrt(problem.beta) * size
        program.A.value, program.x0.value = scale * A, x0
        program.x.value = None  # some atoms fail if x has a value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "may be inaccurate": the residual reports it
            raw = program.solve(cp)
        if program.problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return DualPoint(np.zeros(m), 0.0, 0.0, 0, stationary=True)
        multipliers = np.asarray(program.link.dual_value, dtype=np.float64)
        p = np.asarray(program.p.value, dtype=np.float64)
        pull = scale * (A.T @ multipliers)
        value, square = float(program.problem.value), float(pull @ pull)
        gap = abs(float(raw.obj_val) - float(raw.obj_val_dual))
        conjugate = gap - value - float(multipliers @ x0) - 0.5 * square
        # At the optimum p = A' lambda. A duality gap allows an error in p of the order of its square root.
        apart = float(np.abs(p - pull).max() / max(np.abs(p).max(), np.abs(pull).max(), 1e-300))
        residual = max(math.sqrt(gap / max(abs(value), square, 1e-300)), apart)
        return DualPoint(multipliers, conjugate, residual, int(raw.iterations))

    def _program(self, m: int) -> _Program:
        """Return the problem for m objectives. It is compiled once; afterwards only its parameters change."""
        if m not in self._programs:
            cp = _import_cvxpy()
            x, p = cp.Variable(m), cp.Variable(m)
            A, x0 = cp.Parameter((m, m)), cp.Parameter(m)
            s = self._expression(x, m)
            link = x == x0 + A @ p
            problem = cp.Problem(cp.Minimize(s + 0.5 * cp.sum_squares(p)), [link])
            if not problem.is_dcp():
                raise HypothesisError(
                    CONVEX,
                    f"Theorem 4 requires that s is convex, and cvxpy's rules do not show it for {s}. Write it with "
                    "convex atoms (cp.max, cp.logistic, -cp.geo_mean, ...), or in torch, to check convexity at points",
                )
            self._programs[m] = _Program(problem, link, x, p, A, x0, s)
        return self._programs[m]

    def _expression(self, x: Any, m: int) -> Any:
        cp = _import_cvxpy()
        s = self.function(x)
        if not isinstance(s, cp.Expression):
            raise HypothesisError(
                "s returns a cvxpy expression",
                f"Cvxpy's function returned {type(s).__name__}; it must build a cvxpy expression of x. "
                "Pass a torch function to Subproblem directly",
            )
        if s.size != 1:
            raise ShapeError(f"s must be scalar; for x of shape ({m},) it has shape {s.shape}. Reduce it with cp.sum")
        return cp.reshape(s, (), order="C") if s.shape != () else s

    def hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        cp = _import_cvxpy()
        convex = self._expression(cp.Variable(m), m).is_convex()
        # A convex function of a concave expression follows cvxpy's rules only if it is decreasing in it.
        concave = cp.Variable(m) - cp.square(cp.Variable(m))
        try:
            decreasing = self._expression(concave, m).is_convex()
        except (ValueError, cp.error.DCPError):  # the atom takes only affine arguments
            decreasing = False
        if not convex:
            return (Hypothesis(CONVEX, False, Evidence.PROVED, "cvxpy's rules do not show it"),)
        proved = Hypothesis(DECREASING, True, Evidence.PROVED, "cvxpy")
        return self._completed(
            m,
            Hypothesis(CONVEX, True, Evidence.PROVED, "cvxpy"),
            # Evaluating s may itself involve a solve, with an error larger than rounding.
            proved if decreasing else probing.check_decreasing(self.value, m, DECREASING, rounding=1e-6),
        )

    def surrogate(self, m: int) -> Array | None:
        program = self._program(m)
        program.x.value = np.zeros(m)
        try:
            with np.errstate(all="ignore"):
                found = program.s.grad[program.x]
        except (NotImplementedError, AttributeError):  # some atoms have no gradient, or fail to compute it
            found = None
        if found is None or not np.isfinite(found.todense()).all():
            return probing.find_surrogate(self.value, m)
        return -np.asarray(found.todense(), dtype=np.float64).ravel()


class _Program(NamedTuple):
    problem: Any
    link: Any
    x: Any
    p: Any
    A: Any
    x0: Any
    s: Any

    def solve(self, cp: Any) -> Any:
        """Solve the problem and return Clarabel's own report, which holds the dual value that cvxpy drops."""
        data, chain, inverse = self.problem.get_problem_data(cp.CLARABEL, solver_opts={})
        # If the solver misses a tolerance, its last point may be worse or better than at a looser one: keep the best.
        best, best_gap = None, math.inf
        for tolerance in (1e-13, 1e-10, 1e-8):
            options = {"tol_gap_abs": tolerance, "tol_gap_rel": tolerance, "tol_feas": tolerance, "max_iter": 200}
            raw = chain.solve_via_data(self.problem, data, solver_opts=options)
            gap = abs(raw.obj_val - raw.obj_val_dual)
            if best is None or gap < best_gap:
                best, best_gap = raw, gap
            if str(raw.status) == "Solved":
                break
        self.problem.unpack_results(best, chain, inverse)
        return best


def _import_cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise MissingExtraError(
            "an s given as a cvxpy expression needs cvxpy and Clarabel: pip install 'paretograd[cvxpy]'. Without them, "
            "use a family of paretograd.subproblem or a smooth function written in torch"
        ) from None
    return cvxpy
