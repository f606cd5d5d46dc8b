"""DistributedDataParallel, and replicas without a wrapper."""

from __future__ import annotations

import copy
import tempfile
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from paretograd.autograd.recording import read_recording
from paretograd.distributed import Traffic
from support.models import MODELS
from support.processes.common import (
    DEVICE,
    Alone,
    Comparison,
    Tasks,
    agree,
    batch,
    case,
    flat,
    flat_grad,
    task_losses,
    train,
)


def part(x: Tensor, rank: int, size: int) -> Tensor:
    return x.chunk(size)[rank]


def chosen(net: nn.Module, options: str) -> dict:
    """Arguments of `backward` for a model with a trunk and heads, by a word for them."""
    return {
        "params": {"params": list(net.trunk.parameters())},
        "groups": {"params": [list(net.trunk[0].parameters()), list(net.trunk[2].parameters())]},
        "shared": {"shared": net.heads[0].weight},
        "specific": {"specific": list(net.trunk[0].parameters())},
        "chunk": {"chunk": 2},
    }.get(options, {})


def in_form(losses: list[Tensor], options: str) -> list[Tensor] | Tensor:
    """Losses as a list, or as a vector if that is the word."""
    return torch.stack(losses) if options == "vector" else losses


@case(1, 2, 4)
def ddp(rank: int, size: int) -> list[Comparison]:
    """The same line as on one process."""
    found = []
    rules = (pg.UPGrad, pg.MGDA, lambda: pg.Mixed([pg.MGDA(), pg.UPGrad()]))
    for rule in rules if size == 2 else rules[:1]:
        model = Tasks()
        alone, wrapped = Alone(model, rule()), DistributedDataParallel(model)
        found += train(
            wrapped,
            alone,
            rule(),
            lambda t, net: (task_losses(net(part(batch(t, 4 * size), rank, size))), {}),
            lambda t, net: task_losses(net(batch(t, 4 * size))),
        )
        found.append(agree("parameters", flat(model)))
    return found


@case(2)
def monitored(rank: int, size: int) -> list[Comparison]:
    """The first process records what all of them know, and the others write nothing."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    model = DistributedDataParallel(Tasks())
    weights = []
    with pg.Monitor(str(folder[0]), budget=None) as monitor:
        for t in range(3):
            losses = task_losses(model(part(batch(t, 4 * size), rank, size)))
            step = pg.backward(losses, pg.UPGrad())
            monitor(step, losses)
            weights.append(step.weights)
    dist.barrier()
    found = torch.tensor(np.array([record.weights[0] for record in read_recording(str(folder[0])).records]))
    written = torch.tensor(float(monitor.records))
    return [
        Comparison("recorded weights", found, torch.stack(weights)),
        Comparison("records of this process", written, torch.tensor(3.0 if rank == 0 else 0.0)),
    ]


@case(2)
def ddp_options(rank: int, size: int) -> list[Comparison]:
    """Parameters and groups by name, the module itself, small passes, a vector of losses."""
    found = []
    for options in ("module", "params", "groups", "shared", "specific", "chunk", "vector"):
        model = Tasks()
        alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)

        def losses(net: nn.Module, x: Tensor, options: str = options) -> list[Tensor] | Tensor:
            return in_form(task_losses(net(x)), options)

        def mine(t: int, net: nn.Module, options: str = options) -> tuple[list[Tensor] | Tensor, dict]:
            given = {"params": net} if options == "module" else chosen(net.module, options)
            return losses(net, part(batch(t, 4 * size), rank, size)), given

        found += train(
            wrapped,
            alone,
            pg.UPGrad(),
            mine,
            lambda t, net: losses(net, batch(t, 4 * size)),
            steps=2,
            alone_options=chosen(alone.model, options),
        )
    return found


@case()
def uneven_batches(rank: int, size: int) -> list[Comparison]:
    """Every process has another number of samples, in every step."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)

    def sizes(t: int) -> list[int]:
        return [1 + (r * 3 + t) % 5 for r in range(size)]

    def mine(t: int, net: nn.Module) -> tuple[list[Tensor], dict]:
        x = batch(t, sum(sizes(t))).split(sizes(t))[rank]
        return task_losses(net(x)), {"samples": len(x)}

    return train(wrapped, alone, pg.UPGrad(), mine, lambda t, net: task_losses(net(batch(t, sum(sizes(t))))))


