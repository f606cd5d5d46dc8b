"""Weightings with a history: DWA, RLW and FAMO, against their papers' algorithms written out with torch's own tools."""

from __future__ import annotations

import math

import pytest
import torch
from support.scalarizations import drawn
from torch import Tensor

import paretograd as pg


def test_dwa_weights_by_the_ratio_of_two_epochs() -> None:
    rule = pg.DWA(temperature=2.0)
    means = []
    for epoch in range(4):
        seen = []
        for step in range(3):
            losses = drawn(4, seed=10 * epoch + step)
            weights = rule.weights(losses)
            if epoch < 2:
                assert torch.equal(weights, torch.ones_like(losses))
            else:
                ratio = means[-1] / means[-2]
                want = 4 * (ratio / 2.0).exp() / (ratio / 2.0).exp().sum()
                assert torch.allclose(weights, want, rtol=1e-14)
            seen.append(losses)
        means.append(torch.stack(seen).mean(dim=0))
        rule.next_epoch()


def test_dwa_refuses_epochs_without_a_ratio() -> None:
    rule = pg.DWA()
    with pytest.raises(pg.ParameterError, match="no step"):
        rule.next_epoch()
    rule.weights([1.0, 0.0])
    with pytest.raises(pg.InputError, match="got 0 for objective 1"):
        rule.next_epoch()
    rule.weights([1.0, 3.0])
    rule.next_epoch()  # the failed call changed nothing: the mean is that of both steps
    assert rule.state_dict()["_last"].tolist() == [1.0, 1.5]


def test_rlw_draws_anew_for_every_step_on_the_simplex() -> None:
    rule, other = pg.RLW(seed=5), pg.RLW(seed=5)
    drawn_weights = torch.stack([rule.weights(drawn(3)) for _ in range(2000)])
    assert torch.allclose(drawn_weights.sum(dim=1), torch.ones(2000, dtype=torch.float64))
    assert float(drawn_weights.min()) > 0.0
    assert len(drawn_weights.unique(dim=0)) == 2000
    assert torch.equal(torch.stack([other.weights(drawn(3)) for _ in range(2000)]), drawn_weights)
    # the mean of 2000 draws, whose deviation is about 0.2, is 1/3 up to five standard errors
    assert torch.allclose(drawn_weights.mean(dim=0), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.025)
    xi = drawn_weights.log()
    normals = xi - xi.mean(dim=1, keepdim=True)  # what softmax keeps of xi: variance 1 - 1/m
    assert math.isclose(float(normals.var()), 2 / 3, rel_tol=0.1)


def test_rlw_without_a_seed_follows_torch() -> None:
    torch.manual_seed(3)
    first = pg.RLW().weights(drawn(3))
    assert not torch.equal(pg.RLW().weights(drawn(3)), first)
    torch.manual_seed(3)
    assert torch.equal(pg.RLW().weights(drawn(3)), first)


class Written:
    """Algorithm 1 of Liu et al. 2023, with Adam for the logits as in its appendix C."""

    def __init__(self, m: int, lr: float, decay: float) -> None:
        self.xi = torch.zeros(m, dtype=torch.float64, requires_grad=True)
        self.adam = torch.optim.Adam([self.xi], lr=lr, weight_decay=decay)

    def weights(self, losses: Tensor) -> Tensor:
        z = torch.softmax(self.xi.detach(), 0)
        c = 1.0 / (z / losses).sum()
        self.before = losses
        return c * z / losses

    def update(self, losses: Tensor) -> None:
        self.xi.grad = None
        (torch.softmax(self.xi, 0) @ (self.before.log() - losses.log())).backward()
        self.adam.step()


@pytest.mark.parametrize("lowest", [0.0, -1e-8, -0.5])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_famo_is_its_algorithm(scale: float, lowest: float) -> None:
    rule, other = pg.FAMO(lowest=lowest), Written(4, 0.025, 1e-3)
    for step in range(50):
        before, after = scale * drawn(4, seed=step), scale * drawn(4, seed=100 + step)
        # Fifty steps of Adam agree with torch's up to the rounding of its square roots.
        assert torch.allclose(rule.weights(before), other.weights(before - lowest), rtol=1e-11)
        rule.update(after)
        other.update(after - lowest)
    assert torch.allclose(rule.state_dict()["_logits"], other.xi.detach(), rtol=1e-11, atol=1e-13)


def test_famo_gives_weight_to_losses_that_decrease_slowly() -> None:
    rule = pg.FAMO()
    for _ in range(100):
        rule.weights([1.0, 1.0])
        rule.update([0.5, 0.99])
    assert rule.weights([1.0, 1.0])[1] > 0.9


def test_famo_needs_a_step_before_each_update() -> None:
    rule = pg.FAMO()
    with pytest.raises(pg.ParameterError, match="no step came before"):
        rule.update([1.0, 2.0])
    rule.weights([1.0, 2.0])
    state = {key: value.clone() for key, value in rule.state_dict().items()}
    for wrong, error in (
        ([1.0, 2.0, 3.0], pg.ParameterError),
        ([1.0, -2.0], pg.InputError),
        ([1.0, math.nan], pg.NonFiniteGradientError),
    ):
        with pytest.raises(error):
            rule.update(wrong)
    assert all(torch.equal(value, state[key]) for key, value in rule.state_dict().items())
    rule.update({"a": torch.tensor(0.5), "b": torch.tensor(1.0)})
    with pytest.raises(pg.ParameterError, match="no step came before"):
        rule.update([1.0, 2.0])


def test_famo_without_updates_warns() -> None:
    rule = pg.FAMO()
    rule.weights([1.0, 2.0])
    with pytest.warns(UserWarning, match="two steps without update"):
        rule.weights([1.0, 2.0])


def test_famo_keeps_its_state_in_float64_in_a_model_of_halves() -> None:
    model = torch.nn.ModuleDict({"rule": pg.FAMO(), "layer": torch.nn.Linear(2, 2)})
    alone = pg.FAMO()
    for _ in range(3):
        for rule in (model["rule"], alone):
            rule.weights([1.0, 2.0])
            rule.update([0.5, 1.9])
        model.half().to("cpu")
    assert model["layer"].weight.dtype == torch.float16
    assert torch.equal(model["rule"].weights([1.0, 2.0]), alone.weights([1.0, 2.0]))


def test_famo_updates_in_inference_mode() -> None:
    rule, other = pg.FAMO(), pg.FAMO()
    for _ in range(3):
        for each in (rule, other):
            each.weights([1.0, 2.0])
        with torch.inference_mode():
            rule.update([0.5, 1.9])
        other.update([0.5, 1.9])
    rule.load_state_dict(other.state_dict())
    assert torch.equal(rule.weights([1.0, 2.0]), other.weights([1.0, 2.0]))


@pytest.mark.parametrize("losses", [[1e-15, 1e15], [1e-15, 1e-15], [1e15, 1.0]])
def test_famo_at_extreme_losses(losses: list[float]) -> None:
    rule = pg.FAMO()
    weights = rule.weights(losses)
    assert math.isclose(float(weights.sum()), 1.0)
    assert torch.allclose(weights[0] * losses[0], weights[1] * losses[1], rtol=1e-12, atol=0.0)
    rule.update([loss * 0.5 for loss in losses])
    assert bool(torch.isfinite(rule.weights(losses)).all())
