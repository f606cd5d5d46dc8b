"""The framework: an aggregator from any s and r, its hypotheses checked, its answer certified."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from support.promises import is_negligible
from support.strategies import Case, cases
from torch import Tensor

import paretograd as pg
from paretograd import subproblem as sp
from paretograd.guarantees import MEAN


def draw(m: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def soft_worst_case(x: Tensor) -> Tensor:
    """Entropic risk of temperature 1, as a user would write it."""
    return torch.logsumexp(-x, dim=0) - math.log(len(x))


FAMILIES: dict[str, Callable[[], sp.Scalarization]] = {
    "linear": sp.Linear,
    "non-conflicting": sp.NonConflicting,
    "worst case": sp.WorstCase,
    "cvar": lambda: sp.CVaR(eps=0.5),
    "entropic": lambda: sp.Entropic(0.7),
    "spectral": lambda: sp.Spectral([0.5, 0.3, 0.2]),
    "chi-square": lambda: sp.ChiSquare(0.4),
    "power(-1)": lambda: sp.MinusPowerMean(-1.0),
    "power(0)": lambda: sp.MinusPowerMean(0.0),
    "power(.5)": lambda: sp.MinusPowerMean(0.5),
}
REGULARIZERS: dict[str, Callable[[], sp.Regularizer]] = {
    "half square": sp.HalfSquare,
    "c = 3": lambda: sp.HalfSquare(3.0),
    "ball": lambda: sp.Ball(0.7),
    "ball around the mean": lambda: sp.MeanBall(1.2),
    "power": lambda: sp.Power(3.0),
    "radial": lambda: sp.Radial(lambda rho: rho**2 / 2 + rho**4 / 4),
}
families = pytest.mark.parametrize("s", FAMILIES.values(), ids=FAMILIES)
regularizers = pytest.mark.parametrize("r", REGULARIZERS.values(), ids=REGULARIZERS)


@families
@regularizers
def test_no_direction_is_better(s: Callable[[], sp.Scalarization], r: Callable[[], sp.Regularizer]) -> None:
    """d minimises s(Jd) + r(|d - g0|) over a thousand directions around it, near and far: the definition itself."""
    J = draw(4, 9)
    G = pg.gramian(J)
    rule = pg.Subproblem(s(), r())
    regularizer, center = r().bind(G.numpy())
    origin = torch.zeros(9, dtype=torch.float64) if center is None else torch.from_numpy(center.weights) @ J

    def value(d: Tensor) -> float:
        return s().value((J @ d).numpy()) + regularizer.value(float((d - origin).norm()))

    d = rule(J)
    best = value(d)
    noise = torch.Generator().manual_seed(1)
    for k in range(1000):
        other = d + 10.0 ** (-6 + 0.007 * k) * torch.randn(9, generator=noise, dtype=torch.float64)
        assert value(other) >= best - 1e-12 * (1.0 + abs(best))


@families
@regularizers
def test_the_gap_closes(s: Callable[[], sp.Scalarization], r: Callable[[], sp.Regularizer]) -> None:
    """Primal and dual value agree to rounding, lambda is non-negative, and d = g0 + beta J.T lambda."""
    for seed in range(3):
        J = draw(5, 12, seed)
        G = pg.gramian(J)
        solution = pg.Subproblem(s(), r()).solve(G)
        assert isinstance(solution, pg.SubproblemSolution)
        assert solution.status is pg.Status.OPTIMAL
        assert abs(solution.gap) <= 1e-10 * float(G.diagonal().max())
        assert solution.multipliers.min() >= -1e-12
        _, center = r().bind(G.numpy())
        start = 0.0 if center is None else torch.from_numpy(center.weights)
        assert torch.allclose(solution.weights, start + solution.beta * solution.multipliers, rtol=1e-14)
        if s().risk:
            assert float(solution.multipliers.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("r", [sp.HalfSquare(), sp.Ball(0.6), sp.MeanBall(0.8), sp.Power(2.5)], ids=repr)
def test_torch_and_cvxpy_agree_with_the_family(r: sp.Regularizer) -> None:
    family = pg.Subproblem(sp.Entropic(1.0), r)
    in_torch = pg.Subproblem(soft_worst_case, r)
    in_cvxpy = pg.Subproblem(sp.Cvxpy(lambda x: cp.log_sum_exp(-x) - math.log(4)), r, m=4)
    for seed in range(3):
        J = draw(4, 9, seed)
        d = family(J)
        assert (in_torch(J) - d).norm() <= 1e-12 * d.norm()
        assert (in_cvxpy(J) - d).norm() <= 1e-6 * d.norm()
        assert in_cvxpy.solve(pg.gramian(J)).status is pg.Status.APPROXIMATE


@pytest.mark.parametrize("p", [0.5, 0.0, -1.0])
def test_a_power_mean_within_a_ball_around_the_mean(p: float) -> None:
    """No dedicated solver: it falls back on the torch path."""
    s = {0.5: lambda x: -cp.pnorm(x, 0.5) / 16, 0.0: lambda x: -cp.geo_mean(x), -1.0: lambda x: -cp.harmonic_mean(x)}
    for seed in range(2):
        J = draw(4, 9, seed)
        d = pg.Subproblem(sp.MinusPowerMean(p), sp.MeanBall(1.5))(J)
        assert (pg.Subproblem(sp.Cvxpy(s[p]), sp.MeanBall(1.5), m=4)(J) - d).norm() <= 2e-5 * d.norm()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sp.Radial(lambda rho: rho**3 / 3),
        lambda: sp.Radial(lambda rho: rho**3 / 3, conjugate=lambda t: 2 / 3 * t**1.5),
        lambda: sp.Radial(lambda rho: rho**3 / 3, derivative=lambda rho: rho**2),
    ],
    ids=["value", "conjugate", "derivative"],
)
def test_a_radial_function_of_ones_own(make: Callable[[], sp.Regularizer]) -> None:
    J = draw(3, 6)
    for s in (sp.WorstCase(), sp.Entropic(0.5)):
        d = pg.Subproblem(s, sp.Power(3.0))(J)
        assert (pg.Subproblem(s, make())(J) - d).norm() <= 1e-12 * d.norm()


@given(case=cases())
def test_theorem_4_holds_on_drawn_jacobians(case: Case) -> None:
    """(A) with c = 1 for half the squared norm and F = mean, in the cone, and an alignment gap of zero."""
    J, G = case.jacobian, pg.gramian(case.jacobian)
    for s in (sp.WorstCase(), sp.CVaR(eps=0.5), sp.NonConflicting()):
        rule = pg.Subproblem(s)
        solution = rule.solve(G)
        d = rule(J)
        assert solution.weights.min() >= 0.0
        if not is_negligible(J, solution.weights, d):
            assert solution.alignment_gap == 0.0


# ---------------------------------------------------------------- hypotheses


def evidence(rule: pg.Subproblem) -> dict[str, pg.Evidence]:
    return {hypothesis.text: hypothesis.evidence for hypothesis in rule.guarantee.hypotheses}


def test_three_levels_of_evidence() -> None:
    family = evidence(pg.Subproblem(sp.CVaR(eps=0.5)))
    assert set(family.values()) == {pg.Evidence.CITED}
    assert "s(x + c) = s(x) - c" in family
    proved = evidence(pg.Subproblem(sp.Cvxpy(lambda x: cp.max(-x))))
    assert proved["s is convex"] is proved["s is decreasing"] is pg.Evidence.PROVED
    checked = evidence(pg.Subproblem(soft_worst_case))
    assert checked["s is convex"] is checked["s is decreasing"] is pg.Evidence.CHECKED
    assert "192 points" in str(pg.Subproblem(soft_worst_case).guarantee.hypotheses[1])


def test_a_decrease_that_the_rules_do_not_show_is_checked_at_points() -> None:
    """-x + |x| / 2 is decreasing, but no rule of composition says so."""
    rule = pg.Subproblem(sp.Cvxpy(lambda x: cp.sum(-x + 0.5 * cp.abs(x)) / 3))
    assert evidence(rule)["s is decreasing"] is pg.Evidence.CHECKED
    assert rule.guarantee.theorem == "thm:PSreg"


def test_cvxpy_atoms_with_whims() -> None:
    """A fractional k, k = m, and a support function, which takes affine arguments only."""
    J = draw(4, 9)
    for k, cap in ((2.5, 0.4), (4, 0.25)):
        d = pg.Subproblem(sp.CVaR(cap=cap))(J)
        rule = pg.Subproblem(sp.Cvxpy(lambda x, k=k: cp.sum_largest(-x, k) / k), m=4)  # type: ignore[misc]
        assert (rule(J) - d).norm() <= 1e-6 * d.norm()
    y = cp.Variable(4)
    support = cp.transforms.suppfunc(y, [y >= 0, cp.sum(y) == 1])
    worst = pg.Subproblem(sp.Cvxpy(lambda x: support(-x)), m=4)
    assert (worst(J) - pg.MGDA()(J)).norm() <= 1e-6
    assert evidence(worst)["s is decreasing"] is pg.Evidence.CHECKED


@pytest.mark.parametrize(
    ("s", "theorem", "hull"),
    [
        (sp.Linear(), "thm:PS-cvx", True),
        (sp.WorstCase(), "thm:cvg_nonconflict", True),
        (sp.NonConflicting(), "thm:PS_proj_cvg", False),
        (sp.Entropic(1.0), "thm:PSreg", True),
        (sp.MinusPowerMean(0.0), "thm:PSreg", False),
        (sp.Smooth(soft_worst_case, risk=True), "thm:PSreg", True),
        (sp.Smooth(lambda x: torch.exp(-x).mean() - 1.0), "thm:PSreg", False),
    ],
    ids=repr,
)
def test_guarantees(s: sp.Scalarization, theorem: str, hull: bool) -> None:
    promise = pg.Subproblem(s).guarantee
    assert promise.theorem == theorem
    assert promise.in_hull is hull
    assert promise.in_cone
    assert promise.alignment == 1.0
    assert promise.F == MEAN


def test_what_theorem_4_does_not_cover_says_why() -> None:
    ball = pg.Subproblem(sp.WorstCase(), sp.Ball(1.0)).guarantee
    assert ball.theorem is None
    assert "half the squared norm" in ball.note
    assert [h.text for h in ball.hypotheses if not h.holds] == ["r(rho) >= rho^2 / 2"]
    around = pg.Subproblem(sp.Smooth(lambda x: -x.sum()), sp.MeanBall(1.5)).guarantee
    assert around.theorem is None
    assert "ball around the mean" in around.note
    loose = pg.Subproblem(lambda x: -x.log().sum(), strict=False).guarantee
    assert loose.theorem is None
    assert "s(0) = 0" in loose.note


WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "increasing": (lambda: pg.Subproblem(lambda x: x.sum()), "s is decreasing", "did you mean"),
    "concave": (lambda: pg.Subproblem(lambda x: -(x**2).sum()), "s is convex", "strict=False"),
    "infinite at zero": (lambda: pg.Subproblem(lambda x: -x.log().sum()), "s(0) = 0", "geometric mean"),
    "nan at zero": (lambda: pg.Subproblem(lambda x: (x / x).sum() - x.sum()), "s(0) = 0", "Subtract"),
    "not zero at zero": (lambda: pg.Subproblem(lambda x: torch.exp(-x).mean()), "s(0) = 0", "Subtract"),
    "no risk measure": (
        lambda: pg.Subproblem(sp.Smooth(lambda x: torch.exp(-x).mean() - 1.0, risk=True)),
        "s(x + c) = s(x) - c",
        "Leave out risk=True",
    ),
    "increasing in cvxpy": (lambda: pg.Subproblem(sp.Cvxpy(lambda x: cp.sum(x))), "s is decreasing", "did you mean"),
    "concave in cvxpy": (lambda: pg.Subproblem(sp.Cvxpy(lambda x: -cp.sum_squares(x))), "s is convex", "cvxpy"),
    "a number": (lambda: pg.Subproblem(lambda x: 3.0), "s returns a scalar tensor", "torch"),  # type: ignore[arg-type, return-value]
    "r falls": (lambda: sp.Radial(lambda rho: -rho), "r is increasing", "increasing convex"),
    "r is concave": (lambda: sp.Radial(lambda rho: rho.sqrt()), "r is convex", "increasing convex"),
    "r(0) is one": (lambda: sp.Radial(lambda rho: 1.0 + rho**2), "r(0) = 0", "r(0) = 0"),
}


@pytest.mark.parametrize(("make", "hypothesis", "remedy"), WRONG.values(), ids=WRONG)
def test_a_wrong_s_or_r_is_refused_by_the_hypothesis_it_breaks(
    make: Callable[[], object], hypothesis: str, remedy: str
) -> None:
    with pytest.raises(pg.HypothesisError, match=r".") as caught:
        make()
    assert caught.value.hypothesis == hypothesis
    assert remedy in str(caught.value)


def test_other_wrong_input() -> None:
    with pytest.raises(pg.ShapeError, match=r"returned shape \(3,\)\. Reduce it"):
        pg.Subproblem(lambda x: -x)
    with pytest.raises(pg.ShapeError, match="Reduce it with"):
        pg.Subproblem(sp.Cvxpy(lambda x: -x))
    with pytest.raises(pg.ParameterError, match="s=3"):
        pg.Subproblem(3)  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="Radial"):
        pg.Subproblem(sp.WorstCase(), r=lambda rho: rho)  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="must not increase"):
        sp.Spectral([0.1, 0.9])
    with pytest.raises(pg.ParameterError, match="at most 3"):
        pg.Subproblem(sp.Spectral([0.4, 0.3, 0.2, 0.1])).weights(torch.eye(3))
    with pytest.raises(pg.InfeasibleCapError, match=r"0\.3333"):
        pg.Subproblem(sp.CVaR(cap=0.2)).weights(torch.eye(3))


def test_an_s_for_one_number_of_objectives() -> None:
    """It is checked when its Gramian comes, or at once if m is given."""
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rule = pg.Subproblem(lambda x: -(scale * x).sum())
    with pytest.raises(pg.ParameterError, match="pass m"):
        _ = rule.guarantee
    J = draw(4, 6)
    assert torch.allclose(rule(J), scale @ J, rtol=1e-12)
    assert rule.guarantee.theorem == "thm:PSreg"
    with pytest.raises(pg.HypothesisError, match="decreasing"):
        pg.Subproblem(lambda x: (scale * x).sum(), m=4)


def test_without_cvxpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(pg.MissingExtraError, match=r"paretograd\[cvxpy\]"):
        sp.Cvxpy(lambda x: x)


# ---------------------------------------------------------------- degenerate input


@families
@regularizers
def test_stationary_and_zero_gradients(s: Callable[[], sp.Scalarization], r: Callable[[], sp.Regularizer]) -> None:
    """A finite direction; the zero one where every gradient is zero, whatever the weights."""
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -1.0]], dtype=torch.float64)
    rule = pg.Subproblem(s(), r())
    for J in (opposite, torch.zeros(4, 2, dtype=torch.float64), torch.ones(4, 2, dtype=torch.float64)):
        solution = rule.solve(pg.gramian(J))
        assert solution.status.ok
        assert torch.isfinite(solution.weights).all()
        assert solution.weights.abs().max() < 1e8


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_homogeneous_s_at_any_scale(scale: float) -> None:
    J = draw(4, 7)
    for s in (sp.WorstCase(), sp.CVaR(eps=0.5), sp.ChiSquare(0.3), sp.MinusPowerMean(-1.0), sp.NonConflicting()):
        for r in (sp.HalfSquare(), sp.MeanBall(0.6)):
            if isinstance(s, sp.MinusPowerMean) and isinstance(r, sp.MeanBall):
                continue
            rule = pg.Subproblem(s, r)
            assert (rule(scale * J) / scale - rule(J)).norm() <= 1e-11 * rule(J).norm()


def test_low_precision_and_batches() -> None:
    rule = pg.Subproblem(soft_worst_case)
    J = draw(3, 8).to(torch.bfloat16)
    assert rule(J).dtype == torch.bfloat16
    G = torch.stack([pg.gramian(draw(3, 8, seed)) for seed in range(3)])
    batch = rule.solve(G)
    assert batch.weights.shape == (3, 3)
    assert all(isinstance(item, pg.SubproblemSolution) for item in batch.items)


# ---------------------------------------------------------------- inexact solves and blends


def test_a_run_sums_up_its_alignment_gaps() -> None:
    run = pg.RunCertificate()
    for epsilon in (0.0, 0.5, None, 0.25):
        run.record(0.1, epsilon)
    assert run.inexactness == pytest.approx(0.075)
    assert (run.steps, run.largest, run.uncovered) == (4, 0.5, 1)
    assert "sum of eta_t epsilon_t    0.075" in str(run)
    with pytest.raises(pg.ParameterError, match="step_size"):
        run.record(math.nan, 0.0)
    with pytest.raises(pg.ParameterError, match="alignment_gap"):
        run.record(0.1, -1.0)


def test_the_alignment_gap_is_what_condition_a_misses() -> None:
    """For a wrong answer, eps = |d|^2 / 2 - <d, grad F>: the mean's F on two opposite gradients of unequal length."""
    rule = pg.Subproblem(sp.WorstCase())
    G = pg.gramian(torch.tensor([[3.0], [-1.0]], dtype=torch.float64))
    rule.solve(G)
    w = np.array([0.0, 1.0])
    d, mean = -1.0, 1.0
    assert rule._alignment_gap(G.numpy(), w) == pytest.approx(0.5 * d * d - d * mean)


