"""Models under `torch.compile`, whose heads torch cannot tell from the trunk."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import Comparison, Tasks, batch, case, flat_grad, task_losses
from support.processes.data_parallel import part
from support.processes.objectives import owned

Losses = Callable[[Tensor], list[Tensor]]


def accumulated(losses: Losses, x: Tensor, model: nn.Module) -> pg.Step:
    """The same batch twice: another size would be compiled anew."""
    with pg.accumulate(model) as acc:
        for _ in range(2):
            acc.add(losses(x), samples=len(x))
        return acc.step(pg.MGDA())


@case(2)
def heads_of_compiled_models(rank: int, size: int) -> list[Comparison]:
    """Each head gets the gradient of its own loss, and does not enter the Gramian."""
    x = batch(0, 8 * size)
    mine = part(x, rank, size)
    want_model = Tasks()
    want = pg.backward(task_losses(want_model(x)), pg.MGDA(), parallel="none")
    replica, shards, whole = DistributedDataParallel(Tasks()), Tasks(), Tasks()
    fully_shard(shards.trunk)
    fully_shard(shards)  # with the heads, so that one compiled graph holds all of them
    with (
        torch._functorch.config.patch(donated_buffer=False),  # several passes go through one graph
        warnings.catch_warnings(action="ignore", category=UserWarning),  # the compiler's own
    ):
        forward = {model: torch.compile(model, backend="aot_eager") for model in (replica, shards, whole)}

        def losses(model: nn.Module, x: Tensor) -> list[Tensor]:
            return task_losses(forward[model](x))

        def tasks(found: list[Tensor]) -> list[Tensor]:
            return [found[k] for k in owned(rank, size)]

        mgda = pg.MGDA()
        calls: list[tuple[str, nn.Module, Callable[[], pg.Step]]] = [
            ("ddp", replica, lambda: pg.backward(losses(replica, mine), mgda)),
            ("ddp, rows kept", replica, lambda: pg.backward(losses(replica, mine), mgda, keep_rows=True)),
            ("ddp, accumulated", replica, lambda: accumulated(lambda x: losses(replica, x), mine, replica)),
            ("fsdp", shards, lambda: pg.backward(losses(shards, mine), mgda)),
            ("fsdp, rows kept", shards, lambda: pg.backward(losses(shards, mine), mgda, keep_rows=True)),
            ("fsdp, accumulated", shards, lambda: accumulated(lambda x: losses(shards, x), mine, shards)),
            ("objectives", whole, lambda: pg.backward(tasks(losses(whole, x)), mgda, whole, parallel="objectives")),
        ]
        found = []
        for name, model, call in calls:
            model.zero_grad()
            step = call()
            found += [
                Comparison(f"{name}: weights", step.weights, want.weights),
                Comparison(f"{name}: Gramian", step.gramian, want.gramian),
                Comparison(f"{name}: gradients", flat_grad(model), flat_grad(want_model)),
            ]
    return found
