"""Processes with losses of their own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import Alone, Comparison, Tasks, agree, batch, case, flat, flat_grad, task_losses, train
from support.processes.failures import told


def owned(rank: int, size: int) -> list[int]:
    """Tasks of a process: with two, the first has two; with four, the last has none."""
    return {2: [[0, 1], [2]], 4: [[0], [1], [2], []]}[size][rank]


@case()
def objectives(rank: int, size: int) -> list[Comparison]:
    """Each process has some of the tasks and all of the samples; the heads are in each process, and stay equal."""
    model = Tasks()
    alone = Alone(model, pg.UPGrad())

    def mine(t: int, net: nn.Module) -> tuple[list[Tensor], dict]:
        losses = task_losses(net(batch(t, 8)))
        return [losses[k] for k in owned(rank, size)], {"parallel": "objectives", "params": net}

    found = train(model, alone, pg.UPGrad(), mine, lambda t, net: task_losses(net(batch(t, 8))))
    return [*found, agree("parameters", flat(model))]


@case()
def objectives_one_by_one(rank: int, size: int) -> list[Comparison]:
    """The same where passes are not batched, and with groups; under DDP, whose own averaging stays out of it."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.MGDA()), DistributedDataParallel(model)

    def groups(net: nn.Module) -> list[list[Tensor]]:
        return [list(net.trunk[0].parameters()), [*net.trunk[2].parameters(), *net.heads.parameters()]]

    def mine(t: int, net: nn.Module) -> tuple[list[Tensor], dict]:
        losses = task_losses(net(batch(t, 8)))
        options = {"parallel": "objectives", "params": groups(model), "chunk": 1}
        return [losses[k] for k in owned(rank, size)], options

    return train(
        wrapped,
        alone,
        pg.MGDA(),
        mine,
        lambda t, net: task_losses(net(batch(t, 8))),
        steps=2,
        alone_options={"params": groups(alone.model)},
    )


@case()
def names_of_all_processes(rank: int, size: int) -> list[Comparison]:
    """Each process names its own losses; all know all names, and a process without losses needs none."""
    model, every = Tasks(), ["depth", "edges", "labels"]
    mine = owned(rank, size)

    def losses(names: list[str], scale: float = 1.0) -> dict[str, Tensor] | list[Tensor]:
        found = task_losses(model(batch(0, 8)))
        return {names[k]: scale * found[k] for k in mine} if mine else []

    options = {"params": model, "parallel": "objectives"}
    for _ in range(2):
        step = pg.backward(losses(every), pg.UPGrad(), **options)
        assert step.names == tuple(every), step.names
        assert {f"mo/weight/{name}" for name in every} <= set(step.metrics()), step.metrics()
    before = flat_grad(model)
    for scale in (float("nan"), float("inf")):
        bad = scale if mine == [2] else 1.0
        error = told(lambda bad=bad: pg.backward(losses(every, bad), pg.UPGrad(), **options), pg.NonFiniteGradientError)
        assert "objective 'labels'" in str(error)
        assert error.objectives == [2]
    step = pg.backward(losses(every, float("nan")), pg.UPGrad(), nonfinite="propagate", **options)
    assert step.names == tuple(every)
    model.zero_grad()
    twice = ["depth", "edges", "depth"]
    told(lambda: pg.backward(losses(twice), pg.UPGrad(), **options), pg.ProcessError, "'depth'", "processes 0 and")
    told(
        lambda: pg.backward(list(losses(every).values()) if rank == 0 else losses(every), pg.UPGrad(), **options),
        pg.ProcessError,
        "of process 0 have none",
    )
    assert all(param.grad is None for param in model.parameters())
    pg.backward(losses(every), pg.UPGrad(), **options)
    return [Comparison("gradients, of one step and of two", 2.0 * flat_grad(model), before)]


@case()
def one_objective_per_sample(rank: int, size: int) -> list[Comparison]:
    """Every process has samples of its own, each of which is an objective."""
    model, other = Tasks(), Tasks()
    x = batch(0, 3 * size)

    def losses(net: Tasks, x: Tensor) -> Tensor:
        return net(x)[0].square().mean(dim=1)

    mine = losses(model, x.chunk(size)[rank])
    step = pg.backward(mine, pg.CappedMGDA(eps=0.5), model, parallel="objectives", per_sample=True)
    want = pg.backward(losses(other, x), pg.CappedMGDA(eps=0.5), parallel="none")
    return [
        Comparison("weights", step.weights, want.weights, 1e-8),
        Comparison("Gramian", step.gramian, want.gramian),
        Comparison("gradients", flat_grad(model), flat_grad(other), 1e-8),
        Comparison(
            "gramian()", pg.gramian(losses(model, x.chunk(size)[rank]), model, parallel="objectives"), want.gramian
        ),
        Comparison("number", torch.tensor(len(step.weights)), torch.tensor(3 * size)),
    ]


@case(2)
def objectives_of_a_large_model(rank: int, size: int) -> list[Comparison]:
    """Another number of losses on each process, and rows that take several buckets."""
    model = nn.Sequential(nn.Linear(5, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 8)).double()
    for place, param in enumerate(model.parameters()):
        param.data = torch.sin(torch.arange(param.numel(), dtype=torch.float64) + place).reshape(param.shape) / 8.0
    other = copy.deepcopy(model)
    x = batch(0, 4)
    losses = list((model(x) - 1.0).square().mean(dim=0))
    step = pg.backward(losses[:7] if rank == 0 else losses[7:], pg.UPGrad(), model, parallel="objectives")
    want = pg.backward(list((other(x) - 1.0).square().mean(dim=0)), pg.UPGrad(), parallel="none")
    return [
        Comparison("Gramian", step.gramian, want.gramian),
        Comparison("gradients", flat_grad(model), flat_grad(other), 1e-9),
    ]