@case(2)
def samples_of_each_task(rank: int, size: int) -> list[Comparison]:
    """Tasks whose losses are means over other numbers of samples, with none of some on some processes."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)
    x = batch(0, 4 * size)
    present = torch.tensor([[(i + k) % 3 != 0 and not (i < 4 and k == 1) for k in range(3)] for i in range(len(x))])

    def losses(net: nn.Module, x: Tensor, keep: Tensor) -> list[Tensor]:
        outputs = net(x)
        return [(outputs[k].square().sum(dim=1) * keep[:, k]).sum() / keep[:, k].sum().clamp(min=1) for k in range(3)]

    def mine(t: int, net: nn.Module) -> tuple[list[Tensor], dict]:
        keep = part(present, rank, size)
        return losses(net, part(x, rank, size), keep), {"samples": keep.sum(dim=0).tolist()}

    return train(wrapped, alone, pg.UPGrad(), mine, lambda t, net: losses(net, x, present), steps=3)


@case()
def accumulation(rank: int, size: int) -> list[Comparison]:
    """Two small batches a step, the first within `no_sync`."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)
    optimizer, found = torch.optim.SGD(wrapped.parameters(), lr=0.1), []
    for t in range(5):
        halves = batch(t, 8 * size).chunk(2)
        optimizer.zero_grad()
        with wrapped.no_sync():
            first = pg.backward(task_losses(wrapped(part(halves[0], rank, size))), pg.UPGrad())
        second = pg.backward(task_losses(wrapped(part(halves[1], rank, size))), pg.UPGrad())
        optimizer.step()
        alone.optimizer.zero_grad()
        others = [pg.backward(task_losses(alone.model(half)), pg.UPGrad(), parallel="none") for half in halves]
        alone.optimizer.step()
        for step, other in zip((first, second), others, strict=True):
            found.append(Comparison(f"weights of step {t}", step.weights, other.weights))
    found.append(Comparison("gradients", flat_grad(wrapped), flat_grad(alone.model)))
    found.append(Comparison("parameters", flat(wrapped), flat(alone.model)))
    return found


@case(2)
def between_plain_steps(rank: int, size: int) -> list[Comparison]:
    """DDP's own backward pass works before and after ours."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for t in range(5):
        optimizer.zero_grad()
        alone.optimizer.zero_grad()
        mine = task_losses(wrapped(part(batch(t, 4 * size), rank, size)))
        everything = task_losses(alone.model(batch(t, 4 * size)))
        if t % 2:
            pg.backward(mine, pg.UPGrad())
            pg.backward(everything, pg.UPGrad(), parallel="none")
        else:
            sum(mine).backward()
            sum(everything).backward()
        optimizer.step()
        alone.optimizer.step()
    return [Comparison("parameters", flat(wrapped), flat(alone.model))]


@case(2)
def mixed_precision(rank: int, size: int) -> list[Comparison]:
    """float32 parameters, bfloat16 under autocast, and a scaler whose scale is too large at first."""
    found = []
    for dtype, scale in ((torch.bfloat16, 1.0), (torch.float16, 2.0**24)):
        model = Tasks(dtype=torch.float32)
        wrapped, alone = DistributedDataParallel(model), Alone(model, pg.UPGrad())
        runs = []
        for net, x_of, several in (
            (wrapped, lambda x: part(x, rank, size), True),
            (alone.model, lambda x: x, False),
        ):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler(DEVICE, init_scale=scale, enabled=dtype is torch.float16)
            for t in range(12):
                optimizer.zero_grad()
                with torch.autocast(DEVICE, dtype=dtype):
                    losses = task_losses(net(x_of(batch(t, 8 * size).float())))
                pg.backward(
                    [scaler.scale(loss) for loss in losses],
                    pg.UPGrad(),
                    nonfinite="propagate",
                    parallel="auto" if several else "none",
                )
                scaler.step(optimizer)
                scaler.update()
            runs.append((flat(net), scaler.get_scale() if scaler.is_enabled() else 1.0))
        (got, scale_here), (want, _) = runs
        assert scale_here < 2.0**23 or dtype is torch.bfloat16
        found.append(Comparison(f"parameters, {dtype}", got, want, 0.03))
        found.append(agree(f"parameters, {dtype}", got))
    return found


@case(2)
def tiny_and_huge(rank: int, size: int) -> list[Comparison]:
    """Gradients of float32 whose squares leave its range, all of them; the reference is in float64."""
    found = []
    for factor in (1e-25, 1e25):
        model, x = Tasks(dtype=torch.float32), batch(0, 4 * size)
        alone, wrapped = Alone(model.double(), pg.MGDA()), DistributedDataParallel(model.float())
        other = alone.step(lambda net, x=x: task_losses(net(x)))
        losses = task_losses(wrapped(part(x, rank, size).float()))
        step = pg.backward([factor * loss for loss in losses], pg.MGDA())
        found.append(Comparison(f"weights, {factor:g}", step.weights, other.weights, 1e-4))
        found.append(Comparison(f"Gramian, {factor:g}", step.gramian / factor / factor, other.gramian, 1e-5))
    return found


class NoBatching(torch.autograd.Function):
    """An operation whose backward pass cannot be batched."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if float(grad.abs().sum()) < 0:  # reads a number, which no batch has
            raise AssertionError
        return grad * x.cos()


