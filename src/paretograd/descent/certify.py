"""`certify_run`: check the paper's theorems on complete runs, with their hypotheses, bounds and measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from paretograd.certificates.convergence import (
    ALIGNMENT,
    averaged_weights,
    check_alignment,
    check_convex,
    check_descent_lemma,
    check_non_conflicting,
    check_promise,
)
from paretograd.certificates.run import Recorded, RunCheck, SmoothSurrogate
from paretograd.checks import as_weights
from paretograd.descent.step_sizes import positive, with_fixed_weights
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import SUM, Guarantee, Surrogate
from paretograd.problems.base import Problem

#: Number of points of the Pareto set against which Theorem 3 is checked.
_SAMPLES = 64


@dataclass(frozen=True)
class TrajectoryCertificate:
    """The checks of the theorems on every run of a trajectory.

    Attributes:
        title: rule, problem and step size.
        runs: the checks of each run.
        lengths: number of steps taken by each run.
    """

    title: str
    runs: tuple[tuple[RunCheck, ...], ...]
    lengths: tuple[int, ...]

    @property
    def checks(self) -> tuple[RunCheck, ...]:
        """The checks of all runs."""
        return tuple(check for run in self.runs for check in run)

    @property
    def ok(self) -> bool:
        """True if no theorem fails on a run that it covers."""
        return not any(check.verdict == "FAILS" for check in self.checks)

    def covered(self, label: str) -> bool:
        """Return True if the result with this label, such as ``thm:PS-cvx``, covers every run."""
        return all(any(check.label == label and check.covered for check in run) for run in self.runs)

    def tightest(self) -> tuple[RunCheck, ...]:
        """Return, for each claim, its weakest check among the runs: failed, then uncovered, then least slack."""
        return tuple(min(column, key=_doubt) for column in zip(*self.runs, strict=True))

    def curve(self, run: int = 0) -> Array:
        """Return, for every step t, the bound on the least gamma of the first t + 1 points.

        It is the bound of Corollary 1 if that covers the run, else that of Theorem 1 with the measured c, else NaN.
        """
        T, covering = self.lengths[run], [check for check in self.runs[run] if check.covered]
        levels = [check.bound * math.sqrt(T) for check in covering if check.label == "thm:PS-cvx"]
        levels += [math.sqrt(check.bound) for check in covering if check.claim == ALIGNMENT]
        return np.asarray((levels or [math.nan])[0] / np.sqrt(np.arange(1, T + 1)))

    def __str__(self) -> str:
        of = f", the tightest of {len(self.runs)} runs" if len(self.runs) > 1 else ""
        return "\n".join([self.title + of, *(f"  {check}" for check in self.tightest())])


def certify_run(
    trajectory: Trajectory,
    smoothness: float | None = None,
    *,
    surrogate_smoothness: float | None = None,
    F: Literal["sum", "mean"] | Sequence[float] | Tensor | None = None,
    problem: Problem | None = None,
) -> TrajectoryCertificate:
    """Check Theorem 1, Corollary 1, Theorem 2 and, for convex problems, Theorem 3 on every run.

    If a run does not meet the hypotheses of a theorem, the check says *not covered* and gives the reason. The other
    theorems must hold to rounding, whatever rule or library produced the run: only the recorded numbers are used.

    Args:
        trajectory: the trajectory that `descend` returned.
        smoothness: L such that every objective's gradient is L-Lipschitz; None takes the problem's.
        surrogate_smoothness: the same for F, if it is known to be less than ``sum_k phi_k L``.
        F: surrogate function: the sum of the objectives, their mean, or weights phi; None takes that of the rule's
            theorem.
        problem: the problem of the run. If given, Theorem 3 is also checked against points of its Pareto set, the
            minimiser of ``<lambda, f>``, and the point at which its bound is tightest.
    """
    if not isinstance(trajectory, Trajectory):
        raise ParameterError(f"certify_run takes the Trajectory that descend returns; got {type(trajectory).__name__}")
    L = trajectory.smoothness if smoothness is None else positive(smoothness, "smoothness")
    phi, promise = _surrogate(F, trajectory)
    total = None if L is None else L * float(phi.sum())
    if surrogate_smoothness is not None:
        total = positive(surrogate_smoothness, "surrogate_smoothness")
    surrogate = SmoothSurrogate(phi, math.nan if total is None else total)
    return TrajectoryCertificate(
        f"{trajectory.aggregator} on {trajectory.label}, lr = {trajectory.lr}",
        tuple(_checks(trajectory, run, L, surrogate, problem, promise) for run in range(trajectory.runs)),
        tuple(trajectory.lengths.tolist()),
    )


def _checks(
    trajectory: Trajectory,
    number: int,
    L: float | None,
    F: SmoothSurrogate,
    problem: Problem | None,
    promise: Guarantee,
) -> tuple[RunCheck, ...]:
    run = _recorded(trajectory, number)
    found = [check_descent_lemma(run, F), check_alignment(run, F), *check_promise(run, F, promise)]
    found.append(check_non_conflicting(run))
    lam, total = averaged_weights(run)
    points, losses = np.empty((0, run.points.shape[1])), np.empty((0, trajectory.m))
    if problem is not None and trajectory.convex and total > 0.0 and lam.min() >= 0.0:
        points, losses = _reference_points(problem, lam, run.points[0], run.points[-1], total)
        losses = losses - run.offset
    found.append(check_convex(run, math.nan if L is None else L, trajectory.convex, points, losses))
    return tuple(found)


def _recorded(trajectory: Trajectory, number: int) -> Recorded:
    alone = trajectory.run(number)
    least, left = np.array(alone.least), int(alone.left_box[0])
    return Recorded(
        losses=alone.losses[:, 0] - least,
        points=alone.points[:, 0],
        gamma=alone.gamma[:, 0],
        weights=alone.weights[:, 0],
        slopes=alone.slopes[:, 0],
        norms=alone.norms[:, 0],
        step_sizes=alone.step_sizes[:, 0],
        gradient_norms=alone.gradient_norms[:, 0],
        offset=least,
        eps=float(np.finfo(alone.dtype).eps),
        domain=f"the run left the box at step {left}" if left >= 0 else "",
    )


def _reference_points(problem: Problem, lam: Array, first: Array, last: Array, total: float) -> tuple[Array, Array]:
    r"""Return points w ``(R, n)`` against which to check Theorem 3, which holds for any w, and their losses ``(R, m)``.

    They are a sample of the Pareto set; the minimiser of $\langle\lambda, f\rangle$, for which the theorem is the rate
    of convergence; and the minimiser of $\langle\lambda, f(w)\rangle + \|w_0 - w\|^2 / (2 \sum_t \eta_t)$, where its
    bound is tightest. The minimisers are numerical; their accuracy does not matter, since the theorem holds for any w.
    """
    lower, upper = problem.lower.numpy(), problem.upper.numpy()
    found = [problem.pareto_set(_SAMPLES).double().numpy()] if problem.pareto_set is not None else []
    minimisers = [_minimise(problem, lam, first, last, pull).clip(lower, upper) for pull in (0.0, 1.0 / total)]
    points = np.concatenate([*found, minimisers])
    with torch.no_grad():
        losses = problem.objectives(torch.from_numpy(points))
    good = np.isfinite(losses.numpy()).all(axis=1)
    return points[good], losses.numpy()[good]


def _minimise(problem: Problem, lam: Array, first: Array, last: Array, pull: float) -> Array:
    """Minimise ``<lam, f(w)> + pull |first - w|^2 / 2``, starting at the end of the run."""
    from scipy.optimize import minimize

    def objective(w: Array) -> tuple[float, Array]:
        losses, J = problem.jacobian(torch.from_numpy(np.array(w))[None])
        away = w - first
        value = float(losses[0].numpy() @ lam) + 0.5 * pull * float(away @ away)
        return value, lam @ J[0].numpy() + pull * away

    box = list(zip(problem.lower.tolist(), problem.upper.tolist(), strict=True))
    options = {"maxiter": 500, "ftol": 1e-15, "gtol": 1e-10}
    return np.asarray(minimize(objective, last, jac=True, method="L-BFGS-B", bounds=box, options=options).x)


def _surrogate(
    F: Literal["sum", "mean"] | Sequence[float] | Tensor | None, trajectory: Trajectory
) -> tuple[Array, Guarantee]:
    """Return phi and the guarantee for this F.

    Its claim about conflicts holds for any F. Its constant may be for another one.
    """
    m, promise = trajectory.m, with_fixed_weights(trajectory.guarantee)
    own = (SUM if promise.rescaled else promise.F).phi(m)
    if F is None:
        return own, promise
    constant = None
    if not isinstance(F, str):
        phi = as_weights(F, "F", m)
    elif F in ("sum", "mean"):
        phi, constant = Surrogate(F).phi(m), promise.constant_for(Surrogate(F))
    else:
        raise ParameterError(f"F={F!r}: use 'sum', 'mean' or one weight per objective")
    if np.allclose(phi, own, rtol=1e-12, atol=0.0):
        return phi, promise
    note = promise.note if constant is not None else f"its constant is for F = {promise.F}"
    return phi, replace(promise, alignment=constant, note=note)


def _doubt(check: RunCheck) -> tuple[int, float]:
    """Sort key: failed checks first, then uncovered ones, then by slack relative to the bound."""
    if not check.covered:
        return 1, 0.0
    return (2 if check.holds else 0), check.slack / max(abs(check.bound), 1e-300)
