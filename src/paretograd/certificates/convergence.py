"""Theorems 1 to 3 and Corollary 1 on one recorded run, as pure functions."""

from __future__ import annotations

import math

import numpy as np

from paretograd.certificates.run import (
    UNITS,
    Condition,
    Recorded,
    RunCheck,
    SmoothSurrogate,
    everywhere,
    has_steps,
    smooth,
)
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee

#: The claim of Theorem 1 with Gamma = gamma.
ALIGNMENT = "sum gamma_t^2 <= 2 L F(w_0) / c^2"

#: The claim of Theorem 3.
_CONVEX = "<lambda, f(w_T) - f(w)> <= |w_0 - w|^2 / (2 sum eta_t), for any w"


def check_descent_lemma(run: Recorded, F: SmoothSurrogate) -> RunCheck:
    """``F(w_{t+1}) <= F(w_t) - eta <grad F, d> + L/2 |eta d|^2`` at every step, to check that L is large enough."""
    values, moved = F.values(run), run.step_sizes * run.norms
    slack = values[:-1] - run.step_sizes * F.slopes(run) + 0.5 * F.L * moved**2 - values[1:]
    worst = int(np.argmin(slack + F.rounding(run))) if run.steps else 0
    return RunCheck(
        "thm:PS-fd",
        "descent lemma: F(w_t+1) <= F(w_t) - eta <grad F, d> + L/2 |eta d|^2",
        (smooth(run, F), has_steps(run)),
        bound=float((values[1:] + slack)[worst]) if run.steps else math.nan,
        measured=float(values[1 + worst]) if run.steps else math.nan,
        slack=float(slack[worst]) if run.steps else math.nan,
        rounding=float(F.rounding(run)[worst]) if run.steps else math.nan,
        note=f"tightest at step {worst}",
    )


def check_alignment(run: Recorded, F: SmoothSurrogate) -> RunCheck:
    r"""Theorem 1 with Gamma = gamma and the alignment measured at every step.

    With any step size the descent lemma gives $F(w_t) - F(w_{t+1}) \ge \rho_t (2 - \rho_t) c_t^2 \Gamma_t^2 / 2L$;
    $\rho_t$ is the step size divided by the theorem's, $c_t \Gamma_t / (L \|d_t\|)$. So the theorem holds with c
    replaced by the least $c_t \sqrt{\rho_t (2 - \rho_t)}$, which is c for the theorem's own step size.
    """
    slopes, eta = F.slopes(run), run.step_sizes
    gamma = run.gamma[:-1]
    gained = F.L * eta * (2.0 * slopes - F.L * eta * run.norms**2)  # at most 2 L times the decrease of F
    with np.errstate(divide="ignore", invalid="ignore"):
        c_squared = float(np.min(np.where(gamma > 0.0, gained / gamma**2, math.inf), initial=math.inf))
        c = np.where(run.norms * gamma > 0.0, slopes / (gamma * run.norms), math.inf)
        relative = eta * F.L * run.norms**2 / slopes
    conditions = (
        smooth(run, F),
        has_steps(run),
        everywhere("<d, grad F> >= c gamma |d| with c > 0", c, c > 0.0, "least c_t", least=True),
        everywhere(
            "eta < 2 c_t gamma / (L |d|)", relative, (relative > 0.0) & (relative < 2.0), "eta over the theorem's"
        ),
    )
    return _sum_check(run, F, gamma, c_squared, conditions, ALIGNMENT, "c measured")


def check_promise(run: Recorded, F: SmoothSurrogate, promise: Guarantee) -> list[RunCheck]:
    """Theorem 1 and Corollary 1 with the constant that the rule promises.

    For a rule with condition (A), Gamma is ``|d|``. This suffices for Theorem 1; Corollary 1 also needs
    ``|d| >= gamma``, which holds beyond the hull. For a rule that never conflicts and has no (A) as it stands, Gamma is
    ``|d| / |w|_1``, the starred variant's ``|d|``, with c = 1. With ``h = eta L |d| / Gamma`` the constant of a step is
    ``h (2 c - h)``, which is c^2 for the theorem's step, h = c.
    """
    never_conflicts = promise.non_conflicting and promise.in_cone
    rescaled = promise.alignment is None or promise.rescaled
    ratio = 1.0 / run.sums if rescaled else np.ones(run.steps)  # Gamma / |d|
    c = 1.0 if rescaled or promise.alignment is None else promise.alignment
    covered = promise.theorem is not None and (never_conflicts or promise.alignment is not None)
    long = never_conflicts or promise.beyond_hull
    h = F.L * run.step_sizes / ratio
    squares = h * (2.0 * c - h)
    with np.errstate(divide="ignore", invalid="ignore"):
        aligned = F.slopes(run) / (ratio * run.norms**2)
        slack = run.slope_rounding @ np.abs(F.phi) / (ratio * run.norms**2)
    name = "|d|/|w|_1" if rescaled else "|d|"
    conditions = (
        Condition(
            "the rule promises condition (A)", covered, promise.note or promise.theorem or "no theorem covers it"
        ),
        smooth(run, F),
        has_steps(run),
        everywhere(f"<d, grad F> >= {c:.3g} Gamma |d|", aligned, aligned >= c - slack, "least c_t", least=True),
        everywhere(
            f"eta < 2 c Gamma / (L |d|), Gamma = {name}", h / c, (h > 0.0) & (h < 2.0 * c), "eta L |d| / c Gamma"
        ),
    )
    Gamma = ratio * run.norms
    c_squared = float(np.min(squares, initial=math.inf))
    first = _sum_check(run, F, Gamma, c_squared, conditions, "sum Gamma_t^2 <= 2 L F(w_0) / c^2", f"Gamma = {name}")
    longer = Gamma * (1.0 + 1e-7) >= run.gamma[:-1] - UNITS * run.eps * run.gradient_norms.max(axis=1, initial=0.0)
    hull = everywhere(
        "Gamma >= gamma (beyond the hull)", Gamma - run.gamma[:-1], longer, "least difference", least=True
    )
    bound = math.sqrt(first.bound / run.steps) if run.steps and first.bound >= 0.0 else math.nan
    lowest = float(run.gamma[:-1].min(initial=math.inf))
    short = "its weights may sum to less than one" if promise.in_cone else "its weights may be negative"
    promised = Condition("the rule promises Gamma >= gamma", long, "beyond the hull" if long else short)
    second = RunCheck(
        "thm:PS-cvx",
        "min gamma_t <= sqrt(2 L F(w_0) / (c^2 T))",
        (conditions[0], promised, *conditions[1:], hull),
        bound=bound,
        measured=lowest,
        slack=bound - lowest,
        rounding=UNITS * run.eps * (abs(bound) + lowest),
        note=first.note,
    )
    return [first, second]


