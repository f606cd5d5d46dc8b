"""The theorems in the metric of a preconditioner P, as data: what is proved, and what a counter-example refutes.

A step from the point w is ``w - eta u``. The update is ``u = P d`` for a combination d of the gradients and a positive
definite P. Gradients have the inner product ``<a, b>_P = a' P b`` and the Gramian ``J P J.T``. Updates have the norm
``|u|^2 = u' P^-1 u``, so that ``|u| = |d|_P``.

docs/theory-in-a-metric.md has the proofs, and tests/certificates/test_metric.py a test of each entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from paretograd.guarantees import RESULTS, Result


@dataclass(frozen=True)
class MetricResult(Result):
    """A statement about updates ``u = P d``: proved, or refuted by a counter-example.

    Attributes:
        label: ``metric:`` and the label of the paper's result, or a name.
        name: of the result.
        hypotheses: what it assumes.
        conclusion: what follows from them; for a refuted statement, what does not.
        proved: True if the conclusion follows, False if a counter-example refutes it.
        reason: the idea of the proof, or the counter-example.
    """

    proved: bool
    reason: str


def _in_metric(label: str, hypotheses: tuple[str, ...], conclusion: str) -> MetricResult:
    """State a result of the paper for a fixed P."""
    name = RESULTS[label].name.replace(" (", " in a metric (", 1)
    return MetricResult(f"metric:{label}", name, hypotheses, conclusion, True, "the paper's result in y, w = P^(1/2) y")


_SMOOTH = "F >= 0 is L-smooth in the metric: |grad F(a) - grad F(b)|_P <= L |a - b|"
_HULL = "d in the convex hull of the gradients"

_FIXED = (
    _in_metric(
        "thm:PS-fd",
        (_SMOOTH, "<u, grad F> >= c Gamma |u| with c > 0", "step c Gamma / (L |u|)"),
        "sum_t Gamma_t^2 <= 2 L F(w_0) / c^2, so min_t Gamma_t = O(1/sqrt(T))",
    ),
    _in_metric(
        "thm:PS-cvx",
        (_SMOOTH, _HULL, "(A): <u, grad F> >= c |u|^2", "step c / L"),
        "min_t gamma_P(w_t) <= sqrt(2 L F(w_0) / (c^2 T)), gamma_P the least |d|_P in the hull",
    ),
    _in_metric(
        "thm:cvg_nonconflict",
        (_HULL, "<u, g_k> >= 0 for every k"),
        "(A) holds in the metric with c = 1 and F = sum_k f_k, hence Corollary 1",
    ),
    _in_metric(
        "prop:PS_proj",
        ("q = P J.T a with a >= 0", "u = the point of {u : J u >= 0} closest to q, in the norm of updates"),
        "u = P J.T v is non-conflicting, with v >= a >= 0 and so |v|_1 >= |a|_1",
    ),
    _in_metric(
        "thm:PS_proj_cvg",
        ("q = P J.T a with a in the simplex", "u = the point of {u : J u >= 0} closest to q"),
        "(A) holds in the metric with c >= 1 and F = sum_k f_k, hence Corollary 1",
    ),
    _in_metric(
        "thm:PScvx-fun",
        ("every f_k is convex and L-smooth in the metric", _HULL, "step <= 1/L", "f decreases"),
        "<lambda, f(w_t) - f(w)> <= |w_0 - w|^2 / (2 step t) for some lambda in the simplex",
    ),
    _in_metric(
        "thm:PSreg",
        (*RESULTS["thm:PSreg"].hypotheses, "u minimises s(J u) + r(|u|), in the norm of updates"),
        "u = P d with d in the cone; (A) holds in the metric with c = beta |lambda|_1 / 2 and F = <-grad s(0), f>",
    ),
)

_BELOW = "P_t <= P for every t (P - P_t is positive semidefinite), F >= 0 is L-smooth in the metric of P"

_MOVING = (
    MetricResult(
        "metric:moving",
        "A metric that moves",
        (_BELOW, "(A) in the metric of each step: <P_t d_t, grad F> >= c |d_t|_{P_t}^2", "step c / L"),
        "sum_t |d_t|_{P_t}^2 <= 2 L F(w_0) / c^2; in the hull, min_t gamma_{P_t}(w_t) <= sqrt(2 L F(w_0) / (c^2 T))",
        True,
        "F telescopes, whichever metric each step used; |P_t d| <= |d|_{P_t} in the norm of P",
    ),
    MetricResult(
        "metric:moving-convex",
        "Theorem 3 with a metric that moves",
        ("every f_k is convex and L_t-smooth in the metric of P_t", _HULL, "step <= 1/L_t for every t", "f decreases"),
        "<lambda, f(w_T) - f(w)> <= (|w_0 - w|_0^2 + sum_{t=1}^{T-1} (|w_t - w|_t^2 - |w_t - w|_{t-1}^2)) / "
        "(2 step T), |u|_t^2 = u' P_t^-1 u. If P_t never decreases, the sum is at most 0",
        True,
        "distances telescope up to the change of the norm",
    ),
    MetricResult(
        "metric:stale",
        "A metric that is off by epsilon",
        ("(1 - epsilon) P <= P' <= (1 + epsilon) P", "cos(P d, g_k) >= epsilon in the metric of P"),
        "<P' d, g_k> >= 0. The cosine needed cannot be smaller than epsilon",
        True,
        "|<(P' - P) d, g>| <= epsilon |d|_P |g|_P, with equality for a reflection",
    ),
    MetricResult(
        "metric:momentum",
        "Momentum of aligned directions",
        (
            _BELOW,
            "(A) in the metric of each step, with c",
            "v_t = beta v_{t-1} + P_t d_t, w_{t+1} = w_t - eta v_t",
            "eta = c (1 - beta)^2 / (L (1 + beta))",
        ),
        "sum_t b_t |d_t|_{P_t}^2 <= 2 F(w_0) / (c eta), b_t = 1 + beta + ... + beta^(T-1-t); updates may conflict",
        True,
        "<P_s d_s, grad F(w_t)> differs from its value at w_s by at most L |P_s d_s| |w_t - w_s|",
    ),
    MetricResult(
        "metric:projected",
        "The projected update",
        ("any v, any gradients, any P", "u = the point of {u : J u >= 0} closest to v, in the norm of updates"),
        "u conflicts with no gradient, |u| <= |v|, and u = v if v conflicts with none",
        True,
        "u = v + P J.T a with a >= 0 and a_k <u, g_k> = 0 (Moreau)",
    ),
    MetricResult(
        "metric:projected-momentum",
        "Projected momentum of non-conflicting directions",
        (
            "P is fixed; every f_k >= 0 is L-smooth in the metric, F = sum_k f_k is M-smooth (M <= m L)",
            "d_t in the hull, P d_t non-conflicting",
            "v_t = beta v_{t-1} + P d_t, u_t the projection of v_t, w_{t+1} = w_t - eta u_t",
            "eta = (1 - beta)^3 / (2 L beta + M (1 - beta))",
        ),
        "no update conflicts, and sum_t |d_t|_P^2 <= 2 F(w_0) / eta",
        True,
        "<u, grad F> >= <u, d> >= <v, d>, and <P d_s, d_t> >= -L |P d_s| |w_t - w_s|",
    ),
)

_REFUTED = (
    MetricResult(
        "metric:not-euclidean",
        "A rule that ignores the metric",
        ("d non-conflicting, in the Euclidean metric", "u = P d"),
        "u is non-conflicting",
        False,
        "gradients (3, 0) and (-1, 1), UPGrad, P = diag(4, 1): <u, g_2> = -1.75",
    ),
    MetricResult(
        "metric:not-unbounded",
        "A metric without a bound",
        ("(A) in the metric of each step", "a constant step"),
        "gamma -> 0",
        False,
        "f = w^2/2, P_t = 1/|f'(w_t)|, as Adam without averages: steps of one length cycle around 0",
    ),
    MetricResult(
        "metric:not-convex-moving",
        "Theorem 3 with the first step's metric",
        ("every f_k is convex and L_t-smooth in the metric of P_t", "step <= 1/L_t", "f decreases"),
        "<lambda, f(w_T) - f(w)> <= |w_0 - w|_0^2 / (2 step T)",
        False,
        "f = w^2/2 from w_0 = 1 with P_0 = 1/2 and P_t = 1/1000 later: f(w_100) = 0.10, the bound is 0.01",
    ),
    MetricResult(
        "metric:not-momentum",
        "Momentum of non-conflicting directions",
        ("d_t non-conflicting for every t", "v_t = beta v_{t-1} + d_t"),
        "v_t is non-conflicting",
        False,
        "f = (x^2 + (y -+ 1)^2) / 2 from (1, 0), MGDA, beta = 0.9, step 1/2: the third update raises both losses",
    ),
    MetricResult(
        "metric:not-moving-momentum",
        "Momentum of gradients in a metric that moves",
        ("P_t d_t non-conflicting for every t", "v_t = beta v_{t-1} + d_t, u_t = P_t v_t, as in Adam"),
        "u_t is non-conflicting if the gradients stay the same",
        False,
        "gradients (3, 0) and (-1, 1), MGDA, beta = 0.9, P_0 = diag(1, 4), P_1 = diag(4, 1): <u_1, g_2> = -1.07",
    ),
    MetricResult(
        "metric:not-aligned-projection",
        "(A) for projected updates",
        ("u = the point of {u : J u >= 0} closest to v",),
        "<u, grad F> >= c |u|^2 for some c > 0; a step decreases F",
        False,
        "f = |w|^2 / 2 at (1, 0), v = (0, 1): u = v has slope 0, and f rises by the square of the step",
    ),
)

#: The statements by label, those about a fixed P first.
METRIC_RESULTS: dict[str, MetricResult] = {result.label: result for result in (*_FIXED, *_MOVING, *_REFUTED)}
