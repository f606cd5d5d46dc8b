"""What the literature says about each test problem, written a second time: with loops, in its own notation.

Nothing here shares code with the package. `value` evaluates the objectives of one point; `front` is zero exactly on the
front, by the equation that the problem's paper gives for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import cos, exp, log1p, pi, prod, sin, sqrt
from typing import Any

Vector = Sequence[float]


@dataclass(frozen=True)
class Case:
    """One problem with one choice of parameters.

    Args:
        name: of the problem.
        parameters: for `pg.problem`.
        value: losses of a point; None where there is no second formula.
        front: zero on the front; None where there is no equation.
        tight: the largest Hessian that is sampled has at least this share of L.
        interior: whether the Pareto set has its points inside the box, apart from the ends of x_1 and of y.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    value: Callable[[Vector], list[float]] | None = None
    front: Callable[[Vector], float] | None = None
    tight: float = 0.999
    interior: bool = True

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}{value}" for key, value in self.parameters.items() if key != "spectrum")])


def vlmop1(x: Vector) -> list[float]:
    return [sum(v**2 for v in x) / len(x), sum((v - 2) ** 2 for v in x) / len(x)]


def vlmop2(x: Vector) -> list[float]:
    a = 1 / sqrt(len(x))
    return [1 - exp(-sum((v - a) ** 2 for v in x)), 1 - exp(-sum((v + a) ** 2 for v in x))]


def omnitest(x: Vector) -> list[float]:
    return [sum(sin(pi * v) for v in x), sum(cos(pi * v) for v in x)]


def zdt_sum(x: Vector) -> float:
    return 1 + 9 / (len(x) - 1) * sum(x[1:])


def zdt1(x: Vector) -> list[float]:
    g = zdt_sum(x)
    return [x[0], g * (1 - sqrt(x[0] / g))]


def zdt2(x: Vector) -> list[float]:
    g = zdt_sum(x)
    return [x[0], g * (1 - (x[0] / g) ** 2)]


def zdt3(x: Vector) -> list[float]:
    g = zdt_sum(x)
    return [x[0], g * (1 - sqrt(x[0] / g) - x[0] / g * sin(10 * pi * x[0]))]


def zdt4(x: Vector) -> list[float]:
    g = 1 + 10 * (len(x) - 1) + sum(v**2 - 10 * cos(4 * pi * v) for v in x[1:])
    return [x[0], g * (1 - sqrt(x[0] / g))]


def zdt6(x: Vector) -> list[float]:
    f1 = 1 - exp(-4 * x[0]) * sin(6 * pi * x[0]) ** 6
    g = 1 + 9 * (sum(x[1:]) / (len(x) - 1)) ** 0.25
    return [f1, g * (1 - (f1 / g) ** 2)]


def bowl(z: Vector) -> float:
    return sum((v - 0.5) ** 2 for v in z)


def waves(z: Vector) -> float:
    return 100 * (len(z) + sum((v - 0.5) ** 2 - cos(20 * pi * (v - 0.5)) for v in z))


def linear(y: Vector, i: int) -> float:
    """The i-th piece, i = 0 ... m - 1, of DTLZ1's front: y_1 ... y_(m-1-i) (1 - y_(m-i))."""
    m = len(y) + 1
    return prod(y[: m - 1 - i]) * (1 - y[m - 1 - i] if i else 1.0)


def spherical(y: Vector, i: int) -> float:
    m = len(y) + 1
    return prod(cos(v * pi / 2) for v in y[: m - 1 - i]) * (sin(y[m - 1 - i] * pi / 2) if i else 1.0)


def dtlz(
    m: int, shape: Callable[[Vector, int], float], g: Callable[[Vector], float]
) -> Callable[[Vector], list[float]]:
    return lambda x: [(1 + g(x[m - 1 :])) * shape(x[: m - 1], i) for i in range(m)]


def gaussian_front(f: Vector) -> float:
    """The distances from the two centres, sqrt(-log(1 - f)), sum to 2, which is how far apart the centres are."""
    return sqrt(max(-log1p(-f[0]), 0.0)) + sqrt(max(-log1p(-f[1]), 0.0)) - 2


def root_front(f: Vector) -> float:
    return f[1] - (1 - sqrt(f[0]))


def square_front(f: Vector) -> float:
    return f[1] - (1 - f[0] ** 2)


def sphere_front(f: Vector) -> float:
    return sum(v**2 for v in f) - 1


def dtlz_cases(m: int) -> list[Case]:
    given = {"m": m}
    return [
        Case("dtlz1", given, dtlz(m, lambda y, i: linear(y, i) / 2, waves), lambda f: sum(f) - 0.5, tight=0.99),
        Case("dtlz2", given, dtlz(m, spherical, bowl), sphere_front, tight=0.65),
        Case("dtlz3", given, dtlz(m, spherical, waves), sphere_front, tight=0.99),
        Case("dtlz4", given, dtlz(m, lambda y, i: spherical([v**100 for v in y], i), bowl), sphere_front, tight=0.5),
        Case("maf1", given, dtlz(m, lambda y, i: 1 - linear(y, i), bowl), lambda f: sum(f) - (m - 1), tight=0.7),
    ]


CASES = [
    *(Case("vlmop1", {"n": n}, vlmop1, lambda f: sqrt(f[0]) + sqrt(f[1]) - 2) for n in (1, 5)),
    *(Case("vlmop2", {"n": n}, vlmop2, gaussian_front) for n in (4, 1, 12)),
    Case("fonseca", {}, vlmop2, gaussian_front),
    *(Case("omnitest", {"n": n}, omnitest, lambda f, n=n: math.hypot(*f) - n) for n in (3, 1, 5)),
    Case("zdt1", {}, zdt1, root_front, interior=False),
    Case("zdt1", {"n": 2}, zdt1, root_front, interior=False),
    Case("zdt2", {}, zdt2, square_front, interior=False),
    Case("zdt2", {"n": 2}, zdt2, square_front, interior=False),
    Case("zdt3", {}, zdt3, lambda f: f[1] - (1 - sqrt(f[0]) - f[0] * sin(10 * pi * f[0])), interior=False),
    Case("zdt4", {}, zdt4, root_front),
    Case("zdt6", {}, zdt6, square_front, interior=False),
    *dtlz_cases(3),
    *dtlz_cases(2),
    *dtlz_cases(6),
    Case("quadratic"),
    Case("quadratic", {"m": 1, "n": 1}),
    Case("quadratic", {"m": 2, "n": 1, "angle": 180.0}),
    Case("quadratic", {"m": 3, "n": 2, "angle": 150.0, "seed": 1}),
    Case(
        "quadratic", {"m": 3, "n": 3, "angle": 180.0, "spectrum": [[1.0, 2.0, 3.0], [0.5, 0.5, 9.0], [4.0, 4.0, 4.0]]}
    ),
    Case("quadratic", {"m": 6, "n": 3, "angle": 60.0, "spectrum": [1.0, 100.0, 1e4]}),
    Case("quadratic", {"m": 1, "n": 40}),
]
