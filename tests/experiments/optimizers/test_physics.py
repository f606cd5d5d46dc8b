"""The physics-informed problems: the solutions meet the conditions, and points and scores are as declared."""

from __future__ import annotations

import math

import pytest
import torch
from support.fields import Exact, field_by_autograd
from torch import nn

from paretograd.experiments.optimizers import physics
from paretograd.experiments.optimizers.physics import PHYSICS
from paretograd.experiments.optimizers.task import Scores

every_problem = pytest.mark.parametrize("problem", PHYSICS.values(), ids=list(PHYSICS))


def unit_square(n=400):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@every_problem
def test_the_solution_meets_every_condition(problem, monkeypatch):
    """In float64; the terms of the residuals are up to 150 in size."""
    monkeypatch.setattr(physics, "field_of", field_by_autograd)
    exact = Exact(lambda points: problem.solution(points).unsqueeze(-1))
    for condition in problem.conditions:
        mismatch = condition.mismatch(exact, condition.place(unit_square()))
        assert mismatch.abs().max() < 1e-9, condition.name


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
