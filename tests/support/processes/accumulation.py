"""`accumulate` on several processes, compared with one step of one process on the union of all micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from paretograd.distributed import Traffic
from support.models import MODELS
from support.processes.common import Comparison, Tasks, agree, batch, case, flat_grad, mesh_of, task_losses
from support.processes.data_parallel import chosen, in_form, part, told_at_length
from support.processes.failures import Fails, told
from support.processes.objectives import owned
from support.processes.sharded import sharded, tensor_parallel

NAMES = ("depth", "edges", "labels")


def named(losses: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(NAMES, losses, strict=True))


def compared(name: str, model: nn.Module, step: pg.Step, losses: Callable[[nn.Module], Any]) -> list[Comparison]:
    """Weights, Gramian and gradients of a step, and those of one process on the whole batch."""
    other = Tasks()
    want = pg.backward(losses(other), pg.UPGrad(), parallel="none")
    return [
        Comparison(f"{name}: weights", step.weights, want.weights),
        Comparison(f"{name}: Gramian", step.gramian, want.gramian),
        Comparison(f"{name}: gradients", flat_grad(model), flat_grad(other)),
    ]


@case(1, 2, 4)
def accumulated(rank: int, size: int) -> list[Comparison]:
    """Three micro-batches a step under DDP, some within `no_sync`; nothing is sent before the step."""
    found = []
    for unused in (False, True):
        model = DistributedDataParallel(Tasks(), find_unused_parameters=unused)
        for t, given in enumerate((None, model, None)):
            x = batch(t, 12 * size)
            model.zero_grad()
            with pg.accumulate(given) as acc:
                for number, small in enumerate(part(x, rank, size).chunk(3)):
                    with model.no_sync() if number < t else nullcontext():
                        losses = task_losses(model(small))
                        with Traffic() as counted:
                            acc.add(named([loss / 3 for loss in losses]))
                    assert not counted.calls, counted.calls
                assert acc.count == 3
                with Traffic() as counted:
                    step = acc.step(pg.UPGrad())
                assert acc.count == 0
            assert told_at_length(counted) == (size > 1 and t == 0), counted.calls
            assert step.names == NAMES
            assert "micro-batches" in str(step.how)
            found += compared(f"step {t}", model, step, lambda net, x=x: task_losses(net(x)))
            found.append(agree("gradients", flat_grad(model)))
        for _ in range(2):
            with Traffic() as once:
                pg.backward(named(task_losses(model(part(x, rank, size)))), pg.UPGrad())
        assert sorted(once.calls) == sorted(counted.calls), (once.calls, counted.calls)
    return found


@case(2)
def accumulated_options(rank: int, size: int) -> list[Comparison]:
    """Parameters by name, a vector of losses, rows in another dtype, and no wrapper."""
    found, x = [], batch(0, 8 * size)
    for options in ("params", "shared", "specific", "vector"):
        model, other = Tasks(), Tasks()
        wrapped = DistributedDataParallel(model)
        acc = pg.accumulate(**chosen(model, options), device="cpu")
        for small in part(x, rank, size).chunk(2):
            acc.add(in_form([loss / 2 for loss in task_losses(wrapped(small))], options))
        step = acc.step(pg.MGDA())
        want = pg.backward(task_losses(other(x)), pg.MGDA(), **chosen(other, options), parallel="none")
        found.append(Comparison(f"{options}: weights", step.weights, want.weights))
        found.append(Comparison(f"{options}: gradients", flat_grad(model), flat_grad(other)))
    for dtype, tolerance in ((None, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        model, other = Tasks(), Tasks()
        acc = pg.accumulate(model, dtype=dtype, parallel="data")
        for small in part(x, rank, size).chunk(2):
            acc.add([loss / 2 for loss in task_losses(model(small))])
        step = acc.step(pg.UPGrad())
        want = pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
        found.append(Comparison(f"{dtype}: weights", step.weights, want.weights, tolerance))
        found.append(Comparison(f"{dtype}: gradients", flat_grad(model), flat_grad(other), tolerance))
    return found


@case()
def accumulated_uneven(rank: int, size: int) -> list[Comparison]:
    """Every micro-batch of every process has another size, and each process another number of them."""
    found = []
    for name, model in (("ddp", DistributedDataParallel(Tasks())), ("fsdp", sharded(mesh_of(size)))):
        for t in range(2):
            fixed = 3 if name == "fsdp" else None  # whose passes communicate
            counts = [[1 + (r + 2 * i + t) % 4 for i in range(fixed or 1 + r)] for r in range(size)]
            whole = batch(t, sum(map(sum, counts)))
            mine = whole.split([sum(each) for each in counts])[rank]
            model.zero_grad()
            with pg.accumulate() as acc:
                for small in mine.split(counts[rank]):
                    acc.add(task_losses(model(small)), samples=len(small))
                step = acc.step(pg.UPGrad())
            found += compared(f"{name}, step {t}", model, step, lambda net, whole=whole: task_losses(net(whole)))
    return found


@case(2)
def accumulated_samples_of_each_task(rank: int, size: int) -> list[Comparison]:
    """Losses that are means over samples of their own, of which some micro-batches and some processes have none."""
    x = batch(0, 8 * size)
    present = torch.tensor([[(i + k) % 3 != 0 and not (i < 8 and k == 1) for k in range(3)] for i in range(len(x))])

    def losses(net: nn.Module, x: Tensor, keep: Tensor) -> list[Tensor]:
        outputs = net(x)
        return [(outputs[k].square().sum(dim=1) * keep[:, k]).sum() / keep[:, k].sum().clamp(min=1) for k in range(3)]

    found = []
    for name, model in (("ddp", DistributedDataParallel(Tasks())), ("fsdp", sharded(mesh_of(size)))):
        with pg.accumulate(model) as acc:
            for small, keep in zip(part(x, rank, size).chunk(4), part(present, rank, size).chunk(4), strict=True):
                acc.add(losses(model, small, keep), samples=keep.sum(dim=0).tolist())
            step = acc.step(pg.UPGrad())
        found += compared(name, model, step, lambda net: losses(net, x, present))
    return found


@case()
def accumulated_objectives(rank: int, size: int) -> list[Comparison]:
    """Each process has some of the tasks; one may have none, whether it says so or not."""
    found, mine = [], owned(rank, size)
    for t in range(2):
        model, x = Tasks(), batch(t, 7)
        with pg.accumulate(model, parallel="objectives") as acc:
            for small in x.split(2):
                losses = task_losses(model(small))
                if mine:
                    acc.add({NAMES[k]: losses[k] for k in mine}, samples=len(small))
                elif t:
                    acc.add([])
            step = acc.step(pg.UPGrad())
        assert step.names == NAMES, step.names
        found += compared(f"step {t}", model, step, lambda net, x=x: task_losses(net(x)))
        found.append(agree("gradients", flat_grad(model)))
    return found


@case(1, 2, 4)
def accumulated_shards(rank: int, size: int) -> list[Comparison]:
    """Under `fully_shard`, on a mesh with replicas, and with tensor parallelism, where all have the same batch."""
    found, replicas = [], {1: 1, 2: 2, 4: 2}[size]
    models = {
        "fsdp": sharded(mesh_of(size)),
        "one group": fully_shard(Tasks(), mesh=mesh_of(size)),
        "hsdp": sharded(mesh_of(replicas, size // replicas, names=("replicas", "shards"))),
        "tp": tensor_parallel(mesh_of(size)),
    }
    for name, model in models.items():
        for t in range(2):
            x = batch(t, 8 * size)
            model.zero_grad()
            with pg.accumulate(model if t else None) as acc:
                for small in (x if name == "tp" else part(x, rank, size)).chunk(2):
                    acc.add(named([loss / 2 for loss in task_losses(model(small))]))
                step = acc.step(pg.UPGrad())
            assert step.names == NAMES
            found += compared(f"{name}, step {t}", model, step, lambda net, x=x: task_losses(net(x)))
    return found


@case(2)
def accumulated_models(rank: int, size: int) -> list[Comparison]:
    """All models of the engine's tests, twice the same batch on both processes."""
    found = []
    for name, build in MODELS.items():
        problem, other = build(), build()
        acc = pg.accumulate(problem.params, parallel="data")
        for _ in range(2):
            torch.manual_seed(1)
            acc.add(problem.losses())
        acc.step(pg.UPGrad())
        acc = pg.accumulate(other.params, parallel="none")
        for _ in range(2):
            torch.manual_seed(1)
            acc.add(other.losses())
        acc.step(pg.UPGrad())
        for k, (p, q) in enumerate(zip(problem.params, other.params, strict=True)):
            if q.grad is None:
                assert p.grad is None or not p.grad.any(), (name, k)
                continue
            got, want = (grad.to_dense() for grad in (p.grad, q.grad))
            if got.is_complex():
                got, want = torch.view_as_real(got), torch.view_as_real(want)
            found.append(Comparison(f"{name}: gradient {k}", got, want, 1e-9))
    return found


