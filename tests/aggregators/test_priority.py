"""PCD: its averages over several steps, constraints that exclude each other, and its state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import references as ref
from support.families import FAMILIES
from torch import Tensor

import paretograd as pg


def gaussian(m: int, n: int, seed: int) -> Tensor:
    return FAMILIES["gaussian"].make(m, n, seed)


def test_steps_follow_the_papers_loop() -> None:
    """Ten steps with gradients of changing length, some of them zero, against the exact answer for each average."""
    rule, beta = pg.PCD(tau=0.1, beta=0.9), 0.9
    v = np.zeros(4)
    for step in range(10):
        J = gaussian(4, 6, step) * torch.tensor([1.0, 1.5**step, 0.5, 2.0], dtype=torch.float64)[:, None]
        if step in (0, 6):
            J[2] = 0.0
        v = beta * v + (1.0 - beta) * J.square().sum(dim=1).numpy()
        wanted = ref.pcd(J.numpy(), 0.1, v / (1.0 - beta ** (step + 1)))
        assert np.linalg.norm(rule(J).numpy() - wanted) <= 1e-10 * np.linalg.norm(wanted)


def test_every_other_objective_gets_its_share() -> None:
    """Before d is scaled, its slope along each normalized gradient is at least tau; and d is as long as the first."""
    for seed in range(30):
        J = gaussian(4, 6, seed)
        J[1:] -= 0.5 * J[0]  # conflicts
        for tau in (0.02, 0.3):
            solution = pg.PCD(tau).solve(pg.gramian(J))
            d, lengths = solution.weights @ J, J.norm(dim=1)
            before = d / (solution.weights[0] * lengths[0])  # the first normalized gradient has the weight one
            assert solution.status is pg.Status.OPTIMAL
            assert (J[1:] @ before / lengths[1:]).min() >= tau * (1.0 - 1e-9)
            assert d.norm() == pytest.approx(float(lengths[0]), rel=1e-12)


def test_without_a_share_it_is_a_projection_of_any_average() -> None:
    rule = pg.PCD(tau=0.0)
    for seed in range(10):
        J = gaussian(3, 4, seed) * torch.tensor([1.0, 10.0**seed, 1.0], dtype=torch.float64)[:, None]
        projected = torch.from_numpy(ref.project_dual_cone(J.numpy(), J[0].numpy()))
        assert torch.allclose(rule(J), projected * (J[0].norm() / projected.norm()), rtol=1e-9, atol=1e-12)


def test_every_other_objective_may_have_a_share_of_its_own() -> None:
    for seed in range(10):
        J = gaussian(4, 6, seed)
        J[1:] -= 0.5 * J[0]  # conflicts
        shares = [0.3, 0.0, 0.1 * seed]
        wanted = ref.pcd(J.numpy(), shares)
        for given in (shares, torch.tensor(shares, dtype=torch.float64)):
            found = pg.PCD(given)(J).numpy()
            assert np.linalg.norm(found - wanted) <= 1e-9 * np.linalg.norm(wanted)
        J[1] = 0.0  # its share does not matter
        assert torch.allclose(pg.PCD(shares)(J), pg.PCD(shares[1:])(J[[0, 2, 3]]))
    assert torch.equal(pg.PCD([0.2] * 3)(J), pg.PCD(0.2)(J))
    assert pg.PCD([0.0, 0.0]).guarantee == pg.PCD(0.0).guarantee
    assert pg.PCD([0.0, 0.1]).guarantee == pg.PCD(0.1).guarantee
    assert repr(pg.get("pcd(tau=[0, 0.1])")) == "PCD(tau=[0.0, 0.1])"


def test_a_wrong_number_of_shares_is_refused() -> None:
    rule = pg.PCD([0.1, 0.2])
    with pytest.raises(pg.ParameterError, match=r"tau has 2 numbers, but 3 of the m = 4 objectives"):
        rule(gaussian(4, 6, 0))
    assert rule.state_dict() == {"averages": {}}
    rule(gaussian(3, 6, 0))


def test_the_first_objective_may_increase() -> None:
    """Opposite gradients: any progress of the second objective undoes the first, and the length makes up for it."""
    J = torch.tensor([[2.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(pg.PCD(tau=0.01)(J), -J[0])
    stationary = pg.PCD(tau=0.0).solve(pg.gramian(J))
    assert stationary.status is pg.Status.STATIONARY
    assert not stationary.weights.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_constraints_that_exclude_each_other_are_dropped(dtype: torch.dtype) -> None:
    """Two opposite side conditions, also if rounding sets them apart."""
    g, a = torch.tensor([0.2, 1.0, 0.4], dtype=torch.float64), torch.tensor([1.0, 0.1, 0.7], dtype=torch.float64)
    J = torch.stack([g, a, -0.3 * a]).to(dtype)
    solution = pg.PCD().solve(pg.gramian(J))
    assert solution.status is pg.Status.INFEASIBLE
    assert solution.status.ok
    assert solution.weights.tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(pg.PCD()(J), J[0])
    assert pg.PCD(tau=0.0).solve(pg.gramian(J)).status is not pg.Status.INFEASIBLE


def test_zero_gradients() -> None:
    J = gaussian(3, 4, 0)
    J[1] = 0.0
    assert torch.allclose(pg.PCD()(J), pg.PCD()(J[[0, 2]]))  # no side condition
    J[0] = 0.0
    assert pg.PCD().solve(pg.gramian(J)).status is pg.Status.STATIONARY
    assert torch.equal(pg.PCD()(gaussian(1, 3, 0)), gaussian(1, 3, 0)[0])


def test_the_unit_of_a_loss_does_not_matter() -> None:
    """If a side condition is scaled at every step, its direction stays, at any size of the gradients."""
    plain, scaled = pg.PCD(tau=0.3, beta=0.5), pg.PCD(tau=0.3, beta=0.5)
    factor = torch.tensor([1.0, 1e-12, 1e9], dtype=torch.float64)[:, None]
    for seed in range(5):
        J = gaussian(3, 5, seed)
        assert torch.allclose(plain(J), scaled(factor * J), rtol=1e-9)


def test_every_parameter_group_has_averages_of_its_own() -> None:
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    A, B = gaussian(2, 3, 0).float(), 100.0 * gaussian(2, 3, 1).float()
    rule = pg.PCD(beta=0.5)
    pg.backward([A[k] @ x + B[k] @ y for k in range(2)], rule, [[x], [y]])
    kept = rule.state_dict()["averages"]
    for part, rows in (("0", A), ("1", B)):
        assert kept[part]["steps"] == 1
        assert kept[part]["squares"] == pytest.approx((0.5 * rows.square().sum(dim=1)).tolist(), rel=1e-6)


def test_a_failed_step_changes_nothing() -> None:
    rule = pg.PCD()
    rule(gaussian(3, 4, 0))
    before, good = rule.state_dict(), pg.gramian(gaussian(3, 4, 1))
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights(torch.stack([good, torch.nan * good]))
    with pytest.raises(pg.ParameterError, match="m=3 objectives from the steps before, and this step has m=2"):
        rule(gaussian(2, 4, 0))
    assert rule.state_dict() == before


def test_a_step_whose_gramian_is_repaired_counts_once() -> None:
    """A Gramian that rounding made indefinite may be solved twice."""
    a, b = gaussian(2, 5, 0)
    J = torch.stack([a, b, -a - b, 0.5 * b])
    rule = pg.PCD()
    for _ in range(3):
        rule.solve(pg.gramian(J).bfloat16())
    assert rule.state_dict()["averages"]["0"]["steps"] == 3


def test_wrong_states_are_refused() -> None:
    rule = pg.PCD()
    rule(gaussian(2, 4, 0))
    state = rule.state_dict()
    for averages in ({"steps": 0, "squares": [1.0]}, {"steps": 1.5, "squares": [1.0]}, {"steps": 1, "squares": [-1.0]}):
        with pytest.raises(pg.ParameterError):
            rule.load_state_dict({"averages": {"0": averages}})
    with pytest.raises(pg.ParameterError, match="loads what its state_dict returned"):
        rule.load_state_dict({})
    assert rule.state_dict() == state


@pytest.mark.parametrize(
    "given",
    [
        {"tau": [0.1, 1.1]},
        {"tau": []},
        {"tau": ["a"]},
        {"tau": "0.1"},
        {"tau": -0.1},
        {"tau": 1.1},
        {"beta": 1.0},
        {"beta": -0.1},
        {"tau": math.nan},
    ],
)
def test_wrong_parameters(given: dict[str, float]) -> None:
    with pytest.raises(pg.ParameterError, match=f"{next(iter(given))}="):
        pg.PCD(**given)
