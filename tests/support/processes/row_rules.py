"""Rules that need the rows, the losses or several batches, on several processes: the same step as one process."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import DEVICE, Comparison, Tasks, agree, batch, case, flat_grad, mesh_of, sgd
from support.processes.data_parallel import part
from support.processes.failures import told
from support.processes.objectives import owned
from support.processes.sharded import in_two_dimensions, sharded

RULES: dict[str, Callable[[], pg.Aggregator]] = {
    "graddrop": lambda: pg.GradDrop(0.1, seed=5),
    "trimmed-mean": pg.TrimmedMean,
    "moco": pg.MoCo,
    "excess-mtl": pg.ExcessMTL,
    "db-mtl": pg.DBMTL,
    "gradnorm": pg.GradNorm,
    "m-config": pg.MConFIG,
}


def losses_of(outputs: list[Tensor]) -> list[Tensor]:
    """Positive means over samples."""
    a, b, c = outputs
    return [a.square().mean(), (b - 1.0).abs().mean(), (c + 2.0).square().mean()]


def of_kind(kind: str, size: int) -> nn.Module:
    return DistributedDataParallel(Tasks()) if kind == "ddp" else sharded(mesh_of(size))


@case(2)
def row_rules(rank: int, size: int) -> list[Comparison]:
    """Four steps of each rule under DDP and with shards."""
    found = []
    for kind in ("ddp", "fsdp"):
        for name, make in RULES.items():
            model = of_kind(kind, size)
            other = Tasks()
            rule, alone = make(), make()
            optimizers = sgd(model, 0.1), sgd(other, 0.1)
            for t in range(4):
                x = batch(t, 4 * size)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                step = pg.backward(losses_of(model(part(x, rank, size))), rule, model)
                want = pg.backward(losses_of(other(x)), alone, other, parallel="none")
                found.append(Comparison(f"{kind}, {name}, step {t}: gradients", flat_grad(model), flat_grad(other)))
                found.append(agree(f"{kind}, {name}", flat_grad(model)))
                if step.direction is not None and want.direction is not None:
                    slopes = torch.tensor([each.direction.slopes for each in (step, want)])
                    slopes = slopes.nan_to_num(-1e6)  # of losses that M-ConFIG does not differentiate, on both sides
                    found.append(Comparison(f"{kind}, {name}: slopes", slopes[0], slopes[1]))
                for optimizer in optimizers:
                    optimizer.step()
    return found


class Odd(nn.Module):
    """Parameters whose shapes no number of processes divides."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(0)
        self.a = nn.Parameter(torch.randn(7, 5, dtype=torch.float64, generator=generator, device="cpu").to(DEVICE))
        self.b = nn.Parameter(torch.randn(5, dtype=torch.float64, generator=generator, device="cpu").to(DEVICE))
        self.c = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> list[Tensor]:
        y = (x @ self.a.T).sum(dim=1) + self.c
        z = self.b.sin().sum()
        return [y - z, y + z, y * z]


@case(2, 4)
def random_numbers_of_shards(rank: int, size: int) -> list[Comparison]:
    """A coordinate has the same random number in shards, in replicas of them, and in shards of shards."""
    models: dict[str, tuple[nn.Module, nn.Module, int, int]] = {
        "shards": (sharded(mesh_of(size)), Tasks(), rank, size),
        "odd shapes": (fully_shard(Odd(), mesh=mesh_of(size)), Odd(), rank, size),
    }
    if size == 4:
        mesh = mesh_of(2, 2, names=("copies", "shards"))
        models["replicas of shards"] = (sharded(mesh), Tasks(), rank, size)
        mesh = mesh_of(2, 2, names=("data", "tensor"))
        models["shards of shards"] = (in_two_dimensions(mesh), Tasks(), mesh["data"].get_local_rank(), 2)
    found = []
    for kind, (model, other, place, places) in models.items():
        rule, alone = pg.GradDrop(seed=7), pg.GradDrop(seed=7)
        for t in range(3):
            x = batch(t, 4 * size)
            model.zero_grad()
            other.zero_grad()
            params = [(model, other), (None, None)][t % 2]
            pg.backward(losses_of(model(part(x, place, places))), rule, params[0])
            pg.backward(losses_of(other(x)), alone, params[1], parallel="none")
            found.append(Comparison(f"{kind}, step {t}", flat_grad(model), flat_grad(other)))
    return found


@case(2)
def row_rules_of_objectives(rank: int, size: int) -> list[Comparison]:
    """Each process has some of the losses."""
    found = []
    for name, make in RULES.items():
        model, other, rule, alone = Tasks(), Tasks(), make(), make()
        for t in range(3):
            x = batch(t, 6)
            model.zero_grad()
            other.zero_grad()
            mine = [losses_of(model(x))[k] for k in owned(rank, size)]
            pg.backward(mine, rule, model, parallel="objectives")
            pg.backward(losses_of(other(x)), alone, other, parallel="none")
            found.append(Comparison(f"{name}, step {t}", flat_grad(model), flat_grad(other)))
    return found


