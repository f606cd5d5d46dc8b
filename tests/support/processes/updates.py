"""Metrics, updates and `Unconflicting` on several processes, compared with one process on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import Comparison, Tasks, agree, batch, case, flat, mesh_of, task_losses
from support.processes.data_parallel import part
from support.processes.failures import told
from support.processes.objectives import owned
from support.processes.sharded import sharded

STEPS = 12


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05, foreach=False)


def trained(
    model: nn.Module, losses: Callable[[int, nn.Module], Any], **options: Any
) -> tuple[Tensor, Tensor, list[tuple[int, ...]]]:
    """Train with the wrapper, and return the parameters, all weights, and the conflicts of the optimizer's updates."""
    optimizer = pg.Unconflicting(adam(model), pg.UPGrad())
    weights, proposed = [], []
    for t in range(STEPS):
        optimizer.zero_grad()
        step = optimizer.backward(losses(t, model), **options)
        optimizer.step()
        weights.append(step.weights.cpu())
        proposed.append(optimizer.last.proposed)
        assert not optimizer.last.conflicts
    return flat(model), torch.stack(weights), proposed


def compare(model: nn.Module, mine: Callable[[int, nn.Module], Any], size: int, **options: Any) -> list[Comparison]:
    params, weights, proposed = trained(model, mine, **options)
    want, others, seen = trained(Tasks(), lambda t, net: task_losses(net(batch(t, 4 * size))), parallel="none")
    assert proposed == seen, (proposed, seen)
    assert any(seen), "no update conflicts, so nothing is tested"
    return [
        Comparison("parameters", params, want, 1e-8),
        Comparison("weights", weights, others, 1e-8),
        agree("parameters", params),
    ]


@case(1, 2, 4)
def unconflicting_ddp(rank: int, size: int) -> list[Comparison]:
    """DDP: each process holds slices of the columns, and all make the same update."""
    model = DistributedDataParallel(Tasks())
    return compare(model, lambda t, net: task_losses(net(part(batch(t, 4 * size), rank, size))), size)


@case(1, 2, 4)
def unconflicting_fsdp(rank: int, size: int) -> list[Comparison]:
    """`fully_shard`: each process holds shards of rows, update and preconditioner."""
    found = []
    for model in (sharded(mesh_of(size)), fully_shard(Tasks(), mesh=mesh_of(size))):
        found += compare(model, lambda t, net: task_losses(net(part(batch(t, 4 * size), rank, size))), size)
    return found


@case(2)
def unconflicting_objectives(rank: int, size: int) -> list[Comparison]:
    """Each process has some of the losses."""
    model = Tasks()

    def mine(t: int, net: nn.Module) -> list[Tensor]:
        losses = task_losses(net(batch(t, 4 * size)))
        return [losses[k] for k in owned(rank, size)]

    return compare(model, mine, size, params=model, parallel="objectives")


@case(2)
def updates_of_processes(rank: int, size: int) -> list[Comparison]:
    """Slopes of an update, and the Gramian in a metric."""
    found = []
    for kind in ("ddp", "fsdp"):
        model = DistributedDataParallel(Tasks()) if kind == "ddp" else sharded(mesh_of(size))
        other = Tasks()
        optimizers = [adam(model), adam(other)]
        for t in range(4):
            x = batch(t, 4 * size)
            steps, updates = [], []
            for net, optimizer, given in ((model, optimizers[0], part(x, rank, size)), (other, optimizers[1], x)):
                optimizer.zero_grad()
                alone = {"parallel": "none"} if net is other else {}
                losses = task_losses(net(given))
                steps.append(pg.backward(losses, pg.UPGrad(), metric=optimizer, keep_rows=True, **alone))
                with steps[-1].of_update() as update:
                    optimizer.step()
                updates.append(torch.tensor([*update.slopes, *update.cosines, update.cosine], device="cpu"))
            found.append(Comparison(f"{kind}, step {t}: Gramian", steps[0].gramian.cpu(), steps[1].gramian.cpu()))
            found.append(Comparison(f"{kind}, step {t}: update", updates[0], updates[1], 1e-6))
        losses = task_losses(model(part(x, rank, size)))
        told(partial(pg.backward, losses, pg.UPGrad(), metric=lambda _, g: g), pg.ParameterError, "give a diagonal")
    return found
