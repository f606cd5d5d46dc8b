"""Points to compare the end of a run with in Theorem 3, which speaks of any w."""

from __future__ import annotations

import numpy as np
import torch

from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem

#: Points of the Pareto set.
_SAMPLES = 64


def reference_points(problem: Problem, lam: Array, first: Array, last: Array, total: float) -> tuple[Array, Array]:
    r"""Points w ``(R, n)`` and their losses ``(R, m)``.

    A sample of the Pareto set; the minimiser of $\langle\lambda, f\rangle$, for which the theorem is the rate of
    convergence; and that of $\langle\lambda, f(w)\rangle + \|w_0 - w\|^2 / (2 \sum_t \eta_t)$, where its bound is
    tightest. The minimisers are found numerically; as the theorem holds for any w, nothing rests on how well.
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
    """The minimiser of ``<lam, f(w)> + pull |first - w|^2 / 2``, from the end of the run."""
    from scipy.optimize import minimize

    def objective(w: Array) -> tuple[float, Array]:
        losses, J = problem.jacobian(torch.from_numpy(np.array(w))[None])
        away = w - first
        value = float(losses[0].numpy() @ lam) + 0.5 * pull * float(away @ away)
        return value, lam @ J[0].numpy() + pull * away

    box = list(zip(problem.lower.tolist(), problem.upper.tolist(), strict=True))
    options = {"maxiter": 500, "ftol": 1e-15, "gtol": 1e-10}
    return np.asarray(minimize(objective, last, jac=True, method="L-BFGS-B", bounds=box, options=options).x)