@case(2)
def independent_batches(rank: int, size: int) -> list[Comparison]:
    """Two or three batches, each differentiated once. A rule takes over the first process's state."""
    found = []
    for make, kind in itertools.product((pg.MoDo, pg.SDMGrad), ("ddp", "fsdp")):
        model, other, rule, alone = of_kind(kind, size), Tasks(), make(), make()
        if rank == 1:
            rule.weights_from(torch.eye(3, dtype=torch.float64))
        for t in range(4):
            xs = [batch(10 * t + k, 4 * size) for k in range(3 - t % 2)]
            model.zero_grad()
            other.zero_grad()
            batches = [losses_of(model(part(x, rank, size))) for x in xs]
            passes: list[int] = []
            for losses in batches:
                losses[0].register_hook(lambda _, passes=passes: passes.append(1))
            step = pg.backward(batches, rule)
            want = pg.backward([losses_of(other(x)) for x in xs], alone, parallel="none")
            name = f"{kind}, {rule.label}, {len(xs)} batches"
            found.append(Comparison(f"{name}: passes", torch.tensor(len(passes)), torch.tensor(len(xs))))
            found.append(Comparison(f"{name}: weights", step.weights, want.weights))
            found.append(Comparison(f"{name}: gradients", flat_grad(model), flat_grad(other)))
    return found


@case(2)
def averages_that_differ(rank: int, size: int) -> list[Comparison]:
    """A process that has loaded another state is told so; random seeds are those of the first process."""
    model, rule = DistributedDataParallel(Tasks()), pg.MoCo()
    x = part(batch(0, 4 * size), rank, size)
    pg.backward(losses_of(model(x)), rule)
    if rank == 1:
        pg.backward(losses_of(Tasks()(x)), rule, parallel="none")
    told(lambda: pg.backward(losses_of(model(x)), rule), pg.ParameterError, "taken other steps")
    torch.manual_seed(rank)
    drop = pg.GradDrop()
    model.zero_grad()
    pg.backward(losses_of(model(x)), drop)
    return [agree("gradients", flat_grad(model))]


@case(2)
def states_of_shards(rank: int, size: int) -> list[Comparison]:
    """Each process saves its own averages, and goes on from them. Those of another process or number are refused."""
    found, model, single = [], sharded(mesh_of(size)), Tasks()

    def steps(rule: pg.Aggregator, *numbers: int) -> None:
        for t in numbers:
            model.zero_grad()
            pg.backward(losses_of(model(part(batch(t, 4 * size), rank, size))), rule)

    def saved(rule: pg.Aggregator) -> dict[str, Any]:
        """Return what a file of this process holds."""
        file = io.BytesIO()
        torch.save(rule.as_module().state_dict(), file)
        file.seek(0)
        state: dict[str, Any] = torch.load(file, weights_only=True)
        return state

    def of_first(state: dict[str, Any]) -> dict[str, Any]:
        every: list[Any] = [None] * size
        dist.all_gather_object(every, state)
        return every[0]

    def refused(rule: pg.Aggregator, *words: str) -> None:
        told(lambda: steps(rule, 3), pg.ParameterError, *words)

    for name in ("moco", "excess-mtl", "db-mtl", "m-config"):
        rule, other = RULES[name](), RULES[name]()
        steps(rule, 0, 1)
        state = saved(rule)
        other.as_module().load_state_dict(state)
        other.as_module().load_state_dict(saved(other))  # before any step
        steps(rule, 2)
        want = flat_grad(model)
        steps(other, 2)
        found.append(Comparison(f"{name}: gradients", flat_grad(model), want, 0.0))

        wrong, whole = RULES[name](), RULES[name]()
        wrong.as_module().load_state_dict(of_first(state))
        refused(wrong, "loaded another state")
        wrong.load_state_dict(rule.state_dict() | {"process": [rank, 2 * size]})
        refused(wrong, "one of 4 processes", "one of 2 processes")
        pg.backward(losses_of(single(batch(0, 4))), whole, parallel="none")
        wrong.as_module().load_state_dict(saved(whole))
        refused(wrong, "a single process", "one of 2 processes")
        try:
            pg.backward(losses_of(single(batch(0, 4))), rule, parallel="none")
        except pg.ParameterError as error:
            assert "one of 2 processes" in str(error)  # noqa: PT017
        else:
            raise AssertionError(f"{name} took averages of shards for whole ones")
    return found
