"""What one process sees, all of them raise, at once; and rules with a state keep the same state."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import Comparison, Tasks, agree, batch, case, flat, flat_grad, mesh_of, task_losses
from support.processes.data_parallel import part
from support.processes.sharded import sharded, tensor_parallel

#: Seconds within which an error must have reached everyone: far below the patience of the process group.
SOON = 30.0


def told(call: Callable[[], Any], kind: type[Exception], *words: str) -> Exception:
    """The error of a call, which must be of this kind, hold these words, come soon, and be the same everywhere."""
    begin = time.perf_counter()
    error: Exception | None = None
    try:
        call()
    except Exception as found:  # noqa: BLE001
        error = found
    assert type(error) is kind, repr(error)
    assert all(word in str(error) for word in words), str(error)
    assert time.perf_counter() - begin < SOON
    messages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, str(error))
    assert len(set(messages)) == 1, messages
    return error


def models(size: int) -> list[tuple[str, nn.Module]]:
    return [
        ("ddp", DistributedDataParallel(Tasks())),
        ("fsdp", sharded(mesh_of(size))),
        ("tp", tensor_parallel(mesh_of(size))),
    ]


@case()
def not_finite(rank: int, size: int) -> list[Comparison]:
    """The last process has NaN in one loss: all name it, none changes anything, and the next step works."""
    for name, model in models(size):
        x = part(batch(0, 4 * size), rank, size) if name != "tp" else batch(0, 8)

        def losses(bad: bool, model: nn.Module = model, x: Tensor = x, name: str = name) -> list[Tensor]:
            found = task_losses(model(x))
            if bad and (rank == size - 1 or name == "tp"):
                found[1] = found[1] * float("nan")
            return found

        pg.backward(losses(False), pg.UPGrad())
        before = flat_grad(model)
        error = told(lambda: pg.backward(losses(True), pg.UPGrad()), pg.NonFiniteGradientError, "objective 1")
        assert error.objectives == [1], name
        assert torch.equal(flat_grad(model), before), name
        told(lambda: pg.gramian(losses(True)), pg.NonFiniteGradientError, "objective 1")
        step = pg.backward(losses(True), pg.UPGrad(), nonfinite="propagate")
        assert step.weights.isnan().all(), name
        assert not step.finite, name
        assert all(value != value for value in step.metrics().values()), name
        assert not flat_grad(model).isfinite().all(), name
        model.zero_grad()
        with pg.accumulate(model, nonfinite="propagate") as acc:
            for bad in (False, True):
                acc.add(losses(bad))
            assert not acc.step(pg.UPGrad()).finite, name
        assert not flat_grad(model).isfinite().all(), name
        model.zero_grad()
        pg.backward(losses(False), pg.UPGrad())
        assert flat_grad(model).isfinite().all(), name
    return []


@case(2)
def not_finite_in_a_head(rank: int, size: int) -> list[Comparison]:
    """A gradient that is infinite in a parameter of its own task only."""
    for _, model in models(size)[:2]:
        x = part(batch(0, 4 * size), rank, size)
        scale = float("inf") if rank == 0 else 1.0

        def losses(model: nn.Module = model, x: Tensor = x, scale: float = scale) -> list[Tensor]:
            a, b, c = model(x)
            return [a.mean(), b.mean(), c.sum() * scale]

        error = told(lambda: pg.backward(losses(), pg.UPGrad()), pg.NonFiniteGradientError)
        assert error.objectives == [2]
    return []


def _broken(losses: list[Tensor], fails: bool) -> Iterator[Tensor]:
    yield losses[0]
    if fails:
        raise LookupError("out of losses")
    yield from losses[1:]


def _named(losses: list[Tensor], order: Iterable[int]) -> dict[str, Tensor]:
    return {f"task {k}": losses[k] for k in order}


@case()
def wrong_on_one(rank: int, size: int) -> list[Comparison]:
    """Another number of losses, no graph, another rule, other arguments: on the last process alone."""
    odd = rank == size - 1
    order = (2, 1, 0) if odd else (0, 1, 2)
    for name, model in models(size)[: 3 if size == 2 else 1]:
        x = part(batch(0, 4 * size), rank, size) if name != "tp" else batch(0, 8)

        def losses(model: nn.Module = model, x: Tensor = x) -> list[Tensor]:
            return task_losses(model(x))

        number = f"process {size - 1}"
        told(lambda: pg.backward(losses()[: 2 if odd else 3], pg.UPGrad()), pg.ProcessError, "number of losses", number)
        told(
            lambda: pg.backward([loss.detach() for loss in losses()] if odd else losses(), pg.UPGrad()),
            pg.errors.InputError,
            "losses[0] has no graph",
            number,
        )
        told(lambda: pg.backward(losses()[: 0 if odd else 3], pg.UPGrad()), pg.ShapeError, "losses is empty", number)
        told(lambda: pg.backward(losses(), pg.MGDA() if odd else pg.UPGrad()), pg.ProcessError, "different rules")
        told(lambda: pg.backward(losses(), pg.UPGrad(), samples=3 if odd else None), pg.ProcessError, "samples")
        told(lambda: pg.backward(losses(), pg.UPGrad(), samples=-1), pg.ParameterError, "samples=-1")
        told(lambda: pg.backward(losses(), pg.UPGrad(), samples=0), pg.ParameterError, "no process has samples")
        told(lambda: pg.backward(losses(), pg.UPGrad(), samples=2.5), pg.ParameterError, "samples=2.5")
        # Both are made: the forward pass may communicate.
        told(lambda: pg.backward((losses(), "losses")[odd], pg.UPGrad()), pg.DTypeError, "is a str", number)
        told(lambda: pg.backward(losses(), pg.UPGrad(), "all" if odd else None), pg.DTypeError, "holds a str", number)
        told(lambda: pg.backward(_broken(losses(), odd), pg.UPGrad()), pg.ProcessError, "out of losses", number)
        told(lambda: pg.backward(losses(), pg.UPGrad), pg.ParameterError, "give a rule")
        told(lambda: pg.backward(_named(losses(), order), pg.UPGrad()), pg.ProcessError, "names of the losses", number)
        told(
            lambda: pg.backward(_named(losses(), range(3)), pg.UPGrad(), samples=[0, 4, 0]),
            pg.ParameterError,
            "objective 'task 0', 'task 2'",
        )
        pg.backward(losses(), pg.UPGrad())
    return []


class Fails(torch.autograd.Function):
    """An operation that fails on the way back."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise OSError("the disk is full")