@case(2)
def unbatchable(rank: int, size: int) -> list[Comparison]:
    """One process finds out that passes cannot be batched, and all make single ones."""
    model = Tasks()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)

    def losses(net: nn.Module, x: Tensor) -> list[Tensor]:
        return task_losses([y + NoBatching.apply(y) for y in net(x)])

    return train(
        wrapped,
        alone,
        pg.UPGrad(),
        lambda t, net: (losses(net, part(batch(t, 4 * size), rank, size)), {}),
        lambda t, net: losses(net, batch(t, 4 * size)),
        steps=2,
    )


@case(2)
def unused_on_some(rank: int, size: int) -> list[Comparison]:
    """A task whose loss is left out of the graph of all processes but one."""
    model = Tasks()
    wrapped, alone = DistributedDataParallel(model, find_unused_parameters=True), Alone(model, pg.UPGrad())
    x = batch(0, 4 * size)

    def losses(net: nn.Module, x: Tensor, there: bool) -> list[Tensor]:
        a, b, c = task_losses(net(x))
        trunk = net.module.trunk if isinstance(net, DistributedDataParallel) else net.trunk
        return [a, b, c if there else trunk(x).square().mean()]

    step = pg.backward(losses(wrapped, part(x, rank, size), rank == 0), pg.UPGrad())
    outputs = [losses(alone.model, part(x, r, size), r == 0) for r in range(size)]
    means = [torch.stack(column).mean() for column in zip(*outputs, strict=True)]
    other = pg.backward(means, pg.UPGrad(), parallel="none")
    return [
        Comparison("weights", step.weights, other.weights),
        Comparison("gradients", flat_grad(model), flat_grad(alone.model)),
    ]


@case(2)
def every_model(rank: int, size: int) -> list[Comparison]:
    """All models of the engine's tests, with the same batch on both processes: the average is what one has."""
    found = []
    for name, build in MODELS.items():
        problems = build(), build()
        steps = []
        for problem, parallel in zip(problems, ("data", "none"), strict=True):
            torch.manual_seed(1)
            with warnings.catch_warnings():  # which one process gives, true of two models
                warnings.filterwarnings("ignore", ".* no parameter that the other losses share", UserWarning)
                steps.append(pg.backward(problem.losses(), pg.UPGrad(), problem.params, parallel=parallel))
        found.append(Comparison(f"{name}: Gramian", steps[0].gramian, steps[1].gramian))
        for k, (p, q) in enumerate(zip(problems[0].params, problems[1].params, strict=True)):
            if q.grad is None:  # or zero, where the graph reaches it and no gradient does
                assert p.grad is None or not p.grad.any(), (name, k)
                continue
            assert p.grad is not None, (name, k)
            got, want = (grad.to_dense() for grad in (p.grad, q.grad))
            if got.is_complex():
                got, want = torch.view_as_real(got), torch.view_as_real(want)
            found.append(Comparison(f"{name}: gradient {k}", got, want, 1e-9))
    return found


@case(2)
def frozen_batch_norm(rank: int, size: int) -> list[Comparison]:
    """Convolutions, and statistics that do not depend on the batch."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    model.eval()
    alone, wrapped = Alone(model, pg.UPGrad()), DistributedDataParallel(model)
    x = batch(0, 4 * size, 72).reshape(-1, 2, 6, 6)
    return train(
        wrapped,
        alone,
        pg.UPGrad(),
        lambda t, net: (net(part(x, rank, size)).square().mean(dim=0), {}),
        lambda t, net: net(x).square().mean(dim=0),
        steps=2,
    )


@case()
def gramian_of_replicas(rank: int, size: int) -> list[Comparison]:
    """`gramian` as well, with a graph that stays."""
    model = Tasks()
    wrapped, x = DistributedDataParallel(model), batch(0, 4 * size)
    losses = task_losses(wrapped(part(x, rank, size)))
    got = [pg.gramian(losses), pg.gramian(losses, wrapped), pg.gramian(losses, model.trunk.parameters())]
    other = Tasks()
    everything = task_losses(other(x))
    want = [pg.gramian(everything, parallel="none"), pg.gramian(everything, other.trunk.parameters(), parallel="none")]
    return [
        Comparison("all that the losses reach", got[0], want[0]),
        Comparison("the module", got[1], want[0]),
        Comparison("the trunk", got[2], want[1]),
    ]


@case(2)
def two_models_in_turn(rank: int, size: int) -> list[Comparison]:
    """As in a GAN: no step of either costs more than the number that is summed, the rows and the direction."""
    models = [DistributedDataParallel(Tasks(seed)) for seed in (1, 2)]
    rule, x = pg.RGW(), part(batch(0, 4 * size), rank, size)
    for _ in range(3):
        calls = []
        for model in models:
            with Traffic() as counted:
                pg.backward(task_losses(model(x)), rule)
            calls.append(counted.calls)
    sums = [[call for call in each if call[0] == "allreduce_"] for each in calls]
    assert sums == [[("allreduce_", 8, 2), ("allreduce_", 48, 2)]] * 2, calls
    assert not any(name == "allgather_" for each in calls for name, _, _ in each), calls
    return []


def told_at_length(counted: Traffic) -> bool:
    """That the processes exchanged objects, as in the first step of a kind."""
    return any(name == "allgather_" for name, _, _ in counted.calls)


class Many(nn.Module):
    """A trunk and heads, of which each step uses two."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(5, 4).double()
        self.heads = nn.ModuleList([nn.Linear(4, 1).double() for _ in range(heads)])

    def forward(self, x: Tensor, first: int) -> list[Tensor]:
        z = self.trunk(x).tanh()
        return [self.heads[(first + k) % len(self.heads)](z).square().mean() for k in range(2)]


