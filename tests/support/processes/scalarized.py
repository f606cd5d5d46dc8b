"""Rules that see the losses: their weights come from the losses of all processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from support.processes.common import (
    Comparison,
    Tasks,
    agree,
    batch,
    case,
    flat,
    flat_grad,
    mesh_of,
    sgd,
    whole,
)
from support.processes.failures import told

#: Rules for three positive losses, and the seed that a process gives to those that draw.
RULES: dict[str, Callable[[int], pg.Weighting]] = {
    "gls": lambda rank: pg.GLS(),
    "stch": lambda rank: pg.STCH(0.3, [0.2, 0.5, 0.3]),
    "tchebycheff": lambda rank: pg.Tchebycheff(),
    "uncertainty": lambda rank: pg.UncertaintyWeighting(3).double(),
    "rlw": lambda rank: pg.RLW(seed=7 + rank),
    "dwa": lambda rank: pg.DWA(),
    "famo": lambda rank: pg.FAMO(),
}


def positive(outputs: list[Tensor]) -> list[Tensor]:
    """Means over samples, all above 0, and not linear in the parameters."""
    a, b, c = outputs
    return [a.square().mean(), (b - 1.0).abs().mean(), 20.0 * (c - 2.0).square().mean()]


def train(
    model: nn.Module,
    name: str,
    rank: int,
    mine: Callable[[int, nn.Module], tuple[Any, dict[str, Any]]],
    everything: Callable[[int, nn.Module], Any],
    steps: int = 4,
    alone: nn.Module | None = None,
) -> list[Comparison]:
    """Some steps on several processes and on one, with the rule of the first."""
    other = copy.deepcopy(model) if alone is None else alone
    rule, same = RULES[name](rank), RULES[name](0)
    optimizers = [sgd(model, 0.05), sgd(other, 0.05)]
    own = [
        torch.optim.SGD(each.parameters(), lr=0.05) if len(list(each.parameters())) else None for each in (rule, same)
    ]
    found: list[Comparison] = []
    for t in range(steps):
        for optimizer in [*optimizers, *(each for each in own if each is not None)]:
            optimizer.zero_grad()
        losses, options = mine(t, model)
        step = pg.backward(losses, rule, **options)
        want = pg.backward(everything(t, other), same, parallel="none")
        for optimizer in [*optimizers, *(each for each in own if each is not None)]:
            optimizer.step()
        for each, net, of in ((rule, model, lambda t, net: mine(t, net)[0]), (same, other, everything)):
            if isinstance(each, pg.FAMO):
                each.update(of(t, net))
            if isinstance(each, pg.DWA):
                each.next_epoch()
        assert step.losses is not None
        assert want.losses is not None
        found += [
            Comparison(f"{name}: weights of step {t}", step.weights, want.weights),
            Comparison(f"{name}: losses of step {t}", step.losses, want.losses),
        ]
        if len(list(rule.parameters())):
            found.append(Comparison(f"{name}: gradient of s", rule.s.grad.clone(), same.s.grad.clone()))
            found.append(agree(f"{name}: s", rule.s.detach().clone()))
    found.append(Comparison(f"{name}: gradients", flat_grad(model), flat_grad(other)))
    found.append(Comparison(f"{name}: parameters", flat(model), flat(other)))
    found += [
        Comparison(f"{name}: {key}", value.cpu(), same.state_dict()[key].cpu())
        for key, value in rule.state_dict().items()
    ]
    return found


@case(1, 2, 4)
def scalarized_ddp(rank: int, size: int) -> list[Comparison]:
    found = []
    for name in RULES:
        model = Tasks()
        alone = copy.deepcopy(model)
        wrapped = DistributedDataParallel(model)
        found += train(
            wrapped,
            name,
            rank,
            lambda t, net: (positive(net(batch(t, 4 * size).chunk(size)[rank])), {}),
            lambda t, net: positive(net(batch(t, 4 * size))),
            alone=alone,
        )
        found.append(agree(f"{name}: parameters", flat(model)))
    return found


@case()
def scalarized_uneven_batches(rank: int, size: int) -> list[Comparison]:
    """Another number of samples on each process, none on one of them, whose losses are NaN."""
    found = []
    for name in ("gls", "famo"):
        model = Tasks()

        def sizes(t: int) -> list[int]:
            return [(3 * r + t) % 5 for r in range(size)]

        def mine(t: int, net: nn.Module) -> tuple[Any, dict[str, Any]]:
            x = batch(t, sum(sizes(t))).split(sizes(t))[rank]
            return torch.stack(positive(net(x))), {"samples": len(x), "parallel": "data", "params": net}

        found += train(model, name, rank, mine, lambda t, net: positive(net(batch(t, sum(sizes(t))))))
    return found


@case()
def scalarized_objectives(rank: int, size: int) -> list[Comparison]:
    """Each process has some of the losses, and one of four has none."""
    owned = {2: [[0, 1], [2]], 4: [[0], [1], [2], []]}[size][rank]
    found = []
    for name in RULES:
        model = Tasks()

        def mine(t: int, net: nn.Module) -> tuple[Any, dict[str, Any]]:
            losses = positive(net(batch(t, 8)))
            return [losses[k] for k in owned], {"parallel": "objectives", "params": net}

        found += train(model, name, rank, mine, lambda t, net: positive(net(batch(t, 8))))
    return found


@case()
def scalarized_shards(rank: int, size: int) -> list[Comparison]:
    found = []
    for name in RULES:
        model = Tasks()
        alone = copy.deepcopy(model)
        mesh = mesh_of(size)
        for part in [*model.trunk, *model.heads]:
            if list(part.parameters()):
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        found += train(
            model,
            name,
            rank,
            lambda t, net: (positive(net(batch(t, 4 * size).chunk(size)[rank])), {}),
            lambda t, net: positive(net(batch(t, 4 * size))),
            alone=alone,
        )
    return found


@case(2)
def scalarized_tensor_parallel(rank: int, size: int) -> list[Comparison]:
    """All processes hold the same samples, and parts of the parameters."""
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for place, param in enumerate(net.parameters()):
        param.data = torch.sin(torch.arange(param.numel(), dtype=torch.float64) + place).reshape(param.shape) / 2.0
    alone = copy.deepcopy(net)
    parallelize_module(net, mesh_of(size), {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def losses(t: int, net: nn.Module) -> list[Tensor]:
        y = net(batch(t, 6))
        return list((y - 1.0).square().mean(dim=0))

    step = pg.backward(losses(0, net), pg.GLS())
    want = pg.backward(losses(0, alone), pg.GLS(), parallel="none")
    return [
        Comparison("weights", step.weights, want.weights),
        Comparison("gradients", flat_grad(net), flat_grad(alone)),
    ]


class _Broken(torch.autograd.Function):
    """A loss whose backward pass fails."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ValueError("no way back")