@case()
def fails_on_the_way_back(rank: int, size: int) -> list[Comparison]:
    """An error within the backward pass of one process, which the others could wait for in vain."""
    model = DistributedDataParallel(Tasks())

    def losses() -> list[Tensor]:
        z = model.module.trunk(part(batch(0, 4 * size), rank, size))
        return task_losses([head(Fails.apply(z) if rank == 0 else z) for head in model.module.heads])

    for _ in range(2):
        told(lambda: pg.backward(losses(), pg.UPGrad()), pg.ProcessError, "process 0", "the disk is full")
    assert all(param.grad is None for param in model.parameters())
    return []


@case(2)
def nothing_tells(rank: int, size: int) -> list[Comparison]:
    """A model without a wrapper: an error unless the caller says what is meant."""
    model, other = Tasks(), Tasks()
    x = batch(0, 4 * size)
    told(lambda: pg.backward(task_losses(model(x)), pg.UPGrad()), pg.ParameterError, "parallel='data'")
    told(lambda: pg.gramian(task_losses(model(x))), pg.ParameterError, "parallel='data'")
    told(lambda: pg.backward(task_losses(model(x)), pg.UPGrad(), parallel="data"), pg.ParameterError, "needs params")
    step = pg.backward(task_losses(model(part(x, rank, size))), pg.UPGrad(), model, parallel="data")
    want = pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    late = DistributedDataParallel(model)  # that nothing was known before does no harm
    pg.backward(task_losses(late(part(x, rank, size))), pg.UPGrad())
    alone = Tasks()
    if rank == 0:  # works alone, while the others do nothing
        pg.backward(task_losses(alone(x)), pg.UPGrad(), parallel="none")
    wrapped = DistributedDataParallel(Tasks())
    leaf = nn.Parameter(torch.ones(5, dtype=torch.float64))
    told(lambda: pg.backward(task_losses(wrapped(x * leaf)), pg.UPGrad()), pg.ParameterError, "outside the Distr")
    pg.backward(task_losses(wrapped(x * leaf)), pg.UPGrad(), wrapped)
    assert leaf.grad is None
    static = DistributedDataParallel(Tasks(), static_graph=True)
    told(lambda: pg.backward(task_losses(static(x)), pg.UPGrad()), pg.ParameterError, "static_graph=True")
    told(
        lambda: pg.backward(wrapped(x)[0].square().mean(dim=1), pg.UPGrad(), per_sample=True),
        pg.ParameterError,
        "parallel='objectives'",
    )
    return [
        Comparison("weights", step.weights, want.weights),
        Comparison("gradients, twice", flat_grad(model), 2.0 * flat_grad(other)),
    ]


@case(2)
def wrapped_without_notice(rank: int, size: int) -> list[Comparison]:
    """A copy of a wrapped model, which torch makes without a word: an error until the model is passed once."""
    first, other = DistributedDataParallel(Tasks()), Tasks()
    model = copy.deepcopy(first)
    x = batch(0, 4 * size)

    def losses() -> list[Tensor]:
        return task_losses(model(part(x, rank, size)))

    words = (pg.ParameterError, "nothing says how they share this model", "or copied, pass that as params")
    told(lambda: pg.backward(losses(), pg.UPGrad()), *words)
    told(lambda: pg.backward(losses(), pg.UPGrad(), model.parameters()), *words)
    assert all(param.grad is None for param in model.parameters())
    for params in (nn.ModuleList([model]), None, model):
        model.zero_grad()
        other.zero_grad()
        step = pg.backward(losses(), pg.UPGrad(), params)
        want = pg.backward(task_losses(other(x)), pg.UPGrad(), parallel="none")
    return [
        Comparison("weights", step.weights, want.weights),
        Comparison("gradients", flat_grad(model), flat_grad(other)),
    ]


