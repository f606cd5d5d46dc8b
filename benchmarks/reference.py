"""Independent float64 references for the direction of every method.

All functions take a Jacobian ``(m, n)`` in float64 and return ``d``, shape ``(n,)``. The projections and the
min-norm point are non-negative least squares in the space of the gradients (no Gramian, so no squared
condition number); scipy's support is solved again by QR. CAGrad is a second-order cone
program, refined in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls

Array = NDArray[np.float64]


def mean(J: Array) -> Array:
    return J.mean(axis=0)


def mgda(J: Array) -> Array:
    """Minimise ``|J.T y|^2 + (s - tau sum(y))^2``; for any tau > 0 the solution is parallel to the min-norm point."""
    tau = np.linalg.norm(J, axis=1).min()
    rows = np.column_stack([_thin(J), np.full(len(J), tau)])
    target = np.zeros(rows.shape[1])
    target[-1] = tau
    y = _nonnegative(rows, target)
    return J.T @ (y / y.sum())


def dualproj(J: Array) -> Array:
    return _project(J, [np.full(len(J), 1.0 / len(J))])[0]


def upgrad(J: Array) -> Array:
    return np.mean(_project(J, np.eye(len(J))), axis=0)


def _project(J: Array, targets: Iterable[Array]) -> list[Array]:
    """Project q = ``J.T u`` onto {d : J d >= 0}: q plus the point of the cone nearest to -q."""
    rows = _thin(J)
    return [J.T @ (u + _nonnegative(rows, -(rows.T @ u))) for u in targets]


def _nonnegative(rows: Array, target: Array) -> Array:
    """Return the non-negative y with ``rows.T @ y`` nearest to ``target``; rows are first scaled to norm one."""
    norms, size = np.linalg.norm(rows, axis=1), np.linalg.norm(target)
    units = rows / norms[:, None]
    y = nnls(units.T, target / size, maxiter=100 * len(rows))[0]
    support = y > 1e-13 * max(y.max(), 1.0)
    if support.any():
        polished = np.zeros_like(y)
        polished[support] = np.linalg.lstsq(units[support].T, target / size, rcond=None)[0]
        if (polished >= 0.0).all() and (units @ (units.T @ polished - target / size) > -1e-13)[~support].all():
            y = polished
    return y * size / norms


def cagrad(J: Array, c: float = 0.5) -> Array:
    """``max min_k <d, g_k>  subject to  |d - g0| <= c |g0|``: Clarabel's support, solved exactly."""
    import cvxpy as cp

    R = _thin(J)
    g0 = R.mean(axis=0)
    radius = c * float(np.linalg.norm(g0))
    step = cp.Variable(R.shape[1])
    scale = np.linalg.norm(R, axis=1).min()
    level = cp.Variable()
    slopes = (R / scale) @ step + (R / scale) @ (g0 / radius) >= level
    problem = cp.Problem(cp.Maximize(level), [slopes, cp.norm(step) <= 1.0])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    duals = np.asarray(slopes.dual_value) * np.linalg.norm(R, axis=1)
    multipliers = _on_sphere(R, g0, radius, duals > 1e-6 * duals.max())
    return J.T @ (np.full(len(J), 1.0 / len(J)) + radius * multipliers)


def _on_sphere(R: Array, g0: Array, radius: float, support: NDArray[np.bool_]) -> Array:
    """Return y >= 0 with ``|R.T y| = 1`` and equal slopes ``<g0 + radius R.T y, g_k>`` on the support, lowest there.

    On a support the condition ``base + radius R R.T y = t`` and ``|R.T y| = 1`` is a quadratic equation in t.
    """
    norms = np.linalg.norm(R, axis=1)
    units, base = R / norms[:, None], (R / norms[:, None]) @ g0
    tilt = norms.min() / norms
    for _ in range(20 * len(R)):
        Q, T = np.linalg.qr(units[support].T)
        p, s = np.linalg.solve(T.T, tilt[support]), np.linalg.solve(T.T, base[support])
        a, b, gap = p @ p, p @ s, s @ s - radius * radius
        t = (b + np.sqrt(max(b * b - a * gap, 0.0))) / a
        y = np.zeros(len(R))
        y[support] = np.linalg.solve(T, (t * p - s) / radius)
        slack = base + radius * (units @ (Q @ (T @ y[support]))) - t * tilt
        wrong = np.where(support, y, slack)
        worst = int(wrong.argmin())
        if wrong[worst] > -1e-12:
            return y / norms
        support[worst] = not support[worst]
    raise ArithmeticError("no support satisfies the optimality conditions of CAGrad")


