"""`fully_shard`, replicas of shards, tensor parallelism, and both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from paretograd.distributed import Traffic
from support.processes.common import Alone, Comparison, Tasks, batch, case, flat, flat_grad, mesh_of, task_losses, train
from support.processes.data_parallel import chosen, in_form, part


def sharded(mesh: DeviceMesh, **options: Any) -> Tasks:
    model = Tasks()
    for layer in (model.trunk[0], model.trunk[2], *model.heads):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def compare(model: nn.Module, rank: int, size: int, **options: Any) -> list[Comparison]:
    return train(
        model,
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (task_losses(net(part(batch(t, 4 * size), rank, size))), options),
        lambda t, net: task_losses(net(batch(t, 4 * size))),
    )


@case(1, 2, 4)
def fsdp(rank: int, size: int) -> list[Comparison]:
    """One group for each layer; the same line as on one process. Shards are of different sizes, some are empty."""
    mesh = mesh_of(size)
    found = compare(sharded(mesh), rank, size)
    if size == 2:
        found += compare(sharded(mesh, reshard_after_forward=False), rank, size)
        model = sharded(mesh)
        found += compare(model, rank, size, params=model)
        found += compare(fully_shard(Tasks(), mesh=mesh), rank, size)  # the graph has no sign of it
    return found


@case(2)
def fsdp_many_losses(rank: int, size: int) -> list[Comparison]:
    """With many more losses than processes, parameters are gathered once for all passes."""
    mesh = mesh_of(size)

    def many(net: nn.Module, x: Tensor) -> Tensor:
        outputs = torch.cat(net(x), dim=1)
        return torch.stack([(outputs - k).square().mean() for k in range(4 * size)])

    found = train(
        sharded(mesh),
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (many(net, part(batch(t, 4 * size), rank, size)), {}),
        lambda t, net: many(net, batch(t, 4 * size)),
    )
    counts, x = [], part(batch(0, 4 * size), rank, size)
    for call in (lambda losses: pg.backward(losses, pg.UPGrad()), lambda losses: losses.sum().backward()):
        model = sharded(mesh)
        for _ in range(2):
            with Traffic() as counted:
                call(many(model, x))
        counts.append(torch.tensor(sum(bytes_ for name, bytes_, _ in counted.calls if name == "_allgather_base_")))
    return [*found, Comparison("bytes gathered, against one plain pass", *counts)]


@case(2)
def fsdp_options(rank: int, size: int) -> list[Comparison]:
    """Parameters and groups by name, a vector of losses."""
    found = []
    mesh = mesh_of(size)
    for options in ("params", "groups", "shared", "specific", "vector"):
        model = sharded(mesh)

        def losses(net: nn.Module, x: Tensor, options: str = options) -> list[Tensor] | Tensor:
            return in_form(task_losses(net(x)), options)

        alone = Alone(Tasks(), pg.UPGrad())
        found += train(
            model,
            alone,
            pg.UPGrad(),
            lambda t, net, options=options: (losses(net, part(batch(t, 4 * size), rank, size)), chosen(net, options)),
            lambda t, net: losses(net, batch(t, 4 * size)),
            steps=2,
            alone_options=chosen(alone.model, options),
        )
    return found


@case()
def fsdp_uneven(rank: int, size: int) -> list[Comparison]:
    """Every process has another number of samples."""
    counts = [1 + (3 * r) % 5 for r in range(size)]
    return train(
        sharded(mesh_of(size)),
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (task_losses(net(batch(t, sum(counts)).split(counts)[rank])), {"samples": counts[rank]}),
        lambda t, net: task_losses(net(batch(t, sum(counts)))),
    )


@case(2)
def fsdp_accumulation(rank: int, size: int) -> list[Comparison]:
    """Two small batches a step, the first with synchronisation off; a plain pass in between."""
    model, alone = sharded(mesh_of(size)), Alone(Tasks(), pg.UPGrad())
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for t in range(3):
        halves = batch(t, 8 * size).chunk(2)
        optimizer.zero_grad()
        alone.optimizer.zero_grad()
        for number, half in enumerate(halves):
            model.set_requires_gradient_sync(number == 1)
            pg.backward(task_losses(model(part(half, rank, size))), pg.UPGrad())
            pg.backward(task_losses(alone.model(half)), pg.UPGrad(), parallel="none")
        sum(task_losses(model(part(halves[0], rank, size)))).backward()
        sum(task_losses(alone.model(halves[0]))).backward()
        optimizer.step()
        alone.optimizer.step()
    return [
        Comparison("gradients", flat_grad(model), flat_grad(alone.model)),
        Comparison("parameters", flat(model), flat(alone.model)),
    ]


@case(2, 4)
def hsdp(rank: int, size: int) -> list[Comparison]:
    """Shards along one dimension of a mesh, replicas along the other."""
    found = []
    for shape in {2: [(1, 2), (2, 1)], 4: [(2, 2)]}[size]:
        mesh = mesh_of(*shape, names=("replicas", "shards"))
        found += compare(sharded(mesh), rank, size)
    return found


def tensor_parallel(mesh: DeviceMesh) -> Tasks:
    """The trunk by columns and by rows; the heads stay plain, the same on every process."""
    plan = {"trunk.0": ColwiseParallel(), "trunk.2": RowwiseParallel()}
    model = parallelize_module(Tasks(), mesh, plan)
    assert isinstance(model, Tasks)
    return model


@case()
def tensor_parallelism(rank: int, size: int) -> list[Comparison]:
    """Every process has the whole batch and a part of the trunk."""
    model = tensor_parallel(mesh_of(size))
    return train(
        model,
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (task_losses(net(batch(t, 8))), {}),
        lambda t, net: task_losses(net(batch(t, 8))),
    )


def in_two_dimensions(mesh: DeviceMesh) -> Tasks:
    """Shards of the parts of tensor parallelism, on a mesh of ``data`` by ``tensor``."""
    model = tensor_parallel(mesh["tensor"])
    for layer in (model.trunk, *model.heads):
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


@case(4)
def fsdp_and_tensor_parallelism(rank: int, size: int) -> list[Comparison]:
    """Two pairs with a batch each; within a pair each process has a part of the layers."""
    mesh = mesh_of(2, 2, names=("data", "tensor"))
    model = in_two_dimensions(mesh)
    place = mesh["data"].get_local_rank()
    return train(
        model,
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (task_losses(net(part(batch(t, 8), place, 2))), {}),
        lambda t, net: task_losses(net(batch(t, 8))),
    )


@case()
def gramian_of_shards(rank: int, size: int) -> list[Comparison]:
    """`gramian` as well; the graph stays for the step after it."""
    x, other = batch(0, 4 * size), Tasks()
    everything = task_losses(other(x))
    want = pg.gramian(everything, parallel="none")
    model = sharded(mesh_of(size))
    losses = task_losses(model(part(x, rank, size)))
    got = pg.gramian(losses)
    step = pg.backward(losses, pg.UPGrad())
    own = pg.backward(everything, pg.UPGrad(), parallel="none")
    whole = tensor_parallel(mesh_of(size))
    return [
        Comparison("shards", got, want),
        Comparison("weights of the step after it", step.weights, own.weights),
        Comparison("gradients of the step after it", flat_grad(model), flat_grad(other)),
        Comparison("tensor parallelism", pg.gramian(task_losses(whole(x))), want),
    ]


@case(2)
def traffic(rank: int, size: int) -> list[Comparison]:
    """Beyond what `fully_shard` sends for one backward pass per loss, at most m * m * 8 bytes; DDP: each row once."""
    mesh, x = mesh_of(size), part(batch(0, 8 * size), rank, size)

    def sent(call: Callable[[list[Tensor]], Any], model: nn.Module) -> Traffic:
        for _ in range(3):  # the first call of a kind is agreed on at length, and DDP sets itself up
            with Traffic() as counted:
                call(task_losses(model(x)))
        return counted

    def single_passes(losses: list[Tensor]) -> None:
        for k, loss in enumerate(losses):
            loss.backward(retain_graph=k < len(losses) - 1)

    def gathered(counted: Traffic) -> int:
        return sum(size for name, size, _ in counted.calls if name == "_allgather_base_")

    for options in ({}, {"reshard_after_forward": False}):
        ours = sent(lambda losses: pg.backward(losses, pg.UPGrad()), sharded(mesh, **options))
        plain = sent(single_passes, sharded(mesh, **options))
        assert ours.payload - plain.payload <= 3 * 3 * 8, (options, ours.calls, plain.calls)
        assert [call for call in ours.calls if call[0] == "allreduce_"] == [("allreduce_", 8, 2), ("allreduce_", 48, 2)]
    # Parameters that stay whole after the forward pass are gathered once, however many rows there are.
    once = sent(lambda losses: sum(losses).backward(), sharded(mesh, reshard_after_forward=False))
    assert gathered(ours) == gathered(once)
    model = DistributedDataParallel(Tasks())
    count = sum(param.numel() for param in model.parameters())
    ours = sent(lambda losses: pg.backward(losses, pg.UPGrad()), model)
    plain = sent(lambda losses: sum(losses).backward(), model)
    trunk = sum(param.numel() for param in model.module.trunk.parameters())
    # Rows of the trunk and one gradient of the heads, summed; then one direction, gathered.
    return [
        Comparison("plain DDP", torch.tensor(plain.payload), torch.tensor(8 * count)),
        Comparison(
            "rows", torch.tensor(ours.payload), torch.tensor(8 * (3 * trunk + 2 * (count - trunk) + trunk) + 56)
        ),
    ]
