"""Rules around rules: unit gradients, clipped gradients, and weights with momentum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.families import FAMILIES
from torch import Tensor

import paretograd as pg


def gaussian(m: int, n: int, seed: int) -> Tensor:
    return FAMILIES["gaussian"].make(m, n, seed)


INNER: dict[str, pg.Aggregator] = {
    "mean": pg.Mean(),
    "mgda": pg.MGDA(),
    "upgrad": pg.UPGrad(),
    "cagrad": pg.CAGrad(),
    "nash-mtl": pg.NashMTL(),
    "config": pg.ConFIG(),
    "aligned-mtl": pg.AlignedMTL(),
    "blend": pg.Blend([pg.MGDA(), pg.Mean()]),
}
inner = pytest.mark.parametrize("rule", INNER.values(), ids=list(INNER))


# Lengths


@inner
def test_the_rule_sees_unit_gradients(rule: pg.Aggregator) -> None:
    for seed in range(5):
        J = gaussian(3, 5, seed) * torch.tensor([1e-3, 1.0, 1e4], dtype=torch.float64)[:, None]
        unit = J / J.norm(dim=1, keepdim=True)
        assert torch.allclose(pg.UnitRows(rule)(J), rule(unit), rtol=1e-9, atol=1e-12)
        weights = pg.UnitRows(rule).weights(pg.gramian(J))
        assert torch.allclose(weights, rule.weights(pg.gramian(unit)) / J.norm(dim=1), rtol=1e-9)


@inner
def test_the_rule_sees_clipped_gradients(rule: pg.Aggregator) -> None:
    for seed in range(5):
        J = gaussian(3, 5, seed) * torch.tensor([0.1, 1.0, 1e3], dtype=torch.float64)[:, None]
        clipped = J * (1.5 / J.norm(dim=1, keepdim=True)).clamp(max=1.0)
        assert torch.allclose(pg.ClippedRows(rule, 1.5)(J), rule(clipped), rtol=1e-9, atol=1e-12)
        assert torch.allclose(pg.ClippedRows(rule, math.inf)(J), rule(J), rtol=1e-9)


def test_zero_gradients_stay_zero() -> None:
    J = gaussian(3, 4, 0)
    J[1] = 0.0
    for rule in (pg.UnitRows(pg.UPGrad()), pg.ClippedRows(pg.UPGrad(), 0.5)):
        assert torch.allclose(rule(J), rule(J[[0, 2]]) * 2 / 3)  # the mean of three projections
        assert not rule(0.0 * J).any()
    assert pg.UnitRows(pg.MGDA()).solve(pg.gramian(J)).status is pg.Status.STATIONARY


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150])
def test_unit_gradients_at_the_ends_of_the_range(scale: float) -> None:
    J = gaussian(3, 5, 1)
    assert torch.allclose(pg.UnitRows(pg.UPGrad())(scale * J), pg.UnitRows(pg.UPGrad())(J), rtol=1e-9)


def test_what_survives_other_lengths() -> None:
    unit, clipped = pg.UnitRows(pg.MGDA()).guarantee, pg.ClippedRows(pg.MGDA()).guarantee
    for promise in (unit, clipped):
        assert promise.theorem == "thm:PS-fd"
        assert promise.non_conflicting
        assert promise.in_cone
        assert not promise.beyond_hull
    assert (unit.degree, unit.alignment) == (0.0, None)
    assert (clipped.degree, clipped.alignment, clipped.F) == (None, 1.0, pg.MGDA().guarantee.F)
    assert pg.UnitRows(pg.MGDA()).normalized().guarantee.theorem == "thm:cvg_nonconflict"
    assert pg.UnitRows(pg.Mean()).guarantee.theorem is None
    assert pg.UnitRows(pg.Mean()).guarantee.in_cone
    assert not pg.UnitRows(pg.ConFIG()).guarantee.in_cone
    assert pg.ClippedRows(pg.Mean()).guarantee.alignment is None


def test_clipping_loses_condition_a_of_rules_that_conflict() -> None:
    """d is the mean of clipped gradients, and a long gradient opposes it."""
    J = torch.tensor([[100.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    d = pg.ClippedRows(pg.Mean(), max_norm=1.0)(J)
    assert float((J @ d).mean()) < 0.0


# Momentum


def test_weights_follow_the_moving_average() -> None:
    """Ten steps against the recurrence, from the rule's own weights; a step without a direction changes nothing."""
    rule, plain, average = pg.CRMOGM(pg.MGDA(), momentum=0.7), pg.MGDA(), None
    for seed in range(10):
        J = gaussian(3, 5, seed)
        new = plain.weights(pg.gramian(J))
        average = new if average is None else 0.7 * average + 0.3 * new
        assert torch.allclose(rule(J), average @ J, rtol=1e-13)
    assert rule.guarantee.in_hull


def test_a_step_without_a_direction_leaves_the_average() -> None:
    rule = pg.CRMOGM(pg.NashMTL())
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    for kept in (0, 1):
        before = rule.state_dict()
        assert len(before["weights"]) == kept
        solution = rule.solve(opposite)
        assert solution.status is pg.Status.STATIONARY
        assert not solution.weights.any()
        assert rule.state_dict() == before
        rule(gaussian(2, 3, 0))


def test_averages_do_not_depend_on_the_order() -> None:
    """At a stationary point UPGrad's weights are not unique, and its direction is zero: the smallest are averaged."""
    before, J = torch.tensor([[-1.0], [1.0], [-2.0]]).double(), torch.tensor([[2.0], [0.0], [-2.0]]).double()
    found = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        rule = pg.CRMOGM(pg.UPGrad())
        assert float(rule(before[order]).abs()) < 1e-15  # rounding of three numbers of about one
        found.append(rule(J[order]))
    assert torch.allclose(found[0], found[1], rtol=1e-12)
    assert torch.allclose(found[0], found[2], rtol=1e-12)
    assert float(found[0]) != 0.0


