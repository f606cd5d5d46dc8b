"""ZDT1 to ZDT4 and ZDT6: one position x_1, n - 1 distances, f2 = g h(f1, g). ZDT5 is defined on bit strings.

All but ZDT2 have an infinite slope somewhere on the boundary of the box, and hence no gradient there and no smoothness
constant. In ZDT1, 3 and 4 it is the square root of f1 / g at x_1 = 0; to the left of that it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.checks import whole_number
from paretograd.problems.base import Problem
from paretograd.problems.spread import cube

_SOURCE = (
    "E. Zitzler, K. Deb, L. Thiele. Comparison of Multiobjective Evolutionary Algorithms: Empirical Results. "
    "Evolutionary Computation 8(2), 2000"
)
_SUM = "g = 1 + 9 mean_{i>1} x_i"
_ROOT = (
    "At x_1 = 0 the square root has no derivative, and below it no value. The Pareto set lies on the boundary x_i = 0."
)

#: x_1 on the five pieces of ZDT3's front. With h(x) = 1 - sqrt(x) - x sin(10 pi x), each ends in a minimum of h that is
#: lower than the one before, and the next begins where h falls below that. Ends are rounded down, starts up.
ZDT3_PIECES = (
    (0.0, 0.083001534926911),
    (0.182228728029400, 0.257762363387830),
    (0.409313674808657, 0.453882104088830),
    (0.618396794439266, 0.652511703804662),
    (0.823331798326633, 0.851832865436413),
)
_ZDT3_LEAST = -0.77336901232664046  # h at the last end; f2 grows with g, so it is the least for g = 1


def zdt1(n: int = 30) -> Problem:
    """The convex one: f2 = g - sqrt(f1 g), a linear function minus a geometric mean, which is concave."""

    def second(x: Tensor, g: Tensor) -> Tensor:
        return g - (x * g).sqrt()

    return _zdt(
        "zdt1", n, _sum, second, convex=True, formula="f1 = x_1,  f2 = g (1 - sqrt(f1 / g)),  " + _SUM, note=_ROOT
    )


def zdt2(n: int = 30) -> Problem:
    """The one with a concave front."""

    def second(x: Tensor, g: Tensor) -> Tensor:
        return g - x.square() / g

    # The Hessian of f2 = g - f1^2 / g is -(2 / g) u u' with u = e_1 - (x_1 / g) grad g, where grad g = 9 / (n - 1) in
    # n - 1 entries: norm (2 / g) (1 + (x_1 / g)^2 81 / (n - 1)), largest at x_1 = 1, g = 1, which is a corner.
    return _zdt(
        "zdt2",
        n,
        _sum,
        second,
        smoothness=lambda n: 2.0 + 162.0 / (n - 1),
        formula="f1 = x_1,  f2 = g (1 - (f1 / g)^2),  " + _SUM,
        note="The Pareto set lies on the boundary x_i = 0.",
    )


def zdt3(n: int = 30) -> Problem:
    """The one with a front in five pieces."""

    def second(x: Tensor, g: Tensor) -> Tensor:
        return g - (x * g).sqrt() - x * (10.0 * math.pi * x).sin()

    return _zdt(
        "zdt3",
        n,
        _sum,
        second,
        least=(0.0, _ZDT3_LEAST),
        position=_zdt3_position,
        formula="f1 = x_1,  f2 = g (1 - sqrt(f1 / g) - f1 / g sin(10 pi f1)),  " + _SUM,
        note=_ROOT,
    )


def zdt4(n: int = 10) -> Problem:
    """The one with 21^(n - 1) local fronts, on [0, 1] x [-5, 5]^(n - 1)."""

    def distance(rest: Tensor) -> Tensor:
        # Half angles, 10 (1 - cos a) = 20 sin^2(a / 2), keep g accurate near the front.
        return 1.0 + (rest.square() + 20.0 * (2.0 * math.pi * rest).sin().square()).sum(-1)

    def second(x: Tensor, g: Tensor) -> Tensor:
        return g - (x * g).sqrt()

    return _zdt(
        "zdt4",
        n,
        distance,
        second,
        rest=(-5.0, 5.0),
        formula="f1 = x_1,  f2 = g (1 - sqrt(f1 / g)),  g = 1 + 10 (n - 1) + sum_{i>1} (x_i^2 - 10 cos(4 pi x_i))",
        note="At x_1 = 0 the square root has no derivative, and below it no value. 21^(n - 1) local fronts.",
    )


def zdt6(n: int = 10) -> Problem:
    """The one with a front that few x_1 reach, and small slopes."""

    def first(x: Tensor) -> Tensor:
        return 1.0 - (-4.0 * x).exp() * (6.0 * math.pi * x).sin() ** 6

    def distance(rest: Tensor) -> Tensor:
        return 1.0 + 9.0 * rest.mean(-1) ** 0.25

    def second(f1: Tensor, g: Tensor) -> Tensor:
        return g - f1.square() / g

    # f1 is stationary where tan(6 pi x) = 9 pi; the first such x is its minimiser, because exp(-4 x) falls.
    lowest = math.atan(9.0 * math.pi) / (6.0 * math.pi)

    def position(count: int) -> Tensor:
        """Return x_1 with f1 evenly spaced from its minimum to 1, from a table: any x_1 is optimal if g = 1."""
        table = torch.linspace(lowest, 0.0, 4001, dtype=torch.float64, device="cpu")
        values = first(table).numpy()
        targets = values[0] + (1.0 - values[0]) * cube(count, 1).squeeze(-1).numpy()
        return torch.from_numpy(np.interp(targets, values, table.numpy()))

    return _zdt(
        "zdt6",
        n,
        distance,
        second,
        first=first,
        least=(float(first(torch.tensor(lowest, dtype=torch.float64, device="cpu"))), 0.0),
        position=position,
        formula="f1 = 1 - exp(-4 x_1) sin^6(6 pi x_1),  f2 = g (1 - (f1 / g)^2),  g = 1 + 9 (mean_{i>1} x_i)^(1/4)",
        note="Where all x_i = 0 for i > 1, which is the Pareto set, the root has no derivative.",
    )


def _sum(rest: Tensor) -> Tensor:
    return 1.0 + 9.0 * rest.mean(-1)


def _zdt3_position(count: int) -> Tensor:
    pieces = torch.tensor(ZDT3_PIECES, dtype=torch.float64, device="cpu")
    lengths = pieces[:, 1] - pieces[:, 0]
    ends = lengths.cumsum(0)
    along = cube(count, 1).squeeze(-1) * ends[-1]
    piece = torch.searchsorted(ends, along).clamp(max=len(pieces) - 1)
    return (pieces[piece, 1] - (ends[piece] - along)).clamp(max=pieces[-1, 1])


def _zdt(
    name: str,
    n: int,
    distance: Callable[[Tensor], Tensor],
    second: Callable[[Tensor, Tensor], Tensor],
    *,
    first: Callable[[Tensor], Tensor] | None = None,
    position: Callable[[int], Tensor] = lambda count: cube(count, 1).squeeze(-1),
    rest: tuple[float, float] = (0.0, 1.0),
    least: tuple[float, float] = (0.0, 0.0),
    smoothness: Callable[[int], float] | None = None,
    **declared: Any,
) -> Problem:
    """Build a problem from g(x_2, ..., x_n), f1(x_1) and f2(f1, g). On its Pareto set x_i = 0 for i > 1, so g = 1."""
    n = whole_number(name, "n", n, least=2)

    def objectives(points: Tensor) -> Tensor:
        f1 = points[..., 0] if first is None else first(points[..., 0])
        return torch.stack([f1, second(f1, distance(points[..., 1:]))], -1)

    def pareto_set(count: int) -> Tensor:
        points = torch.zeros(count, n, dtype=torch.float64, device="cpu")
        points[:, 0] = position(count)
        return points

    return Problem(
        name=name,
        label=name.upper(),
        objectives=objectives,
        m=2,
        lower=torch.tensor([0.0, *[rest[0]] * (n - 1)], device="cpu"),
        upper=torch.tensor([1.0, *[rest[1]] * (n - 1)], device="cpu"),
        least=least,
        smoothness=None if smoothness is None else smoothness(n),
        pareto_set=pareto_set,
        source=_SOURCE,
        **declared,
    )