@case()
def scalarized_errors(rank: int, size: int) -> list[Comparison]:
    """One process has a loss or a gradient at fault: all raise, name it, and change nothing."""
    model, rule = Tasks(), pg.DWA()
    options = {"params": model, "parallel": "data"}

    def losses(factor: float = 1.0, rooted: bool = False) -> dict[str, Tensor]:
        found = positive(model(batch(rank, 4)))
        if rank == size - 1:
            found[1] = found[1] * factor
            weight = model.trunk[0].weight
            found[2] = found[2] + (weight - weight.detach()).sum().sqrt() if rooted else found[2]
        return dict(zip(("depth", "edges", "labels"), found, strict=True))

    for given, objective in ((losses(math.nan), 1), (losses(math.inf), 1), (losses(rooted=True), 2)):
        error = told(lambda given=given: pg.backward(given, rule, **options), pg.NonFiniteGradientError)
        assert error.objectives == [objective], error.objectives
        step = pg.backward(
            losses(math.nan) if objective == 1 else losses(rooted=True),
            rule,
            nonfinite="propagate",
            **options,
        )
        assert not step.finite
        assert not bool(torch.isfinite(flat_grad(model)).all())
        model.zero_grad()
    assert int(rule.state_dict()["_steps"]) == 0
    told(lambda: pg.backward(losses(-1e3), pg.GLS(), **options), pg.InputError, "objective 'edges'")
    told(lambda: pg.backward(losses(), pg.STCH() if rank else pg.GLS(), **options), pg.ProcessError, "different rules")
    engine = {"engine": "jacobian"} if rank == 0 else {}
    told(lambda: pg.backward(losses(), rule, **options, **engine), pg.ParameterError, "engine")
    used = pg.FAMO()
    used.weights([1.0] * (2 if rank else 3))
    told(lambda: pg.backward(losses(), used, **options), pg.ParameterError, "2 losses")
    broken = losses()
    broken["edges"] = _Broken.apply(broken["edges"]) if rank == 0 else broken["edges"]
    told(lambda: pg.backward(broken, rule, **options), pg.ProcessError, "no way back")
    assert all(param.grad is None for param in model.parameters())
    famo = pg.FAMO()
    pg.backward(losses(), famo, **options)
    before = famo.state_dict()["_logits"].clone()
    for bad, kind in (
        ([1.0, 2.0], pg.ParameterError),
        ("abc", pg.DTypeError),
        ([1.0, 2.0, math.nan], pg.NonFiniteGradientError),
        ([1.0, -100.0, 1.0], pg.InputError),
    ):
        told(lambda bad=bad: famo.update(bad if rank == 0 else [1.0, 2.0, 3.0]), kind)
    famo.update([1.0, 2.0, 3.0])
    dist.barrier()
    assert not torch.equal(famo.state_dict()["_logits"], before)
    return [agree("logits", famo.state_dict()["_logits"].to(flat(model)))]