@case()
def accumulated_wrongly(rank: int, size: int) -> list[Comparison]:
    """An error of one process in a micro-batch, or in the step: all raise it in the step, and nothing changes."""
    odd, number = rank == size - 1, f"process {size - 1}"
    model, x = DistributedDataParallel(Tasks()), part(batch(0, 8 * size), rank, size)

    def losses(scale: float = 1.0) -> list[Tensor]:
        return [scale * loss for loss in task_losses(model(x))]

    def run(*parts: Any, rule: Any = None, samples: Any = None) -> Callable[[], pg.Step]:
        def call() -> pg.Step:
            with pg.accumulate() as acc:
                for small in parts:
                    acc.add(small, samples=samples)
                return acc.step(pg.UPGrad() if rule is None else rule)

        return call

    failing = [Fails.apply(loss) if odd else loss for loss in losses()]
    told(run(losses(), failing), pg.ProcessError, number, "nothing was changed", "the disk is full")
    detached = [loss.detach() for loss in losses()]
    swapped = dict(reversed(named(losses()).items()))
    told(run(losses(), detached if odd else losses()), pg.errors.InputError, "losses[0] has no graph", number)
    told(run(detached if odd else losses()), pg.errors.InputError, "losses[0] has no graph", number)
    told(run(*([] if odd else [losses()])), pg.ParameterError, "there are no rows yet", number)
    told(run(losses(), losses()[: 2 if odd else 3]), pg.ShapeError, "2 losses, the ones before it 3", number)
    told(run(losses()[: 2 if odd else 3]), pg.ProcessError, "number of losses", number)
    told(run(named(losses()), swapped if odd else named(losses())), pg.ParameterError, "losses named", number)
    told(run(swapped if odd else named(losses())), pg.ProcessError, "names of the losses", number)
    told(run(losses(), rule=pg.MGDA() if odd else pg.UPGrad()), pg.ProcessError, "different rules")
    told(run(losses(), rule="upgrad" if odd else pg.UPGrad()), pg.ParameterError, "give a rule", number)
    told(run(losses(), samples=3 if odd else None), pg.ProcessError, "samples")
    told(run(losses(), samples=0), pg.ParameterError, "no process has samples for objective 0, 1, 2")
    told(run(losses(), samples=[1, 2] if odd else [1, 2, 3]), pg.ParameterError, "2 numbers for 3 losses", number)
    bad = losses()
    bad[1] = bad[1] * (torch.nan if odd else 1.0)
    error = told(run(named(losses()), named(bad)), pg.NonFiniteGradientError, "objective 'edges'")
    assert error.objectives == [1]
    assert all(param.grad is None for param in model.parameters())
    # A micro-batch that failed is left out by those who go on.
    acc = pg.accumulate()
    acc.add(losses(), samples=8)
    acc.add(detached if odd else losses(), samples=8)
    told(lambda: acc.step(pg.UPGrad()), pg.errors.InputError, "has no graph", number)
    assert acc.count == (1 if odd else 2)
    step = acc.step(pg.UPGrad())
    weights = [2.0] * (size - 1) + [1.0]
    everything = batch(0, 8 * size)

    def weighted(net: nn.Module) -> list[Tensor]:
        parts = [[w * loss for loss in task_losses(net(part(everything, r, size)))] for r, w in enumerate(weights)]
        return [torch.stack(column).sum() / sum(weights) for column in zip(*parts, strict=True)]

    return compared("after an error", model, step, weighted)


