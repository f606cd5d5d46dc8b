"""The physics-informed problems: the solutions meet the conditions, and the derivatives are those of autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from paretograd.experiments.optimizers import physics
from paretograd.experiments.optimizers.physics import PHYSICS, Field, burgers_solution, field_of
from paretograd.experiments.optimizers.task import Scores

every_problem = pytest.mark.parametrize("problem", PHYSICS.values(), ids=list(PHYSICS))


def field_by_autograd(function, points):
    """The values and derivatives of a function of points, by differentiating twice."""
    points = points.clone().requires_grad_(True)
    values = function(points)
    (first,) = torch.autograd.grad(values.sum(), points, create_graph=True)
    second = [torch.autograd.grad(first[:, k].sum(), points, retain_graph=True)[0][:, k] for k in (0, 1)]
    return Field(values, first[:, 0], first[:, 1], *second)


def unit_square(n=400):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Exact(nn.Module):
    """A solution in the place of a network."""

    def __init__(self, problem):
        super().__init__()
        self.solution = problem.solution

    def forward(self, points):
        return self.solution(points).unsqueeze(-1)


@every_problem
def test_the_solution_meets_every_condition(problem, monkeypatch):
    """In float64; the terms of the residuals are up to 150 in size."""
    monkeypatch.setattr(physics, "field_of", lambda network, points: field_by_autograd(network.solution, points))
    for condition in problem.conditions:
        mismatch = condition.mismatch(Exact(problem), condition.place(unit_square()))
        assert mismatch.abs().max() < 1e-9, condition.name


def test_the_steepest_slope_of_burgers_is_the_published_one():
    """Basdevant et al. (1986): at x = 0 and pi t = 1.6037 the slope is -152.00516, and steepest."""
    times = torch.linspace(0.45, 0.57, 25, dtype=torch.float64)
    times[12] = 1.6037 / math.pi
    slopes = field_by_autograd(burgers_solution, torch.stack((torch.zeros_like(times), times), dim=1)).u_1
    assert slopes[12].item() == pytest.approx(-152.00516, abs=1e-4)
    assert slopes.argmin() == 12


def test_the_solution_of_burgers_is_that_of_another_quadrature():
    """The trapezoidal rule on the integrals of Cole and Hopf, at times from early to late."""
    z = np.linspace(-12.0, 12.0, 20_001)
    for x, t in ((-0.7, 0.01), (0.3, 0.2), (0.02, 0.6), (0.9, 1.0)):
        y = x - z * math.sqrt(4.0 * physics.VISCOSITY * t)
        weights = np.exp(-z * z - (np.cos(math.pi * y) + 1.0) / (2.0 * math.pi * physics.VISCOSITY))
        expected = -(weights * np.sin(math.pi * y)).sum() / weights.sum()
        found = burgers_solution(torch.tensor([[x, t]], dtype=torch.float64)).item()
        assert found == pytest.approx(expected, abs=1e-10)


def test_the_field_of_a_network_is_that_of_autograd():
    network = PHYSICS["burgers"].network(3).double()
    points = 2.0 * unit_square(50) - 1.0
    expected = field_by_autograd(lambda at: network(at)[:, 0], points)
    for name, one, other in zip(Field._fields, field_of(network, points), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=name)


@every_problem
def test_points_lie_where_the_conditions_hold(problem):
    batch = problem.batch(torch.Generator().manual_seed(0))
    low, high = torch.tensor(problem.lower), torch.tensor(problem.upper)
    for condition, points in zip(problem.conditions, batch, strict=True):
        assert points.shape == (condition.size, 2)
        assert ((points >= low) & (points <= high)).all()
        ends = {
            "residual": torch.tensor(True),
            "initial": points[:, 1] == 0.0,
            "boundary": ((points == low) | (points == high)).any(dim=1),
        }
        assert ends[condition.name].all()
    walls = batch[-1]
    assert {tuple(wall) for wall in (walls == low).tolist()} >= {(True, False), (False, False)}  # more than one side


def test_seeds_make_networks_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    one, same, other = (PHYSICS["burgers"].network(seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one[0].weight, same[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)


class TestScores:
    @every_problem
    def test_the_error_of_zero_is_one(self, problem):
        network = problem.network(0)
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
        scores = problem.scores(network)
        assert scores.error == pytest.approx(1.0)
        assert len(scores.losses) == len(problem.conditions)

    def test_the_validation_loss_is_the_logarithm_of_the_sum(self):
        assert Scores((0.06, 0.04), 0.5).validation == pytest.approx(-1.0)

    @pytest.mark.parametrize("loss", [math.inf, math.nan])
    def test_a_run_that_diverged_is_last(self, loss):
        assert Scores((loss, 1.0), 0.5).validation == math.inf
