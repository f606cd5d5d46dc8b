"""The same problems by well-known solvers in float64: a second opinion, and guesses for `qp`.

Measured against the exact answers (`test_references` asserts it): non-negative least squares is good to
1e-14, and to 1e-11 next to stationary points. Clarabel stops on the value: its points are good to 1e-11 in
general, but only to 1e-7 where a min-norm point is zero, 1e-3 where a projection has active constraints with
zero multipliers, and 1e-5 for CAGrad's direction (1e-10 for its worst slope). With norms over many decades
its min-norm points and CAGrad directions are wrong.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]


def unit_rows(J: Array) -> tuple[Array, Array]:
    """Rows of norm 1 (zero rows stay zero) and the norms, shape (m,), safe from underflow."""
    largest = np.abs(J).max(axis=1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    norms = safe * np.linalg.norm(J / safe[:, None], axis=1)
    return J / np.where(norms > 0, norms, 1.0)[:, None], np.where(largest > 0, norms, 0.0)


def thin(J: Array) -> Array:
    """R with R.T R = J J.T and at most m rows: the problem in coordinates of the row space."""
    return np.asarray(np.linalg.qr(J.T, mode="r"))


def min_norm_guess(J: Array, cap: float | None = None) -> Array | None:
    """Weights near the min-norm point's, with exact zeros and caps; None where float64 would be no help."""
    if cap is None or cap >= 1:
        return min_norm_nnls(J)
    norms = unit_rows(J)[1]
    if norms.max() > 1e3 * norms.min(initial=np.inf, where=norms > 0):
        return None  # the interior point is then so far off that a vertex is the better start
    w = min_norm_conic(J, cap)
    w[w < 1e-6 * cap] = 0.0
    w[w > (1 - 1e-6) * cap] = cap
    return w


def min_norm_nnls(J: Array) -> Array:
    """Minimise |J.T y|^2 + tau (sum(y) - 1)^2 over y >= 0; then w = y / sum(y), for any tau > 0.

    Why: for fixed direction of y the best length leaves a decreasing function of sum(y)^2 / |J.T y|^2.
    """
    norms = unit_rows(J)[1]
    tau = norms[norms > 0].min(initial=np.inf)
    tau = 1.0 if np.isinf(tau) else tau
    rows, sizes = unit_rows(np.column_stack([J, np.full(len(J), tau)]))
    target = np.zeros(J.shape[1] + 1)
    target[-1] = 1.0
    y = nnls(rows.T, target, maxiter=100 * len(J))[0] / sizes
    return np.asarray(y / y.sum())


def min_norm_conic(J: Array, cap: float = 1.0) -> Array:
    """Minimise |R w|^2 over the capped simplex with Clarabel, R a thin factor of J."""
    import cvxpy as cp

    w = cp.Variable(len(J))
    R = thin(J)
    scale = np.abs(R).max() or 1.0
    constraints = [w >= 0, w <= max(cap, 1 / len(J)), cp.sum(w) == 1]
    _clarabel(cp.Problem(cp.Minimize(cp.sum_squares((R / scale) @ w)), constraints))
    return np.clip(np.asarray(w.value), 0.0, cap)


def project_nnls(J: Array, q: Array) -> Array:
    """The multipliers l >= 0 for which q + J.T l is the projection of q onto {d : J d >= 0}.

    Moreau: q is the sum of its projections onto a cone and onto the polar cone; so d = q + (projection of -q
    onto the cone of the rows), a non-negative least-squares problem. Row norms do not matter, so they are set
    to 1.
    """
    rows, norms = unit_rows(J)
    size = np.linalg.norm(q)
    if size == 0 or not norms.any():
        return np.zeros(len(J))
    multipliers = nnls(rows.T, -q / size, maxiter=100 * len(J))[0] * size
    return np.asarray(multipliers / np.where(norms > 0, norms, 1.0))


def upgrad_nnls(J: Array) -> Array:
    """UPGrad's direction by m calls of `project_nnls`, for many objectives: the exact one takes a minute."""
    return np.asarray(np.mean([g + J.T @ project_nnls(J, g) for g in J], axis=0))


def project_conic(J: Array, q: Array) -> Array:
    """The projection of q onto {d : J d >= 0} with Clarabel, on unit rows."""
    import cvxpy as cp

    size = np.linalg.norm(q) or 1.0
    d = cp.Variable(len(q))
    _clarabel(cp.Problem(cp.Minimize(cp.sum_squares(d - q / size)), [unit_rows(J)[0] @ d >= 0]))
    return np.asarray(d.value) * size


def cagrad_conic(J: Array, c: float) -> Array:
    """CAGrad's primal problem with Clarabel: the d within c |g0| of the mean g0 whose worst slope is
    greatest.

    In coordinates of the row space, because a component outside it changes no slope.
    """
    import cvxpy as cp

    Q, R = np.linalg.qr(J.T)
    scale = np.abs(R).max() or 1.0
    rows = R.T / scale
    mean = rows.mean(axis=0)
    d = cp.Variable(len(mean))
    radius = c * float(np.linalg.norm(mean))
    _clarabel(cp.Problem(cp.Maximize(cp.min(rows @ d)), [cp.norm(d - mean) <= radius]))
    return np.asarray(Q @ np.asarray(d.value)) * scale


def _clarabel(problem: Any) -> None:
    tolerance = {f"tol_{kind}": 1e-13 for kind in ("gap_abs", "gap_rel", "feas", "ktratio")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": the tests say how accurate it is
        problem.solve(solver="CLARABEL", max_iter=500, **tolerance)
