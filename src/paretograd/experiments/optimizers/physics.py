"""Physics-informed problems with known solutions: one network, and one loss for each condition of an equation.

A problem is declared data: a rectangle, its conditions, and the solution. The loss of a condition is its mean square
over random points (Raissi, Perdikaris and Karniadakis, 2019). The network is evaluated together with its derivatives
in the inputs, by the chain rule, so that the graph of a loss is that of one forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paretograd.experiments.optimizers.task import VALIDATION_SEED, Batch, Scores, seeded
from paretograd.problems import solutions
from paretograd.problems.fields import field_of

#: Width and number of the hidden layers.
_WIDTH, _DEPTH = 32, 3
#: Points on a side of the grid on which the error is measured.
_GRID = 100
#: How many times as many points as a batch a validation set has.
_VALIDATION = 8


class Condition(NamedTuple):
    """A condition that the solution meets on a part of the rectangle.

    Attributes:
        name: of its loss.
        size: number of points in a batch.
        place: maps points of the unit square, shape (n, 2), to the part.
        mismatch: zero for the solution; a function of the network and of the points.
    """

    name: str
    size: int
    place: Callable[[Tensor], Tensor]
    mismatch: Callable[[nn.Sequential, Tensor], Tensor]


@dataclass(frozen=True)
class Physics:
    """An equation on a rectangle.

    Attributes:
        name: on the command line.
        title: in tables.
        lower, upper: corners of the rectangle.
        conditions: one for each loss.
        solution: at points of shape (n, 2), in float64.
    """

    name: str
    title: str
    lower: tuple[float, float]
    upper: tuple[float, float]
    conditions: tuple[Condition, ...]
    solution: Callable[[Tensor], Tensor]

    def network(self, seed: int) -> nn.Sequential:
        """Return a tanh network, 2-32-32-32-1, with torch's initial weights for this seed."""
        hidden = [layer for pair in pairwise([2, *[_WIDTH] * _DEPTH]) for layer in ((nn.Linear, pair), nn.Tanh)]
        return seeded(seed, *hidden, (nn.Linear, (_WIDTH, 1)))

    def batch(self, generator: torch.Generator, times: int = 1) -> Batch:
        """Draw points for every condition, ``times`` as many as a batch has."""
        return tuple(
            condition.place(torch.rand(times * condition.size, 2, generator=generator, device="cpu"))
            for condition in self.conditions
        )

    def losses(self, network: nn.Sequential, batch: Batch) -> list[Tensor]:
        """Return the mean square of every condition's mismatch."""
        pairs = zip(self.conditions, batch, strict=True)
        return [condition.mismatch(network, points).square().mean() for condition, points in pairs]

    def scores(self, network: nn.Sequential) -> Scores:
        """Return the losses on validation points and the relative L2 distance from the solution on a grid."""
        points, truth = reference(self)
        with torch.no_grad():
            held_out = self.batch(torch.Generator().manual_seed(VALIDATION_SEED), _VALIDATION)
            losses = tuple(float(loss) for loss in self.losses(network, held_out))
            difference = value_of(network, points.float()).double() - truth
        return Scores(losses, float(difference.norm() / truth.norm()))


def value_of(network: nn.Sequential, points: Tensor) -> Tensor:
    """Evaluate a network at points of shape (n, 2)."""
    value: Tensor = network(points)
    return value[:, 0]


@cache
def reference(problem: Physics) -> tuple[Tensor, Tensor]:
    """Return the points of a grid and the solution there, in float64."""
    sides = [
        torch.linspace(low, high, _GRID, dtype=torch.float64, device="cpu")
        for low, high in zip(problem.lower, problem.upper, strict=True)
    ]
    points = torch.cartesian_prod(*sides)
    return points, problem.solution(points)


def _in(lower: tuple[float, float], upper: tuple[float, float]) -> Callable[[Tensor], Tensor]:
    """Map the unit square to a rectangle, or to one of its sides if a coordinate is the same in both corners."""
    low, high = torch.tensor(lower, device="cpu"), torch.tensor(upper, device="cpu")
    return lambda unit: low + (high - low) * unit


def _on_walls(lower: tuple[float, float], upper: tuple[float, float]) -> Callable[[Tensor], Tensor]:
    """Map the unit square to the two sides where the first coordinate is extreme."""
    inside = _in(lower, upper)
    return lambda unit: inside(torch.stack((unit[:, 0].round(), unit[:, 1]), dim=1))