def test_a_stationary_point_of_the_rule_is_none_of_the_average() -> None:
    """MGDA stops where the gradients cancel, but weights of the step before do not cancel them."""
    rule = pg.CRMOGM(pg.MGDA(), momentum=0.5)
    rule(torch.tensor([[1.0, 0.0], [0.0, 10.0]], dtype=torch.float64))
    J = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    solution = rule.solve(pg.gramian(J))
    assert solution.status is pg.Status.OPTIMAL
    assert (solution.weights @ J).norm() > 0.1


def test_averages_may_conflict_and_are_told_so() -> None:
    rule = pg.CRMOGM(pg.UPGrad())
    rule(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    J = torch.tensor([[10.0, 0.0], [-1.0, 0.1]], dtype=torch.float64)
    assert (J @ rule(J)).min() < 0.0
    assert not rule.guarantee.non_conflicting
    assert pg.CRMOGM(pg.UPGrad(), 0.0).guarantee == pg.UPGrad().guarantee
    promise = pg.CRMOGM(pg.NashMTL()).guarantee
    assert promise.degree == 0.0
    assert promise.recalls_lengths


def test_momentum_may_grow() -> None:
    rule, J, K = pg.CRMOGM(pg.MGDA(), momentum=0.0), gaussian(3, 5, 0), gaussian(3, 5, 1)
    rule(J)
    rule.momentum = 0.5
    wanted = 0.5 * (pg.MGDA().weights(pg.gramian(J)) + pg.MGDA().weights(pg.gramian(K)))
    assert torch.allclose(rule.weights(pg.gramian(K)), wanted)
    with pytest.raises(pg.ParameterError, match="momentum=1"):
        rule.momentum = 1.0


def test_every_parameter_group_has_an_average_of_its_own() -> None:
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    A, B = gaussian(2, 3, 0).float(), gaussian(2, 3, 1).float()
    rule = pg.CRMOGM(pg.GradVac(order="given"), 0.5)
    for _ in range(2):
        pg.backward([A[k] @ x + B[k] @ y for k in range(2)], rule, [[x], [y]])
    state = rule.state_dict()
    assert set(state["weights"]) == set(state["rule"]["targets"]) == {"0", "1"}
    assert state["weights"]["0"] != state["weights"]["1"]


def test_a_failed_step_changes_neither_the_average_nor_the_rule() -> None:
    rule = pg.CRMOGM(pg.Mixed([pg.UPGrad(), pg.Mean()]))
    rule(gaussian(3, 4, 0))
    before, good = rule.state_dict(), pg.gramian(gaussian(3, 4, 1))
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights(torch.stack([good, torch.nan * good]))
    with pytest.raises(pg.ParameterError, match="m=3 objectives from the steps before"):
        rule(gaussian(2, 4, 0))
    for wrong in ({}, before | {"weights": {"0": [[1.0]]}}, before | {"rule": {}}):
        with pytest.raises(pg.ParameterError):
            rule.load_state_dict(wrong)
    assert rule.state_dict() == before


def test_runs_that_stop_leave_their_averages_alone() -> None:
    """Also in a pool and in a blend, where another rule acts at every other step."""
    problem = pg.problem("quadratic", m=3)
    starts = torch.tensor([1.0, 3.0, 2.0, 8.0], dtype=torch.float64)[:, None] * gaussian(4, problem.n, 0)

    def run(points: Tensor) -> pg.Trajectory:
        pool = pg.Mixed([pg.CRMOGM(pg.UPGrad()), pg.UnitRows(pg.CRMOGM(pg.MGDA())).normalized()])
        rule = pg.Blend([pool, pg.ClippedRows(pg.CRMOGM(pg.NashMTL()))])
        return pg.descend(problem, rule, 0.1, 200, starts=points, stop_gamma=0.3)

    together = run(starts)
    assert len(set(together.lengths.tolist())) > 2
    for k in range(4):
        alone = run(starts[k : k + 1])
        length = int(alone.lengths[0])
        assert int(together.lengths[k]) == length
        assert np.array_equal(together.weights[:length, k], alone.weights[:length, 0])


# Names


def test_names_and_representations() -> None:
    for rule, name, shown in (
        (pg.UnitRows(pg.MGDA()), "unit-rows(mgda)", "UnitRows(MGDA())"),
        (pg.ClippedRows(pg.CAGrad(0.4), 2), "clipped-rows(cagrad)", "ClippedRows(CAGrad(c=0.4), 2)"),
        (pg.CRMOGM(pg.UPGrad().normalized()), "cr-mogm(upgrad*)", "CRMOGM(UPGrad().normalized(), 0.9)"),
    ):
        assert (rule.name, repr(rule)) == (name, shown)
        assert repr(eval(shown, vars(pg))) == shown


@pytest.mark.parametrize("wrapper", [pg.UnitRows, pg.ClippedRows, pg.CRMOGM])
def test_what_is_no_rule(wrapper: type[pg.Aggregator]) -> None:
    with pytest.raises(pg.ParameterError, match=f"{wrapper.__name__} takes a rule"):
        wrapper(pg.MGDA)  # type: ignore[call-arg]
    if wrapper is pg.ClippedRows:
        with pytest.raises(pg.ParameterError, match="max_norm=0"):
            pg.ClippedRows(pg.MGDA(), 0.0)
