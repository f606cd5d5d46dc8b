"""The paper's counter-examples, limits and identities, with the corrections of docs/theory.md."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from support.families import FAMILIES
from support.strategies import Case, cases, select

import paretograd as pg

#: Families with independent gradients whose hull is well away from zero. Near a stationary point the equations of
#: the power family are as ill-conditioned as 1 / gamma^2: see test_near_a_stationary_point.
REGULAR = [name for name in select(stationary=["no"], singular=False) if name != "nearly_stationary"]
EVEN = [name for name in REGULAR if name != "extremely_scaled"]


def close(a: torch.Tensor, b: torch.Tensor, tol: float) -> bool:
    """Relative distance, with the longer of the two as unit."""
    return bool((a - b).norm() <= tol * max(a.norm(), b.norm()))


def test_one_pass_of_pcgrad_leaves_a_conflict() -> None:
    """The paper's counter-example (z = 0.1, in order): <d, g_1> = -0.4702."""
    s, z = math.sqrt(3.0), 0.1
    J = torch.tensor([[1.0, s, z], [-2.0, 0.0, z], [1.0, -s, z]], dtype=torch.float64)
    assert (J @ pg.PCGrad()(J))[0].item() == pytest.approx(-0.4702, abs=5e-5)
    assert (J @ pg.PCGradPlus()(J)).min() >= -1e-12


def test_imtl_g_conflicts_with_every_gradient() -> None:
    """The paper's counter-example: the negative rescaling turns the direction against all three gradients."""
    J = torch.tensor([[8.660254, -5.0, 0.0], [-8.660254, -5.0, 0.0], [0.0, -0.99498744, 0.1]], dtype=torch.float64)
    assert (J @ pg.IMTLG()(J)).max() < 0.0
    # Its second claim: with the first two rows divided by ten the direction leaves the cone.
    J[:2] /= 10.0
    assert pg.IMTLG().weights(pg.gramian(J)).min() < 0.0


@given(case=cases(min_m=2, max_m=2))
def test_pcgrad_is_upgrad_for_two_objectives(case: Case) -> None:
    J = case.jacobian
    upgrad = pg.UPGrad()(J)
    assert (pg.PCGrad()(J) - upgrad).norm() <= 1e-12 * J.norm(dim=1).max()
    assert (pg.PCGradPlus()(J) - upgrad).norm() <= 1e-12 * J.norm(dim=1).max()


@given(case=cases(max_m=8))
def test_capped_mgda_interpolates_between_mgda_and_the_mean(case: Case) -> None:
    """C >= 1 is MGDA, C = 1/m is the mean; C = 1/(m-1) is neither, unlike the paper says."""
    J, m = case.jacobian, case.m
    G = pg.gramian(J)
    assert torch.equal(pg.CappedMGDA(cap=1.0).weights(G), pg.MGDA().weights(G))
    assert torch.equal(pg.CappedMGDA(cap=7.0).weights(G), pg.MGDA().weights(G))
    assert torch.equal(pg.CappedMGDA(eps=1.0 / m).weights(G), pg.MGDA().weights(G))
    for capped in (pg.CappedMGDA(cap=1.0 / m), pg.CappedMGDA(eps=1.0)):
        assert (capped.weights(G) - 1.0 / m).abs().max() <= 1e-15


def test_a_cap_of_one_over_m_minus_one_is_not_the_mean() -> None:
    J = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]], dtype=torch.float64)
    w = pg.CappedMGDA(cap=0.5).weights(pg.gramian(J))
    assert torch.allclose(w, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=1e-12)


def test_capped_mgda_never_longer_than_a_looser_cap_allows() -> None:
    """|d| falls as the cap grows, from the mean's to gamma."""
    J = FAMILIES["conflicting"].make(10, 30, 1)
    lengths = [pg.CappedMGDA(cap=c)(J).norm().item() for c in (0.1, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0)]
    assert lengths == sorted(lengths, reverse=True)


@given(case=cases(REGULAR, max_m=6))
def test_power_mean_limits(case: Case) -> None:
    """p = 1: mean. p = 0: Nash-MTL's direction. p = -1: FairGrad's (alpha = 2). p -> -inf: MGDA."""
    J = case.jacobian
    G = pg.gramian(J)
    assert close(pg.PowerMean(1.0)(J), pg.Mean()(J), 1e-15)
    for p, other in ((0.0, pg.NashMTL(max_norm=None)), (-1.0, pg.FairGrad(2.0)), (-1.0, pg.PIVRG())):
        assert close(pg.PowerMean(p).normalized()(J), other.normalized()(J), 1e-11)
    # The gap to MGDA is of order log(m)/|p|: |d_p|^2 = M_p(x) lies within m^(1/|p|) of min_k x_k.
    gamma = pg.stationarity(G)
    for p in (-100.0, -10_000.0):
        d = pg.PowerMean(p)(J)
        assert gamma * (1 - 1e-9) <= d.norm() <= gamma * case.m ** (1.0 / -p) * (1 + 1e-9)
    assert close(pg.PowerMean(-math.inf)(J), pg.MGDA()(J), 1e-15)


@given(case=cases(REGULAR, max_m=6))
def test_power_mean_near_one_is_the_projected_mean(case: Case) -> None:
    """For p < 1 every decrease must be non-negative, so that p -> 1 ends in DualProj."""
    J = case.jacobian
    near = pg.PowerMean(1.0 - 1e-6)(J)
    assert close(near, pg.DualProj()(J), 1e-3)


