"""Hooks of users, collectives within the losses, and what torch's wrappers do when they are told not to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import paretograd as pg
from paretograd.distributed import Traffic
from support.processes.common import Alone, Comparison, Tasks, batch, case, flat, flat_grad, mesh_of, task_losses, train
from support.processes.data_parallel import part
from support.processes.failures import told
from support.processes.sharded import sharded, tensor_parallel

#: Models on several processes, each with whether every process has a batch of its own.
KINDS: dict[str, tuple[Callable[[int], nn.Module], bool]] = {
    "DDP": (lambda size: DistributedDataParallel(Tasks()), True),
    "data": (lambda size: Tasks(), True),
    "fully_shard": (lambda size: sharded(mesh_of(size)), True),
    "tensor parallel": (lambda size: tensor_parallel(mesh_of(size)), False),
}


def steps(rank: int, size: int, name: str, prepare: Callable[[nn.Module], Any]) -> tuple[nn.Module, nn.Module]:
    """A step on several processes and one on a single process, of models that were prepared."""
    make, apart = KINDS[name]
    x, model, other = batch(0, 4 * size), make(size), Tasks()
    prepare(model)
    prepare(other)
    options = {"params": model, "parallel": "data"} if name == "data" else {}
    pg.backward(task_losses(model(part(x, rank, size) if apart else x)), pg.UPGrad(), **options)
    pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    return model, other


@case(2)
def hooks_of_parameters(rank: int, size: int) -> list[Comparison]:
    """Each is called once, with the gradient that is the same everywhere."""
    found = []
    for name in KINDS:
        calls: list[int] = []

        def prepare(model: nn.Module, calls: list[int] = calls) -> None:
            for param in model.parameters():
                param.register_hook(lambda grad: calls.append(1) or 3.0 * grad)

        model, other = steps(rank, size, name, prepare)
        found += [
            Comparison(f"gradients, {name}", flat_grad(model), flat_grad(other)),
            Comparison(f"calls, {name}", torch.tensor(len(calls)), torch.tensor(2 * len(list(other.parameters())))),
        ]
    return found


@case(2)
def hook_of_one_process(rank: int, size: int) -> list[Comparison]:
    """A hook that could not take None, on one process alone: all get the same."""
    model, other = DistributedDataParallel(Tasks()), Tasks()
    if rank:
        model.module.trunk[0].weight.register_hook(lambda grad: grad * 1.0)
        model.module.trunk[1].register_full_backward_hook(lambda module, below, above: (below[0] * 1.0,))
    x = batch(0, 4 * size)
    pg.backward(task_losses(model(part(x, rank, size))), pg.UPGrad())
    pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    return [Comparison("gradients", flat_grad(model), flat_grad(other))]


@case(2)
def optimizer_in_the_backward_pass(rank: int, size: int) -> list[Comparison]:
    """It makes one step for each parameter, with the direction."""
    found = []
    for name in KINDS:

        def prepare(model: nn.Module) -> None:
            for param in model.parameters():
                optimizer = torch.optim.SGD([param], lr=0.1, foreach=False)
                param.register_post_accumulate_grad_hook(lambda _, o=optimizer: (o.step(), o.zero_grad()))

        model, other = steps(rank, size, name, prepare)
        assert all(param.grad is None for param in model.parameters()), name
        found.append(Comparison(f"parameters, {name}", flat(model), flat(other)))
    return found


@case(2)
def collectives_in_the_losses(rank: int, size: int) -> list[Comparison]:
    """Outputs of all processes, gathered by a collective that has a backward pass, which must not be batched."""

    def losses(outputs: list[Tensor], gathered: Callable[[Tensor], Tensor]) -> list[Tensor]:
        a, b, c = map(gathered, outputs)
        return [torch.logsumexp(a @ b.T, 1).mean(), torch.logsumexp(b @ c.T, 1).mean()]

    return train(
        DistributedDataParallel(Tasks()),
        Alone(Tasks(), pg.UPGrad()),
        pg.UPGrad(),
        lambda t, net: (
            losses(
                net(part(batch(t, 4 * size), rank, size)), lambda y: all_gather_tensor_autograd(y, 0, dist.group.WORLD)
            ),
            {},
        ),
        lambda t, net: losses(net(batch(t, 4 * size)), lambda y: y),
        steps=2,
    )


@case(2)
def older_checkpoint(rank: int, size: int) -> list[Comparison]:
    """It hides parameters, which torch fills all the same: an error, not a step without them."""
    x = batch(rank, 4).requires_grad_()
    for wrap in (lambda model: fully_shard(model), DistributedDataParallel):
        model = Tasks()
        trunk = model.trunk
        model.trunk = nn.Identity()
        model.trunk.inner = trunk
        model.trunk.forward = lambda x, trunk=trunk: checkpoint(trunk, x, use_reentrant=True)
        model = wrap(model)
        losses = task_losses(model(x))
        told(lambda: pg.backward(losses, pg.UPGrad(), model), pg.ParameterError, "use_reentrant=False")  # noqa: B023
    return []


@case(2)
def dtensor_losses(rank: int, size: int) -> list[Comparison]:
    """As a list and as a vector, each head belongs to its own loss."""
    mesh, found = mesh_of(size), []
    for vector in (False, True):

        def losses(net: nn.Module, x: Tensor, vector: bool = vector) -> list[Tensor] | Tensor:
            given = task_losses(net(x))
            return torch.stack(given) if vector else given

        found += train(
            distribute_module(Tasks(), mesh),
            Alone(Tasks(), pg.UPGrad()),
            pg.UPGrad(),
            lambda t, net: (losses(net, distribute_tensor(batch(t, 8), mesh, [Shard(0)])), {}),
            lambda t, net: losses(net, batch(t, 8)),
            steps=2,
        )
    return found


@case(2)
def traffic_of_tensor_parallelism(rank: int, size: int) -> list[Comparison]:
    """The sum after the second layer, once for the forward pass; a gather counts what was gathered."""
    model = tensor_parallel(mesh_of(size))
    with Traffic() as counted:
        sum(task_losses(model(batch(0, 8)))).backward()
    assert counted.calls == [("all_reduce", 8 * 8 * 8, size)], counted.calls
    with Traffic() as counted:
        model.trunk[0].weight.full_tensor()
    assert counted.calls == [("all_gather_into_tensor", 5 * 8 * 8, size)], counted.calls
    return [Comparison("sent", torch.tensor(counted.sent), torch.tensor(5 * 8 * 8 / 2))]


@case(2)
def large_gradients_of_heads(rank: int, size: int) -> list[Comparison]:
    """Finite numbers whose squares are not."""
    model, other = DistributedDataParallel(Tasks()), Tasks()
    x = batch(0, 4 * size)

    def losses(net: nn.Module, x: Tensor) -> list[Tensor]:
        a, b, _ = net(x)
        return [1e160 * a.square().mean(), b.mean()]

    pg.backward(losses(model, part(x, rank, size)), pg.UPGrad(), specific=list(model.module.trunk.parameters()))
    pg.backward(losses(other, x), pg.UPGrad(), specific=list(other.trunk.parameters()), parallel="none")
    return [Comparison("gradients", flat_grad(model) / 1e160, flat_grad(other) / 1e160)]


@case(2)
def options_are_checked(rank: int, size: int) -> list[Comparison]:
    """As on one process."""
    model = DistributedDataParallel(Tasks())
    x = part(batch(0, 4 * size), rank, size)
    losses = task_losses(model(x))
    told(lambda: pg.backward(losses, pg.UPGrad(), engine="bogus"), pg.ParameterError, "engine='bogus'")
    told(lambda: pg.gramian(losses, chunk=0), pg.ParameterError, "chunk=0")
    pg.backward(task_losses(model(x)), pg.UPGrad(), samples=(4 for _ in range(3)))
    return []


@case(2)
def fsdp_that_does_not_wait(rank: int, size: int) -> list[Comparison]:
    """The passes wait for each row, and what the user set is left as it was."""
    model, other = sharded(mesh_of(size)), Tasks()
    x = batch(0, 4 * size)
    losses = task_losses(model(part(x, rank, size)))
    model.set_is_last_backward(False)
    pg.backward(losses, pg.UPGrad())
    pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    assert model._get_fsdp_state()._state_ctx.is_last_backward is False
    model.set_is_last_backward(True)
    return [Comparison("gradients", flat_grad(model), flat_grad(other))]
