"""A model with a trunk and heads, the batch of a step, and the single process to compare with."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import paretograd as pg

#: Where the models are: ``cpu`` or ``cuda``. The worker makes it torch's default.
DEVICE = os.environ.get("PARETOGRAD_TEST_DEVICE", "cpu")


class Comparison(NamedTuple):
    """What a case found, and what one process finds."""

    name: str
    got: Tensor
    want: Tensor
    tolerance: float = 1e-10


Case = Callable[[int, int], list[Comparison]]
CASES: dict[str, Case] = {}
SIZES: dict[str, set[int]] = {}


def case(*sizes: int) -> Callable[[Case], Case]:
    """Add a case to the table, for these numbers of processes."""

    def add(run: Case) -> Case:
        CASES[run.__name__] = run
        SIZES[run.__name__] = set(sizes or (2, 4))
        return run

    return add


class Tasks(nn.Module):
    """A trunk, and a head for each of three tasks."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()).to(dtype)
            self.heads = nn.ModuleList([nn.Linear(8, 4).to(dtype) for _ in range(3)])

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.trunk(x)
        return [head(z) for head in self.heads]


def task_losses(outputs: list[Tensor]) -> list[Tensor]:
    """Means over samples, of three kinds."""
    a, b, c = outputs
    return [a.square().mean(), (b - 1.0).abs().mean(), -(c.sin().mean())]


def batch(step: int, count: int, width: int = 5) -> Tensor:
    """The whole batch of a step, the same on every process."""
    generator = torch.Generator("cpu").manual_seed(100 + step)
    return torch.randn(count, width, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)


def mesh_of(*shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """The processes in this shape."""
    return init_device_mesh(DEVICE, shape, mesh_dim_names=names)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([whole(p.detach()).reshape(-1) for p in model.parameters()])


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def flat_grad(model: nn.Module) -> Tensor:
    return torch.cat(
        [whole(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).double() for p in model.parameters()]
    )


def sgd(model: nn.Module, lr: float) -> torch.optim.SGD:
    """Parameter by parameter: to update all at once, as on a GPU by default, refuses DTensors beside plain tensors."""
    return torch.optim.SGD(model.parameters(), lr=lr, foreach=False)


class Alone:
    """The same training in one process, on the whole batch."""

    def __init__(self, model: nn.Module, rule: pg.Aggregator, lr: float = 0.1) -> None:
        self.model, self.rule = copy.deepcopy(model), rule
        self.optimizer = sgd(self.model, lr)

    def step(self, losses: Callable[[nn.Module], Any], **options: Any) -> pg.Step:
        self.optimizer.zero_grad()
        step = pg.backward(losses(self.model), self.rule, parallel="none", **options)
        self.optimizer.step()
        return step


def train(
    model: nn.Module,
    alone: Alone,
    rule: pg.Aggregator,
    mine: Callable[[int, nn.Module], tuple[Any, dict[str, Any]]],
    everything: Callable[[int, nn.Module], Any],
    steps: int = 3,
    tolerance: float = 1e-10,
    lr: float = 0.1,
    alone_options: dict[str, Any] | None = None,
) -> list[Comparison]:
    """Some steps on several processes and on one; weights, gradients and parameters to compare.

    Args:
        model: this process's.
        alone: the other one.
        rule: this process's.
        mine: losses of a step here, and more arguments for `backward`.
        everything: losses of the whole batch.
        steps: how many.
        tolerance: for all comparisons.
        lr: the step size of both.
        alone_options: arguments of the single process.
    """
    optimizer = sgd(model, lr)
    found = []
    for t in range(steps):
        optimizer.zero_grad()
        losses, options = mine(t, model)
        step = pg.backward(losses, rule, **options)
        optimizer.step()
        other = alone.step(lambda net, t=t: everything(t, net), **(alone_options or {}))
        found += [
            Comparison(f"weights of step {t}", step.weights, other.weights, tolerance),
            Comparison(f"Gramian of step {t}", step.gramian, other.gramian, tolerance),
        ]
    found.append(Comparison("gradients of the last step", flat_grad(model), flat_grad(alone.model), tolerance))
    found.append(Comparison("parameters", flat(model), flat(alone.model), tolerance))
    return found


def agree(name: str, values: Tensor) -> Comparison:
    """That all processes have the same, to the last bit."""
    values = values.contiguous().to(DEVICE)
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return Comparison(f"{name}, on all processes", torch.stack(parts), values.expand(len(parts), *values.shape), 0.0)