def _on_all_sides(lower: tuple[float, float], upper: tuple[float, float]) -> Callable[[Tensor], Tensor]:
    """Map the unit square to the four sides of a rectangle."""
    inside = _in(lower, upper)

    def place(unit: Tensor) -> Tensor:
        side = (4.0 * unit[:, 0]).floor()
        end, flip = (side % 2.0), (side >= 2.0)
        return inside(
            torch.where(flip.unsqueeze(1), torch.stack((unit[:, 1], end), 1), torch.stack((end, unit[:, 1]), 1))
        )

    return place


def _burgers() -> Physics:
    """u_t + u u_x = nu u_xx for x in [-1, 1] and t in [0, 1], from -sin(pi x), with walls at zero."""
    lower, upper = (-1.0, 0.0), (1.0, 1.0)

    def residual(network: nn.Sequential, points: Tensor) -> Tensor:
        u, slope, u_xx = field_of(network, points, (1.0, 0.0))
        return (slope[:, 1] + u * slope[:, 0] - solutions.VISCOSITY * u_xx)[0]

    def initial(network: nn.Sequential, points: Tensor) -> Tensor:
        return value_of(network, points) + torch.sin(math.pi * points[:, 0])

    return Physics(
        name="burgers",
        title="Burgers",
        lower=lower,
        upper=upper,
        conditions=(
            Condition("residual", 256, _in(lower, upper), residual),
            Condition("initial", 64, _in(lower, (1.0, 0.0)), initial),
            Condition("boundary", 64, _on_walls(lower, upper), value_of),
        ),
        solution=solutions.burgers,
    )


def _helmholtz() -> Physics:
    """u_xx + u_yy + u = q on [-1, 1]^2 with zero boundary values; q belongs to u = sin(pi x) sin(2 pi y)."""
    lower, upper = (-1.0, -1.0), (1.0, 1.0)

    def solution(points: Tensor) -> Tensor:
        return torch.sin(math.pi * points[:, 0]) * torch.sin(2.0 * math.pi * points[:, 1])

    def residual(network: nn.Sequential, points: Tensor) -> Tensor:
        u, _, laplacian = field_of(network, points, (1.0, 1.0))
        return (laplacian + u)[0] - (1.0 - 5.0 * math.pi**2) * solution(points)

    return Physics(
        name="helmholtz",
        title="Helmholtz",
        lower=lower,
        upper=upper,
        conditions=(
            Condition("residual", 256, _in(lower, upper), residual),
            Condition("boundary", 128, _on_all_sides(lower, upper), value_of),
        ),
        solution=solution,
    )


def _klein_gordon() -> Physics:
    """u_tt - u_xx + u^3 = q on [0, 1]^2; q and all conditions belong to u = x cos(2 pi t) + (x t)^3."""
    lower, upper, omega = (0.0, 0.0), (1.0, 1.0), 2.0 * math.pi

    def solution(points: Tensor) -> Tensor:
        x, t = points.unbind(-1)
        return x * torch.cos(omega * t) + (x * t) ** 3

    def residual(network: nn.Sequential, points: Tensor) -> Tensor:
        x, t = points.unbind(-1)
        source = -(omega**2) * x * torch.cos(omega * t) + 6.0 * x * t * (x**2 - t**2) + solution(points) ** 3
        u, _, wave = field_of(network, points, (-1.0, 1.0))
        return (wave + u**3)[0] - source

    def initial(network: nn.Sequential, points: Tensor) -> Tensor:
        u, slope, _ = field_of(network, points, (0.0, 0.0))
        return torch.stack((u[0] - points[:, 0], slope[0, 1]))

    return Physics(
        name="klein-gordon",
        title="Klein-Gordon",
        lower=lower,
        upper=upper,
        conditions=(
            Condition("residual", 256, _in(lower, upper), residual),
            Condition("initial", 64, _in(lower, (1.0, 0.0)), initial),
            Condition("boundary", 64, _on_walls(lower, upper), lambda network, p: value_of(network, p) - solution(p)),
        ),
        solution=solution,
    )


#: The problems, by name.
PHYSICS: dict[str, Physics] = {made.name: made for made in (_burgers(), _helmholtz(), _klein_gordon())}
