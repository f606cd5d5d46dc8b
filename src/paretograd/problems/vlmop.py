"""VLMOP1, VLMOP2 and Fonseca-Fleming: two distances, plain or under an exponential."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paretograd.checks import whole_number
from paretograd.problems.base import Problem
from paretograd.problems.gradients import Constants, by_numpy
from paretograd.problems.spread import cube

_VAN_VELDHUIZEN = "D. A. Van Veldhuizen, G. B. Lamont. Multiobjective Evolutionary Algorithm Test Suites. ACM SAC, 1999"


def vlmop1(n: int = 1) -> Problem:
    """Two means of squares, with minimisers at 0 and at (2, ..., 2)."""
    n = whole_number("vlmop1", "n", n)

    def objectives(points: Tensor) -> Tensor:
        return torch.stack([points.square().mean(-1), (points - 2.0).square().mean(-1)], -1)

    return Problem(
        name="vlmop1",
        label="VLMOP1",
        objectives=objectives,
        m=2,
        lower=torch.full((n,), -2.0, device="cpu"),
        upper=torch.full((n,), 4.0, device="cpu"),
        least=(0.0, 0.0),
        smoothness=2.0 / n,  # both Hessians are (2/n) I, everywhere
        convex=True,
        pareto_set=lambda count: 2.0 * cube(count, 1).expand(-1, n),
        formula="f1 = mean_i x_i^2,  f2 = mean_i (x_i - 2)^2",
        note="With n = 1 the problem of Schaffer (1985). Some libraries scale it, or call another pair of distances by "
        "this name.",
        source=_VAN_VELDHUIZEN,
    )


def vlmop2(n: int = 4) -> Problem:
    """The paper's first synthetic problem: Fonseca and Fleming's objectives on [-2, 2]^n."""
    return _gaussians(
        "vlmop2",
        "VLMOP2",
        n,
        bound=2.0,
        note="The objectives of fonseca, on a smaller box. Far from both minimisers the gradients vanish.",
        source=_VAN_VELDHUIZEN,
    )


def fonseca(n: int = 3) -> Problem:
    """Fonseca and Fleming's problem: VLMOP2's objectives on [-4, 4]^n."""
    return _gaussians(
        "fonseca",
        "Fonseca-Fleming",
        n,
        bound=4.0,
        note="The objectives of vlmop2, on a larger box, most of which is a plateau: the gradients vanish there.",
        source="C. M. Fonseca, P. J. Fleming. An Overview of Evolutionary Algorithms in Multiobjective Optimization. "
        "Evolutionary Computation 3(1), 1995",
    )


def _gaussians(name: str, label: str, n: int, bound: float, note: str, source: str) -> Problem:
    n = whole_number(name, "n", n)
    corner = torch.full((n,), 1.0 / math.sqrt(n), dtype=torch.float64, device="cpu")
    constants = Constants(torch.stack([corner, -corner]))

    def objectives(points: Tensor) -> Tensor:
        (centres,) = constants.like(points)
        return -torch.expm1(-(points.unsqueeze(-2) - centres).square().sum(-1))

    def losses_and_gradients(xp: Any, points: Any, centres: Any) -> tuple[Any, Any]:
        offsets = points[..., None, :] - centres
        exponents = -(offsets * offsets).sum(-1)
        losses = -xp.expm1(exponents)  # accurate near a minimiser, where 1 - exp cancels
        return losses, offsets * (2.0 * xp.exp(exponents))[..., None]

    return Problem(
        name=name,
        label=label,
        objectives=objectives,
        m=2,
        lower=torch.full((n,), -bound, device="cpu"),
        upper=torch.full((n,), bound, device="cpu"),
        least=(0.0, 0.0),
        # With z = x - centre the Hessian is 2 exp(-|z|^2) (I - 2 z z'): its eigenvalues are 2 exp(-|z|^2) across z and
        # 2 exp(-|z|^2) (1 - 2 |z|^2) along it, which lies between -4 exp(-3/2) = -0.89 and 2. So L = 2, on all of R^n,
        # and the minimisers attain it.
        smoothness=2.0,
        # Both losses grow with the distance from their centre, so the segment between the centres is optimal.
        pareto_set=lambda count: (1.0 - 2.0 * cube(count, 1)) * corner,
        closed_jacobian=lambda points: by_numpy(losses_and_gradients, points, constants),
        formula="f1 = 1 - exp(-sum_i (x_i - 1/sqrt(n))^2),  f2 = 1 - exp(-sum_i (x_i + 1/sqrt(n))^2)",
        note=note,
        source=source,
    )