@given(case=cases(EVEN, max_m=8))
def test_power_mean_solves_its_equation(case: Case) -> None:
    """w_k = x_k^(p-1) M_p(x)^(1-p) / m with x = G w, whose consequence is |d|^2 = M_p(x)."""
    J = case.jacobian
    for p in (0.5, 0.0, -1.0, -3.0):
        d = pg.PowerMean(p)(J)
        x = J @ d
        M = x.log().mean().exp() if p == 0.0 else (x / x.max()).pow(p).mean().pow(1.0 / p) * x.max()
        assert d @ d == pytest.approx(M.item(), rel=1e-6)


@given(case=cases(REGULAR, max_m=8))
def test_nash_mtl_has_constant_length(case: Case) -> None:
    """G w = 1/w implies |d|^2 = w'Gw = m; the original code clips it to 1."""
    J, m = case.jacobian, case.m
    assert pg.NashMTL(max_norm=None)(J).norm() == pytest.approx(math.sqrt(m), rel=1e-9)
    assert pg.NashMTL()(J).norm() == pytest.approx(1.0, rel=1e-9)
    assert pg.NashMTL(max_norm=100.0)(J).norm() == pytest.approx(min(100.0, math.sqrt(m)), rel=1e-9)


@given(case=cases(REGULAR, min_m=2, max_m=8))
def test_nash_mtl_ignores_the_scale_of_each_objective(case: Case) -> None:
    """Rescaling one loss rescales its weight and leaves the direction alone."""
    J = case.jacobian
    scaled = J * torch.logspace(-3, 3, case.m, dtype=torch.float64)[:, None]
    assert close(pg.NashMTL()(J), pg.NashMTL()(scaled), 1e-9)


@pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-4, 1e-5])
def test_near_a_stationary_point(distance: float) -> None:
    """Two unit gradients at the angle pi - 2 distance: the Gramian's rounding moves |d| by 1e-16 / distance^2."""
    c, s = math.cos(distance), math.sin(distance)
    J = torch.tensor([[c, s], [-c, s]], dtype=torch.float64)
    for rule in (pg.NashMTL(max_norm=None), pg.PowerMean(0.0), pg.FairGrad(), pg.MGDA(), pg.UPGrad()):
        d = rule(J)
        assert d[0].abs() <= 1e-15 / distance * d[1]
    assert pg.NashMTL(max_norm=None)(J)[1] == pytest.approx(math.sqrt(2.0), rel=1e-15 / distance**2)
    assert pg.MGDA()(J)[1] == pytest.approx(s, rel=1e-14)


def test_fairgrad_endpoints() -> None:
    J = FAMILIES["gaussian"].make(4, 9, 0)
    assert close(pg.FairGrad(0.0)(J), J.sum(dim=0), 1e-15)
    assert close(pg.FairGrad(1.0)(J), pg.NashMTL(max_norm=None)(J), 1e-12)
    assert close(pg.FairGrad(1e5).normalized()(J), pg.MGDA()(J), 1e-3)


def test_pivrg_weights_from_scores() -> None:
    """omega = m softmax(scores / T), T such that no two omegas differ by more than the bound."""
    rule = pg.PIVRG([0.0, 100.0, 50.0], bound=2.0)
    assert rule.omega is not None
    assert rule.omega.max() / rule.omega.min() == pytest.approx(2.0)
    assert rule.omega.sum() == pytest.approx(3.0)
    rule.update([1.0, 2.0, 1.5])  # a small spread: the least temperature, 10, keeps omega near 1
    assert rule.omega.max() / rule.omega.min() == pytest.approx(math.exp(0.1))
    J = FAMILIES["gaussian"].make(3, 7, 0)
    w = rule.weights(pg.gramian(J))
    assert torch.allclose(pg.gramian(J) @ w, (torch.from_numpy(rule.omega) / w).sqrt(), rtol=1e-11)


def test_cagrad_stays_in_its_ball_and_touches_it() -> None:
    for seed in range(5):
        J = FAMILIES["conflicting"].make(5, 12, seed)
        g0 = J.mean(dim=0)
        for c in (0.1, 0.5, 1.0, 3.0):
            assert (pg.CAGrad(c)(J) - g0).norm() == pytest.approx(c * g0.norm().item(), rel=1e-10)
    assert torch.equal(pg.CAGrad(0.0)(J), pg.Mean()(J))


def test_greedy_dcp_is_the_longest_projection() -> None:
    J = FAMILIES["conflicting"].make(5, 12, 3)
    projections = [pg.UPGrad(torch.eye(5)[k].tolist())(J) for k in range(5)]
    longest = max(projections, key=lambda p: p.norm().item())
    assert close(pg.GreedyDCP()(J), longest, 1e-13)


@given(case=cases(max_m=8))
def test_projection_keeps_its_inner_product(case: Case) -> None:
    """For d the projection of q onto a cone, <d, q> = |d|^2 (Moreau); and |v|_1 >= |u|_1 (prop. PS_proj)."""
    J, m = case.jacobian, case.m
    w = pg.DualProj().weights(pg.gramian(J))
    d, q = w @ J, J.mean(dim=0)
    unit = J.norm(dim=1).max() * (w.abs() * J.norm(dim=1)).max()
    assert abs(d @ q - d @ d) <= 1e-12 * m * unit
    assert w.min() >= 1.0 / m - 1e-12


def test_rgw_keeps_moving_where_the_others_stop() -> None:
    """At a stationary point every covered rule answers zero; RGW has no fixed point."""
    J = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    for rule in (pg.MGDA(), pg.UPGrad(), pg.DualProj(), pg.NashMTL(), pg.PowerMean(-1.0), pg.PCGradPlus()):
        assert rule(J).norm() <= 1e-15
    assert pg.RGW(seed=1)(J).norm() > 0.01