@case(2)
def scalarized_state_of_the_first(rank: int, size: int) -> list[Comparison]:
    """Learned weights and histories that differ are those of the first process from the next step on."""
    model = Tasks()
    rule, famo = pg.UncertaintyWeighting(3), pg.FAMO()
    with torch.no_grad():
        rule.s += rank
    if rank == 0:
        for _ in range(3):
            famo.weights([1.0, 2.0, 3.0])
            famo.update([0.5, 2.0, 3.0])
    for each in (rule, famo):
        pg.backward(positive(model(batch(rank, 4))), each, model, parallel="data")
    found = [agree(key, value.double()) for each in (rule, famo) for key, value in each.state_dict().items()]
    return [*found, Comparison("s", rule.s.detach(), torch.zeros(3)), agree("gradient", whole(flat_grad(model)))]


@case(2)
def scalarized_errors_with_shards(rank: int, size: int) -> list[Comparison]:
    """Errors before and after the pass leave `fully_shard` ready for the next step."""
    model = Tasks()
    alone = copy.deepcopy(model)
    for part in [*model.trunk[::2], *model.heads]:
        fully_shard(part, mesh=mesh_of(size))
    fully_shard(model, mesh=mesh_of(size))

    def losses(factor: float = 1.0, root: bool = False) -> list[Tensor]:
        outputs = model(batch(rank, 4))
        if rank == 1 and root:  # a finite loss with an infinite gradient, in the second head only
            outputs[1] = outputs[1] + (outputs[1] - outputs[1].detach()).abs().sum().sqrt()
        found = positive(outputs)
        found[1] = found[1] * (factor if rank == 1 else 1.0)
        return found

    for factor, root, kind, words in (
        (math.nan, False, pg.NonFiniteGradientError, "loss of objective 1"),
        (-1e3, False, pg.InputError, "objective 1"),
        (1.0, True, pg.NonFiniteGradientError, "gradient of objective"),
    ):
        told(lambda f=factor, r=root: pg.backward(losses(f, r), pg.GLS()), kind, words)
        assert all(param.grad is None for param in model.parameters())
    step = pg.backward(losses(math.nan), pg.GLS(), nonfinite="propagate")
    assert not step.finite
    assert not bool(torch.isfinite(flat_grad(model)).all())
    model.zero_grad()
    pg.backward(losses(), pg.GLS())
    both = [positive(alone(batch(r, 4))) for r in range(size)]
    pg.backward([sum(pair) / size for pair in zip(*both, strict=True)], pg.GLS(), parallel="none")
    return [Comparison("gradients", flat_grad(model), flat_grad(alone))]