@case(2)
def accumulated_shards_wrongly(rank: int, size: int) -> list[Comparison]:
    """Sharded parameters: all raise at once, because micro-batches communicate."""
    model, x = sharded(mesh_of(size)), part(batch(0, 4 * size), rank, size)

    def losses() -> list[Tensor]:
        return task_losses(model(x))

    acc = pg.accumulate()
    acc.add(losses())
    detached = [loss.detach() for loss in losses()]
    for _ in range(2):  # both are made: the forward pass communicates
        told(lambda: acc.add((losses(), detached)[rank]), pg.errors.InputError, "no graph", "process 1")
        told(lambda: acc.add(losses()[: 3 - rank]), pg.ProcessError, "number of losses", "process 1")
        acc.add(losses())
    told(lambda: acc.add(losses()[:2]), pg.ShapeError, "2 losses, the ones before it 3")
    told(lambda: acc.step(pg.MGDA() if rank else pg.UPGrad()), pg.ProcessError, "different rules")
    assert all(param.grad is None for param in model.parameters())
    step = acc.step(pg.UPGrad())
    return compared("after errors", model, step, lambda net: [3.0 * y for y in task_losses(net(batch(0, 4 * size)))])


@case(2)
def accumulated_without_a_wrapper(rank: int, size: int) -> list[Comparison]:
    """Nothing tells how the processes share a model; one of them may work alone."""
    model, other, x = Tasks(), Tasks(), batch(0, 8)

    def call() -> pg.Step:
        acc = pg.accumulate()
        acc.add(task_losses(model(x)))
        return acc.step(pg.UPGrad())

    told(call, pg.ParameterError, "parallel='data'")
    if rank:
        acc = pg.accumulate(parallel="none")
        for small in x.chunk(2):
            acc.add([loss / 2 for loss in task_losses(model(small))])
        acc.step(pg.UPGrad())
        pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    return [Comparison("gradients", flat_grad(model), flat_grad(other))]