def nash_mtl(J: Array) -> Array:
    """Solve ``G w = 1 / w``; clipping to norm one, the default of both libraries, gives the unit direction."""
    d = J.T @ _fair_weights(J, 1.0)
    return d / np.linalg.norm(d)


def fairgrad(J: Array, alpha: float = 2.0) -> Array:
    return J.T @ _fair_weights(J, 1.0 / alpha)


def _fair_weights(J: Array, beta: float) -> Array:
    """Solve ``(G w)_k = w_k^-beta`` by damped Newton steps on the corresponding convex function."""
    norms = np.linalg.norm(J, axis=1)
    units = _thin(J / norms[:, None])
    C, kappa = units @ units.T, norms ** (beta - 1.0)  # with w = u / norms:  C u = kappa u^-beta
    u = np.full(len(J), kappa.max() ** (1.0 / (1.0 + beta)))
    for _ in range(500):
        gradient = C @ u - kappa * u**-beta
        if np.abs(gradient).max() <= 1e-14 * (np.abs(C) @ u).max():
            break
        hessian = C + np.diag(beta * kappa * u ** (-beta - 1.0))
        step = -cho_solve(cho_factor(hessian), gradient)
        decrement = float(np.sqrt(max(-gradient @ step, 0.0) / (kappa * u ** (1.0 - beta)).min()))
        shrink = float((-step / u).max())
        u = u + min(1.0 if decrement < 0.25 else 1.0 / (1.0 + decrement), 0.9 / max(shrink, 1e-300)) * step
    return u / norms


def pcgrad(J: Array, orders: NDArray[np.intp]) -> Array:
    """Remove each gradient's conflicts with the others once, in the given order, and return the sum."""
    total = np.zeros(J.shape[1])
    for k, order in enumerate(orders):
        g = J[k].copy()
        for i in order:
            if i != k:
                g -= min(g @ J[i], 0.0) / (J[i] @ J[i]) * J[i]
        total += g
    return total


def imtlg(J: Array) -> Array:
    """Return the direction with equal projections on all unit gradients and weights that sum to one."""
    norms = np.linalg.norm(J, axis=1)
    R = np.linalg.qr((J / norms[:, None]).T, mode="r")
    w = np.linalg.solve(R, np.linalg.solve(R.T, np.ones(len(J)))) / norms
    return J.T @ (w / w.sum())


def config(J: Array) -> Array:
    """Return the unit vector along ``pinv(unit gradients) 1``, times the sum of the gradients' projections on it."""
    units = J / np.linalg.norm(J, axis=1)[:, None]
    u = np.linalg.pinv(units) @ np.ones(len(J))
    u /= np.linalg.norm(u)
    return (J @ u).sum() * u


def _thin(J: Array) -> Array:
    """Return the rows in coordinates of their span, shape ``(m, min(m, n))``."""
    return np.asarray(np.linalg.qr(J.T, mode="r")).T


def aligned_mtl(J: Array) -> Array:
    """Return ``s_min V U' p`` for the singular value decomposition ``J = U S V'`` and p = 1/m."""
    U, S, Vt = np.linalg.svd(J, full_matrices=False)
    return S[-1] * (Vt.T @ (U.T @ np.full(len(J), 1.0 / len(J))))


def pcd(J: Array, tau: float = 0.02) -> Array:
    """Return the first step: the point nearest to the first unit gradient with slopes of at least tau, of its length.

    A point with these slopes moves the constraints to a cone.
    """
    units = J / np.linalg.norm(J, axis=1)[:, None]
    others = units[1:]
    start = np.linalg.lstsq(others, np.full(len(others), tau), rcond=None)[0]
    q = units[0] - start
    d = units[0] + others.T @ _nonnegative(others, -q)
    return np.linalg.norm(J[0]) * d / np.linalg.norm(d)


def krum(J: Array, power: float = 2.0) -> Array:
    """Return the gradient with the least sum of distances, to this power, to its m - 2 nearest neighbours."""
    apart = np.linalg.norm(J[:, None] - J, axis=2) ** power
    return J[int(np.sort(apart, axis=1)[:, 1 : len(J) - 1].sum(axis=1).argmin())]