@case(2)
def other_parameters(rank: int, size: int) -> list[Comparison]:
    """Parameters of the same shapes in another order on one process are not mixed up."""
    model, x = Tasks(), part(batch(0, 4 * size), rank, size)
    heads = list(model.heads)[::-1] if rank else list(model.heads)
    params = [*model.trunk.parameters(), *(param for head in heads for param in head.parameters())]
    words = (pg.ProcessError, "other values on process 1", "Give the model as params")
    told(lambda: pg.backward(task_losses(model(x)), pg.UPGrad(), params, parallel="data"), *words)
    told(lambda: pg.gramian(task_losses(model(x)), params, parallel="data"), *words)
    torch.manual_seed(rank)
    other = nn.Linear(5, 3).double()  # that nobody made equal
    told(lambda: pg.backward(other(x).square().mean(dim=0), pg.UPGrad(), other, parallel="data"), *words)
    # Two towers of the same shapes, which the processes reach in another order.
    towers = [DistributedDataParallel(Tasks(seed)) for seed in (1, 2)]

    def losses() -> list[Tensor]:
        y, z = (tower(x)[0] for tower in towers)
        return [y.square().mean() if rank == 0 else 0.0 * z.sum(), (y * z).sin().mean() + y.mean()]

    told(lambda: pg.backward(losses(), pg.UPGrad(), samples=[4 * (rank == 0), 4]), *words)
    every = [param for tower in towers for param in tower.parameters()]
    pg.backward(losses(), pg.UPGrad(), every, samples=[4 * (rank == 0), 4])
    return [agree("gradients of both towers", torch.cat([flat_grad(tower) for tower in towers]))]


@case(2)
def one_without_a_model(rank: int, size: int) -> list[Comparison]:
    """Losses that reach no parameter, on one process; samples= says that others take part, so that they are told."""
    model, x = DistributedDataParallel(Tasks()), part(batch(0, 4 * size), rank, size)
    pg.backward(task_losses(model(x)), pg.UPGrad(), samples=4)
    losses = [torch.zeros((), requires_grad=True) for _ in range(3)] if rank else task_losses(model(x))
    told(lambda: pg.backward(losses, pg.UPGrad(), samples=4 * (rank == 0)), pg.ParameterError, "process 1")
    with model.join():
        told(lambda: pg.backward(task_losses(model(x)), pg.UPGrad()), pg.ParameterError, "join()")
    return []


@case(4)
def not_a_member(rank: int, size: int) -> list[Comparison]:
    """A process outside of the group that it gives."""
    group, model = dist.new_group([0, 1]), Tasks()
    losses = task_losses(model(batch(rank, 4)))
    if rank < 2:
        pg.backward(losses, pg.UPGrad(), model, parallel="data", process_group=group)
        return []
    text = ""
    try:
        pg.backward(losses, pg.UPGrad(), model, parallel="data", process_group=group)
    except pg.ParameterError as error:
        text = str(error)
    assert f"process {rank} is not in" in text
    return []


@case(2)
def another_rule(rank: int, size: int) -> list[Comparison]:
    """Rules of the same name with other parameters, with and without a state; seeds may differ."""
    model, x = DistributedDataParallel(Tasks()), part(batch(0, 4 * size), rank, size)
    capped = pg.CappedMGDA(eps=0.05 if rank else 0.9)
    for rule in (capped, pg.Blend([pg.RGW(), capped]), pg.Mixed([pg.RGW(), capped], pg.Random())):
        told(lambda rule=rule: pg.backward(task_losses(model(x)), rule), pg.ProcessError, "different rules")
    rule = pg.Mixed([pg.RGW(seed=rank), pg.UPGrad()], pg.Random())
    return [agree("weights", pg.backward(task_losses(model(x)), rule).weights)]


@case(2)
def rules_with_a_state(rank: int, size: int) -> list[Comparison]:
    """Rules that draw numbers draw the same ones everywhere, whatever the seeds were, and so do their states."""
    torch.manual_seed(rank)
    found = []
    rules = [
        pg.RGW(),
        pg.PCGrad(order="shuffled"),
        pg.Mixed([pg.RGW(), pg.UPGrad()], pg.Random()),
        pg.Mixed([pg.MGDA(), pg.UPGrad(), pg.DualProj()]),
    ]
    for kind, rule in [("ddp", rule) for rule in rules] + [("fsdp", rules[0])]:
        model = dict(models(size)[:2])[kind]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for t in range(3):
            optimizer.zero_grad()
            step = pg.backward(task_losses(model(part(batch(t, 4 * size), rank, size))), rule)
            optimizer.step()
            found.append(agree(f"{rule.name}: weights of step {t}", step.weights))
        states: list[Any] = [None] * size
        dist.all_gather_object(states, repr(rule.state_dict()))
        assert len(set(states)) == 1, rule
        found.append(agree(f"{rule.name}: parameters", flat(model)))
    return found
