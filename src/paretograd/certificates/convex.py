"""Theorem 3 on a run: the rate 1/t for convex objectives whose values all go down."""

from __future__ import annotations

import math

import numpy as np

from paretograd.certificates.recorded import UNITS, Recorded, everywhere, has_steps
from paretograd.certificates.run import Condition, RunCheck
from paretograd.geometry.gramian import Array


def averaged_weights(run: Recorded) -> tuple[Array, float]:
    r"""$\lambda = \sum_t \eta_t \lambda_t / \sum_t \eta_t$ of Theorem 3 and $\sum_t \eta_t$, scaled into the hull.

    The paper has a constant step size, where this is the mean of the weights and $\eta T$. For others its proof goes
    through with each step's inequality multiplied by $\eta_t$.
    """
    scaled = run.step_sizes[:, None] * run.weights  # eta |w|_1 times w / |w|_1
    total = float((run.step_sizes * run.sums).sum())
    return scaled.sum(axis=0) / total if total > 0.0 else np.full(run.weights.shape[1], math.nan), total


def check_convex(run: Recorded, L: float, convex: bool, references: Array, losses: Array) -> RunCheck:
    """Theorem 3: ``<lambda, f(w_T) - f(w)> <= |w_0 - w|^2 / (2 sum_t eta_t)`` for any w.

    Args:
        run: what was recorded.
        L: smoothness constant of every objective; NaN where it is not known.
        convex: whether the objectives are declared to be convex.
        references: points w to compare with, ``(R, n)``; visited points are added.
        losses: theirs, ``(R, m)``, less the lower bounds as the run's.
    """
    lam, total = averaged_weights(run)
    effective = run.step_sizes * run.sums * L
    lightest = run.weights.min(axis=1, initial=math.inf) / np.maximum(run.sums, 1e-300)
    size = np.abs(run.losses).max(axis=0) + np.abs(run.offset)
    rises = (run.losses[1:] - run.losses[:-1]) / size
    known = L > 0.0 and not run.domain
    conditions = (
        Condition("every f_k is convex", convex, "declared" if convex else "not declared"),
        Condition("every f_k is L-smooth", known, run.domain or (f"L = {L:.4g}" if known else "L is not known")),
        has_steps(run),
        everywhere("d in the cone (scaled into the hull)", lightest, lightest >= -1e-9, "least weight", least=True),
        everywhere("eta |w|_1 <= 1/L", effective, effective <= 1.0 + 1e-9, "eta |w|_1 L"),
        everywhere("every f_k goes down", rises.max(axis=1), (rises <= UNITS * run.eps).all(axis=1), "largest rise"),
    )
    if not run.steps or not total > 0.0:
        return RunCheck("thm:PScvx-fun", _CLAIM, conditions, math.nan, math.nan, math.nan, 0.0)
    points = np.concatenate([references, run.points])
    values = np.concatenate([losses, run.losses])
    bounds = ((run.points[0] - points) ** 2).sum(axis=1) / (2.0 * total)
    gaps = (run.losses[-1] - values) @ lam
    tightest = int(np.argmin(bounds - gaps))
    # Of each step: the losses' rounding, and that of the point, along the gradient lambda-averaged.
    pulled = (run.gradient_norms * run.weights / np.maximum(run.sums, 1e-300)[:, None]).sum(axis=1)
    at = float(np.sqrt((points**2).sum(axis=1)).max())
    rounding = run.eps * (
        UNITS * float(size @ np.abs(lam)) + at * (UNITS * float(pulled.max()) + at * run.steps / total)
    )
    return RunCheck(
        "thm:PScvx-fun",
        _CLAIM,
        conditions,
        bound=float(bounds[tightest]),
        measured=float(gaps[tightest]),
        slack=float((bounds - gaps)[tightest]),
        rounding=rounding,
        note=f"the tightest of {len(points)} points w, {'given' if tightest < len(references) else 'visited'}",
    )


_CLAIM = "<lambda, f(w_T) - f(w)> <= |w_0 - w|^2 / (2 sum eta_t), for any w"
