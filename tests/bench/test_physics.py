"""The physics-informed tasks: solutions have no losses, networks are trained at once, points lie where they should."""

from __future__ import annotations

import math

import pytest
import torch
from support.fields import Exact, field_by_autograd
from support.stacked import check_stacked, seeded
from torch import nn

from paretograd.bench.task import Data, Task
from paretograd.bench.tasks import physics
from paretograd.bench.tasks.physics import Beltrami, Burgers, Kovasznay, Physics, Schroedinger
from paretograd.problems import solutions

TASKS = (Burgers, Schroedinger, Kovasznay, Beltrami)
every_task = pytest.mark.parametrize("kind", TASKS, ids=[kind.name for kind in TASKS])


def drawn(task: Task, data: Data, seed: int):
    return task.batch(data, torch.Generator().manual_seed(seed), nn.Identity())


@every_task
def test_stacked_networks_have_the_losses_and_gradients_of_each(kind):
    task = kind(small=True)
    check_stacked(task, task.load())


@pytest.mark.parametrize("kind", [Burgers, Kovasznay, Beltrami], ids=lambda kind: kind.name)
def test_the_solution_has_no_losses(kind, monkeypatch):
    """Values in the batch are rounded to float32, and the terms of the residuals are below 200."""
    monkeypatch.setattr(physics, "field_of", field_by_autograd)
    task = kind()
    batch = tuple(part.double() for part in drawn(task, task.load(), 0))
    losses = task.losses(Exact(task.solution), batch)
    assert losses[0] < 1e-18
    assert all(loss < 1e-12 for loss in losses[1:])


def bound_state(points):
    """The solution of the Schroedinger equation on the whole line (Satsuma and Yajima, 1974), as two real outputs."""
    x, t = points.unbind(-1)
    above = torch.cosh(3.0 * x) + 3.0 * torch.exp(4j * t) * torch.cosh(x)
    below = torch.cosh(4.0 * x) + 4.0 * torch.cosh(2.0 * x) + 3.0 * torch.cos(4.0 * t)
    return torch.view_as_real(4.0 * torch.exp(0.5j * t) * above / below)


class TestSchroedinger:
    def test_a_solution_on_the_line_misses_only_the_boundary_values(self, monkeypatch):
        """It is even, so only its slope jumps: by about twice its value at a wall, for it decays like exp(-x)."""
        monkeypatch.setattr(physics, "field_of", field_by_autograd)
        task = Schroedinger()
        batch = tuple(part.double() for part in drawn(task, task.load(), 0))
        residual, initial, boundary = task.losses(Exact(bound_state), batch)
        assert residual < 1e-18
        assert initial < 1e-12
        wall = 4.0 * bound_state(batch[-1]).square().sum(1).mean()
        assert boundary.item() == pytest.approx(wall.item(), rel=0.02)

    @pytest.mark.parametrize("small", [False, True])
    @pytest.mark.parametrize("centres", [False, True])
    def test_the_grids_lie_on_the_nodes_of_the_solver(self, small, centres):
        points, values = Schroedinger(small=small).grid(centres=centres)
        h = solutions.schroedinger()
        x, t = points.double().unbind(1)
        steps = t * ((len(h) - 1) / solutions.DURATION)
        nodes = (x + solutions.HALF_WIDTH) * (h.shape[1] / (2.0 * solutions.HALF_WIDTH))
        assert (steps - steps.round()).abs().max() < 1e-4  # the points are in float32
        assert (nodes - nodes.round()).abs().max() < 1e-4
        # At the walls, the periodic solution differs from that on the line by 0.02.
        assert (values - bound_state(points.double())).abs().max() < 0.05


@every_task
@pytest.mark.parametrize("small", [False, True], ids=["full", "small"])
def test_points_lie_where_the_conditions_hold(kind, small):
    task = kind(small=small)
    data = task.load()
    low, high = torch.tensor(task.lower), torch.tensor(task.upper)
    assert {len(part) for part in data.train} == {2_000 if small else 20_000}
    for points in (data.train[0], data.train[-2], data.validation[0], data.test[0]):
        assert ((points >= low) & (points <= high)).all()
    d = task.space
    walls = data.train[-2]
    ends = torch.stack((walls[:, :d] == low[:d], walls[:, :d] == high[:d]))
    assert ends.any(2).any(0).all()
    assert (ends.sum(1) >= len(walls) // (2 * d)).all()  # as many points on each side
    if len(low) > d:
        start = data.train[1]
        assert (start[:, -1] == 0.0).all()
        assert start[:, 0].min() < low[0] + 0.01
        assert start[:, 0].max() > high[0] - 0.01


@every_task
def test_rows_are_the_same_in_every_call_and_sets_are_disjoint(kind):
    one, other = kind().load(), kind().load()
    for rows, again in zip(one, other, strict=True):
        assert all(torch.equal(part, same) for part, same in zip(rows, again, strict=True))
    sets = [{tuple(point) for point in rows[0].tolist()} for rows in one]
    assert not sets[1] & sets[2]
    assert not sets[0] & (sets[1] | sets[2])
    cells = kind.cells
    assert len(one.validation[0]) == math.prod(cells)
    assert len(one.test[0]) == math.prod(count + 1 for count in cells)


class TestScores:
    @every_task
    def test_the_solution_has_no_error_and_zero_has_one_of_100_percent(self, kind):
        task = kind(small=True)
        points, values = task.load().validation
        assert task.scores(lambda _: values, (points, values)) == [0.0] * len(task.metrics)
        scores = task.scores(lambda _: torch.zeros_like(values), (points, values))
        assert scores == pytest.approx([100.0] * len(task.metrics))
        assert task.quality(scores) == pytest.approx(0.0)

    def test_velocity_and_pressure_have_errors_of_their_own(self):
        task = Kovasznay(small=True)
        points, values = task.load().test
        off = values * torch.tensor([1.1, 1.1, 0.5])
        assert task.scores(lambda _: off, (points, values)) == pytest.approx([10.0, 50.0], rel=1e-5)

    def test_quality_is_in_digits(self):
        task = Kovasznay()
        assert task.quality([1.0, 10.0]) == pytest.approx(1.5)
        assert task.quality([1.0, 1.0]) > task.quality([1.0, 2.0])
        assert task.quality([math.nan, 1.0]) == task.quality([math.inf, 1.0]) == -math.inf
        assert math.isfinite(task.quality([0.0, 0.0]))


@every_task
@pytest.mark.parametrize("small", [False, True], ids=["full", "small"])
def test_objectives_metrics_and_networks_are_as_declared(kind, small):
    task = kind(small=small)
    assert not task.single
    assert len(task.objectives) == (2 if kind is Kovasznay else 3)
    assert all(metric.objective is None and not metric.higher for metric in task.metrics)
    network = seeded(task, 0)
    assert network(torch.zeros(5, len(kind.lower))).shape == (5, sum(count for _, count in kind.fields))
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in linear[:-1]] == ([20] * 3 if small else [50] * 5)
    assert not torch.equal(linear[0].weight, seeded(task, 1)[0].weight)
    assert torch.equal(linear[0].weight, seeded(task, 0)[0].weight)


@every_task
def test_a_network_learns(kind):
    """Sixty steps of Adam on the sum of the losses halve it."""
    task: Physics = kind(small=True)
    data = task.made()
    network = seeded(task, 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    totals = []
    for step in range(60):
        total = torch.stack(list(task.losses(network, drawn(task, data, step)))).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert sum(totals[-5:]) < 0.5 * sum(totals[:5])