def test_blends() -> None:
    J = draw(4, 9)
    parts = [pg.MGDA(), pg.UPGrad(), pg.Mean()]
    blend = pg.Blend(parts, [1.0, 2.0, 1.0])
    assert torch.allclose(blend(J), 0.25 * parts[0](J) + 0.5 * parts[1](J) + 0.25 * parts[2](J), rtol=1e-12)
    assert blend.guarantee.theorem == "thm:PS-cvx"
    assert not blend.guarantee.non_conflicting
    assert pg.Blend([pg.MGDA(), pg.UPGrad().normalized()]).guarantee.theorem == "thm:cvg_nonconflict"
    assert pg.Blend([pg.MGDA(), pg.IMTLG()]).guarantee.theorem is None
    assert pg.Blend([pg.MGDA(), pg.IMTLG()], [1.0, 0.0]).guarantee == pg.MGDA().guarantee
    assert repr(pg.Blend([pg.MGDA(), pg.Mean()])) == "Blend([MGDA(), Mean()], [0.5, 0.5])"
    for wrong in ([], ["mgda"]):
        with pytest.raises(pg.ParameterError, match="list of aggregators"):
            pg.Blend(wrong)  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="one for each"):
        pg.Blend(parts, [1.0])


def test_upgrad_is_a_blend_of_projections() -> None:
    J = draw(4, 9, 3)
    parts = [pg.Subproblem(sp.NonConflicting(unit)) for unit in np.eye(4)]
    assert torch.allclose(pg.Blend(parts)(J), pg.UPGrad()(J), rtol=1e-12)