def check_non_conflicting(run: Recorded) -> RunCheck:
    """Theorem 2: a non-conflicting direction in the hull (or scaled into it) has c >= 1 for F the sum."""
    sums, norms = run.sums, run.norms
    total = run.slopes.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        c = total * sums / norms**2
    slack = run.slope_rounding
    worst = (run.slopes / np.maximum(run.gradient_norms * norms[:, None], 1e-300)).min(axis=1)
    lightest = run.weights.min(axis=1) / sums
    conditions = (
        has_steps(run),
        everywhere("d in the cone (scaled into the hull)", lightest, lightest >= -1e-9, "least weight", least=True),
        everywhere("<d, g_k> >= 0", worst, (run.slopes >= -slack).all(axis=1), "least cosine", least=True),
    )
    lowest = float(c.min(initial=math.inf))
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = float(np.max(slack.sum(axis=1) * sums / norms**2, initial=0.0))
    return RunCheck(
        "thm:cvg_nonconflict", "min c_t >= 1 in condition (A)", conditions, 1.0, lowest, lowest - 1.0, rounding
    )


def averaged_weights(run: Recorded) -> tuple[Array, float]:
    r"""$\lambda = \sum_t \eta_t \lambda_t / \sum_t \eta_t$ of Theorem 3 and $\sum_t \eta_t$, scaled into the hull.

    With the paper's constant step size these are the mean of the weights and $\eta T$. For other step sizes the proof
    holds with each step's inequality multiplied by $\eta_t$.
    """
    scaled = run.step_sizes[:, None] * run.weights  # eta |w|_1 times w / |w|_1
    total = float((run.step_sizes * run.sums).sum())
    return scaled.sum(axis=0) / total if total > 0.0 else np.full(run.weights.shape[1], math.nan), total


def check_convex(run: Recorded, L: float, convex: bool, references: Array, losses: Array) -> RunCheck:
    """Theorem 3: ``<lambda, f(w_T) - f(w)> <= |w_0 - w|^2 / (2 sum_t eta_t)`` for any w.

    Args:
        run: what was recorded.
        L: smoothness constant of every objective, NaN if unknown.
        convex: whether the objectives are declared convex.
        references: points w to compare with, ``(R, n)``, in addition to those visited.
        losses: at these points, ``(R, m)``, minus the lower bounds.
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
        return RunCheck("thm:PScvx-fun", _CONVEX, conditions, math.nan, math.nan, math.nan, 0.0)
    points = np.concatenate([references, run.points])
    values = np.concatenate([losses, run.losses])
    bounds = ((run.points[0] - points) ** 2).sum(axis=1) / (2.0 * total)
    gaps = (run.losses[-1] - values) @ lam
    tightest = int(np.argmin(bounds - gaps))
    # Rounding of the losses, and of the points along the lambda-averaged gradient, at each step.
    pulled = (run.gradient_norms * run.weights / np.maximum(run.sums, 1e-300)[:, None]).sum(axis=1)
    at = float(np.sqrt((points**2).sum(axis=1)).max())
    rounding = run.eps * (
        UNITS * float(size @ np.abs(lam)) + at * (UNITS * float(pulled.max()) + at * run.steps / total)
    )
    return RunCheck(
        "thm:PScvx-fun",
        _CONVEX,
        conditions,
        bound=float(bounds[tightest]),
        measured=float(gaps[tightest]),
        slack=float((bounds - gaps)[tightest]),
        rounding=rounding,
        note=f"the tightest of {len(points)} points w, {'given' if tightest < len(references) else 'visited'}",
    )


def _sum_check(
    run: Recorded,
    F: SmoothSurrogate,
    Gamma: Array,
    c_squared: float,
    conditions: tuple[Condition, ...],
    claim: str,
    note: str,
) -> RunCheck:
    start = float(F.values(run)[0])
    bound = 2.0 * F.L * start / c_squared if c_squared > 0.0 else math.nan
    measured = float((Gamma**2).sum())
    relative = float(F.rounding(run).sum()) / start if start > 0.0 and run.steps else 0.0
    shown = f"{note}, c = {math.sqrt(c_squared):.4g}" if c_squared > 0.0 else note
    return RunCheck("thm:PS-fd", claim, conditions, bound, measured, bound - measured, abs(bound) * relative, shown)
