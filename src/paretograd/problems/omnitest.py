"""Omnitest: sines and cosines, with 3^n equivalent Pareto sets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paretograd.checks import whole_number
from paretograd.problems.base import Problem
from paretograd.problems.spread import cube


def omnitest(n: int = 3) -> Problem:
    """The paper's second synthetic problem, on [0, 6]^n: three periods along each axis."""
    n = whole_number("omnitest", "n", n)

    def objectives(points: Tensor) -> Tensor:
        angles = math.pi * points
        return torch.stack([angles.sin().sum(-1), angles.cos().sum(-1)], -1)

    def closed_jacobian(points: Tensor) -> tuple[Tensor, Tensor]:
        angles = math.pi * points
        waves = torch.stack([angles.sin(), angles.cos()], -2)
        return waves.sum(-1), torch.stack([waves[..., 1, :], -waves[..., 0, :]], -2).mul_(math.pi)

    return Problem(
        name="omnitest",
        label="Omnitest",
        objectives=objectives,
        m=2,
        lower=torch.zeros(n, device="cpu"),
        upper=torch.full((n,), 6.0, device="cpu"),
        least=(-float(n), -float(n)),
        smoothness=math.pi**2,  # Hessians -pi^2 diag(sin(pi x)) and -pi^2 diag(cos(pi x)); attained at x_i = 1/2 and 0
        pareto_set=lambda count: _pareto_set(count, n),
        closed_jacobian=closed_jacobian,
        formula="f1 = sum_i sin(pi x_i),  f2 = sum_i cos(pi x_i)",
        note="Both objectives have many stationary points that are not optimal. The Pareto set is 3^n segments, one in "
        "each cell; its points are dealt to the cells in turn.",
        source="K. Deb, S. Tiwari. Omni-optimizer: A Generic Evolutionary Algorithm for Single and Multi-objective "
        "Optimization. European Journal of Operational Research 185(3), 2008",
    )


def _pareto_set(count: int, n: int) -> Tensor:
    """Return points x_i = t + 2 k_i with t in [1, 3/2] and k_i in {0, 1, 2}.

    (f2, f1) is a sum of n vectors on the unit circle, so it lies in the disc of radius n. It reaches the boundary only
    if all n vectors are equal: the front is the quarter of that circle between the two minima, at angles pi t.
    """
    t = 1.0 + 0.5 * cube(count, 1)
    index = torch.arange(count, device="cpu")
    # Beyond 3^39 cells an int64 overflows, but nobody requests that many points.
    cells = torch.stack([index // 3 ** min(i, 39) % 3 for i in range(n)], -1)
    return t + 2.0 * cells