def test_a_blend_keeps_the_state_of_its_parts() -> None:
    G = pg.gramian(draw(3, 6))
    blend = pg.Blend([pg.RGW(seed=0), pg.MGDA()])
    blend.weights(G)
    state = blend.state_dict()
    first = blend.weights(G)
    blend.load_state_dict(state)
    assert torch.equal(blend.weights(G), first)


@pytest.mark.parametrize("shape", [(4, 6), (6, 3), (4, 1), (2, 5)])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e2, 1e4, 1e6, 1e7, 1e8, 1e10, 1e15])
def test_an_s_in_torch_is_as_exact_as_its_family_at_any_scale(shape: tuple[int, int], scale: float) -> None:
    """Rounding in x moves the slopes of s by all they are from norms of 1e8 on, but not the direction."""
    J = scale * draw(*shape, seed=sum(shape))
    G = pg.gramian(J)
    found, exact = (pg.Subproblem(s).solve(G) for s in (soft_worst_case, sp.Entropic(1.0)))
    terms = float(J.norm(dim=1) @ exact.weights)
    assert found.status.ok
    assert float((J.T @ (found.weights - exact.weights)).norm()) <= 1e-12 * terms
    assert bool((found.weights >= 0.0).all())


def softplus(x: Tensor) -> Tensor:
    """No risk measure: a slope runs from 1 to 0, so that nothing is known of the sum of the multipliers."""
    return (torch.nn.functional.softplus(-x) - math.log(2.0)).sum()


def exponential(x: Tensor) -> Tensor:
    return torch.expm1(-x).sum()


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e6, 1e8, 1e10, 1e15])
@pytest.mark.parametrize("s", [softplus, soft_worst_case, exponential])
def test_an_s_in_torch_that_cannot_be_solved_says_so(s: Callable[[Tensor], Tensor], scale: float) -> None:
    """At norms of 1e15, duplicate and nearly opposite gradients included: an answer, and a residual that owns up."""
    J = draw(5, 4, seed=3)
    J[1], J[4] = J[0], -J[0] + 1e-9 * J[2]
    G = pg.gramian(scale * J)
    solution = pg.Subproblem(s).solve(G)
    assert isinstance(solution, pg.SubproblemSolution)
    assert bool(torch.isfinite(solution.weights).all())
    if s is not exponential:  # whose values magnify the rounding of x
        assert abs(solution.gap) <= max(1e-9, 10.0 * solution.residual) * (1.0 + float(G.diagonal().max()))
    if not solution.status.ok:
        assert solution.residual > 1e-13