@case(2, 4)
def many_kinds_in_turn(rank: int, size: int) -> list[Comparison]:
    """Sets of tasks in turn: 16 kinds of step are remembered, with and without a state that they share."""
    x = part(batch(0, 4 * size), rank, size)
    for kinds, rule in ((3, pg.UPGrad()), (3, pg.RGW()), (15, pg.RGW())):
        model = DistributedDataParallel(Many(kinds), find_unused_parameters=True)
        for turn in range(3):
            for first in range(kinds):
                with Traffic() as counted:
                    pg.backward(model(x, first), rule)
                assert told_at_length(counted) == (turn == 0), (kinds, turn, first, counted.calls)
        with Traffic() as counted:
            pg.gramian(model(x, 0))
        assert told_at_length(counted)  # another kind, which does not take the place of the latest
        with Traffic() as counted:
            pg.backward(model(x, kinds - 1), rule)
        assert not told_at_length(counted)
    model = DistributedDataParallel(Many(17), find_unused_parameters=True)
    for _ in range(2):
        for first in range(17):  # one too many: each takes the place of the one that comes next
            with Traffic() as counted:
                pg.backward(model(x, first), pg.UPGrad())
            assert told_at_length(counted)
    return [agree("gradients", flat_grad(model))]


@case(4)
def other_kinds_on_other_processes(rank: int, size: int) -> list[Comparison]:
    """Each process means a kind that all remember. Their numbers have the mean of one that some process means."""
    wrapped, alone = DistributedDataParallel(Many(3), find_unused_parameters=True), Many(3)
    x = batch(0, 4 * size)
    found = []
    for used in ([0] * 4, [1] * 4, [2] * 4, [0, 1, 1, 2], [1, 1, 1, 1], [2, 1, 1, 0], [0, 2, 0, 2], [1, 0, 1, 1]):
        wrapped.zero_grad()
        alone.zero_grad()
        with Traffic() as counted:
            step = pg.backward(wrapped(part(x, rank, size), used[rank]), pg.UPGrad(), specific=wrapped.module.heads)
        parts = [alone(part(x, number, size), first) for number, first in enumerate(used)]
        means = [torch.stack(column).mean() for column in zip(*parts, strict=True)]
        other = pg.backward(means, pg.UPGrad(), specific=alone.heads, parallel="none")
        assert told_at_length(counted) or used == [1] * 4, used
        found.append(Comparison(f"weights of {used}", step.weights, other.weights))
        found.append(Comparison(f"gradients of {used}", flat_grad(wrapped), flat_grad(alone)))
    return found


@case(2)
def towers_in_another_order(rank: int, size: int) -> list[Comparison]:
    """Two wrapped models of other shapes, which each process reaches in an order of its own."""
    first, second = Tasks(1), nn.Linear(5, 4).double()
    alone = [copy.deepcopy(first), copy.deepcopy(second)]
    wrapped = [DistributedDataParallel(first), DistributedDataParallel(second)]
    x = batch(0, 4 * size)

    def losses(one: nn.Module, two: nn.Module, x: Tensor, swap: bool) -> list[Tensor]:
        y, z = one(x)[0], two(x)
        return [(z * y if swap else y * z).mean(), (z + y if swap else y + z).sin().mean()]

    step = pg.backward(losses(*wrapped, part(x, rank, size), bool(rank)), pg.UPGrad())
    want = pg.backward(losses(*alone, x, False), pg.UPGrad(), parallel="none")
    return [
        Comparison("weights", step.weights, want.weights),
        *(Comparison("gradients", flat_grad(a), flat_grad(b)) for a, b in zip((first, second), alone, strict=True)),
    ]
