"""DTLZ1 to DTLZ4 and MaF1: m - 1 positions y, k distances z, f_i = (1 + g(z)) p_i(y), for any number of objectives.

Smoothness. The Hessian of (1 + g(z)) p(y) has the blocks (1 + g) p'' in y, grad p grad g' across, and p g'' in z. Its
norm is at most that of the 2 x 2 matrix of bounds on the blocks' norms (`_block_norm`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paretograd.checks import whole_number
from paretograd.problems.base import Problem
from paretograd.problems.spread import cube, products, sticks

_DTLZ = (
    "K. Deb, L. Thiele, M. Laumanns, E. Zitzler. Scalable Multi-Objective Optimization Test Problems. IEEE CEC, 2002"
)
_MAF = (
    "R. Cheng, M. Li, Y. Tian, X. Zhang, S. Yang, Y. Jin, X. Yao. A Benchmark Test Suite for Evolutionary "
    "Many-objective Optimization. Complex & Intelligent Systems 3, 2017"
)
_BOWL_TEXT = "g = sum_z (z - 1/2)^2"
_WAVES_TEXT = "g = 100 (k + sum_z ((z - 1/2)^2 - cos(20 pi (z - 1/2))))"
_SPHERE_TEXT = "f_i = (1 + g) times the sphere's coordinates: prod cos(pi y_j / 2), ..., sin(pi y_1 / 2)"


@dataclass(frozen=True)
class _Bounds:
    """Upper bounds, on the box, of a function's value, its gradient's norm and its Hessian's norm."""

    value: float
    slope: float
    bend: float


def dtlz1(m: int = 3, n: int | None = None) -> Problem:
    """A linear front, behind 11^k - 1 local ones."""
    formula = f"f_i = (1 + g) / 2 times y_1 ... y_(m-1), y_1 ... (1 - y_(m-1)), ..., 1 - y_1;  {_WAVES_TEXT}"

    def position(y: Tensor) -> Tensor:
        return 0.5 * products(y, 1.0 - y)

    def bounds(m: int) -> _Bounds:
        whole = _linear_bounds(m)
        return _Bounds(0.5, 0.5 * whole.slope, 0.5 * whole.bend)

    return _scalable("dtlz1", m, n, 5, position, bounds, _waves, _waves_bounds, formula=formula)


def dtlz2(m: int = 3, n: int | None = None) -> Problem:
    """A spherical front."""
    formula = f"{_SPHERE_TEXT};  {_BOWL_TEXT}"
    return _scalable("dtlz2", m, n, 10, _sphere, _sphere_bounds, _bowl, _bowl_bounds, optimal=_angles, formula=formula)


def dtlz3(m: int = 3, n: int | None = None) -> Problem:
    """DTLZ2's front, behind as many local ones as DTLZ1 has."""
    formula = f"{_SPHERE_TEXT};  {_WAVES_TEXT}"
    return _scalable(
        "dtlz3", m, n, 10, _sphere, _sphere_bounds, _waves, _waves_bounds, optimal=_angles, formula=formula
    )


def dtlz4(m: int = 3, n: int | None = None) -> Problem:
    """DTLZ2 with y_j^100 in place of y_j, which crowds the points at the edges of the front."""

    def bounds(m: int) -> _Bounds:
        # With D = diag(100 y^99), of norm 100: gradient D grad p, Hessian D p'' D + diag(grad p * 9900 y^98).
        sphere = _sphere_bounds(m)
        return _Bounds(1.0, 100.0 * sphere.slope, 1e4 * sphere.bend + 9900.0 * sphere.slope)

    return _scalable(
        "dtlz4",
        m,
        n,
        10,
        lambda y: _sphere(y**100),
        bounds,
        _bowl,
        _bowl_bounds,
        optimal=lambda count, m: _angles(count, m) ** 0.01,
        formula=f"{_SPHERE_TEXT}, at y_j^100 instead of y_j;  {_BOWL_TEXT}",
        note="Nearly flat in y except close to y_j = 1.",
    )


def maf1(m: int = 3, n: int | None = None) -> Problem:
    """The inverted linear front."""
    formula = f"f_i = (1 + g) (1 - p_i), p = y_1 ... y_(m-1), y_1 ... (1 - y_(m-1)), ..., 1 - y_1;  {_BOWL_TEXT}"
    return _scalable(
        "maf1",
        m,
        n,
        10,
        lambda y: 1.0 - products(y, 1.0 - y),
        _linear_bounds,
        _bowl,
        _bowl_bounds,
        label="MaF1",
        formula=formula,
        source=_MAF,
    )


def _linear_bounds(m: int) -> _Bounds:
    # A product of m - 1 factors in [0, 1], each linear in its own variable: first and second partial derivatives lie in
    # [-1, 1], and second derivatives in a single variable are 0. Attained by y_1 ... y_(m-1) at y = 1.
    return _Bounds(1.0, math.sqrt(m - 1), float(m - 2))


def _sphere(y: Tensor) -> Tensor:
    angles = 0.5 * math.pi * y
    return products(angles.cos(), angles.sin())


def _sphere_bounds(m: int) -> _Bounds:
    # A product of cosines is the mean over signs e of cos(e.theta) (a sine is a shifted cosine), so along a unit v its
    # first derivative is at most mean |e.v| <= 1, its second at most mean (e.v)^2 = 1. And theta = pi y / 2.
    return _Bounds(1.0, 0.5 * math.pi, 0.25 * math.pi**2)


def _angles(count: int, m: int) -> Tensor:
    """Return y, shape ``(count, m - 1)``, whose points are uniform on the sphere in the positive orthant."""
    if m == 2:
        return cube(count, 1)
    # Half-normal coordinates have uniform directions. The angles, from the last (theta_1) to the first, are those
    # between a coordinate and all before it.
    directions = torch.erfinv(cube(count, m))
    before = directions.square().cumsum(-1).sqrt()
    return torch.atan2(directions[:, 1:], before[:, :-1]).flip(-1) * (2.0 / math.pi)


def _bowl(z: Tensor) -> Tensor:
    return (z - 0.5).square().sum(-1)


def _bowl_bounds(k: int) -> _Bounds:
    return _Bounds(0.25 * k, math.sqrt(k), 2.0)  # the first two at the corners


def _waves(z: Tensor) -> Tensor:
    # Half angles, 1 - cos a = 2 sin^2(a / 2), keep g accurate near the front.
    u = z - 0.5
    return 100.0 * (u.square() + 2.0 * (10.0 * math.pi * u).sin().square()).sum(-1)


def _waves_bounds(k: int) -> _Bounds:
    # For each z, with u = z - 1/2 in [-1/2, 1/2]: u^2 <= 1/4, |(u^2)'| <= 1, (u^2)'' = 2, plus 1 - cos(20 pi u).
    return _Bounds(225.0 * k, 100.0 * (1.0 + 20.0 * math.pi) * math.sqrt(k), 100.0 * (2.0 + 400.0 * math.pi**2))


def _block_norm(y: float, across: float, z: float) -> float:
    """Norm of the symmetric matrix [[y, across], [across, z]]."""
    return 0.5 * (y + z) + math.hypot(0.5 * (y - z), across)


def _scalable(
    name: str,
    m: int,
    n: int | None,
    k: int,
    position: Callable[[Tensor], Tensor],
    position_bounds: Callable[[int], _Bounds],
    distance: Callable[[Tensor], Tensor],
    distance_bounds: Callable[[int], _Bounds],
    *,
    formula: str,
    optimal: Callable[[int, int], Tensor] = lambda count, m: sticks(count, m - 1),
    label: str | None = None,
    note: str = "",
    source: str = _DTLZ,
) -> Problem:
    """Build (1 + g(z)) p(y) with n = m - 1 + k variables. On the Pareto set z = 1/2, so g = 0, and y is arbitrary."""
    m = whole_number(name, "m", m, least=2)
    n = m - 1 + k if n is None else whole_number(name, "n", n, least=m)
    p, g = position_bounds(m), distance_bounds(n - m + 1)

    def objectives(points: Tensor) -> Tensor:
        return (1.0 + distance(points[..., m - 1 :])).unsqueeze(-1) * position(points[..., : m - 1])

    def pareto_set(count: int) -> Tensor:
        y = optimal(count, m)
        return torch.cat([y, torch.full((len(y), n - m + 1), 0.5, dtype=torch.float64, device="cpu")], -1)

    return Problem(
        name=name,
        label=label or name.upper(),
        objectives=objectives,
        m=m,
        lower=torch.zeros(n, device="cpu"),
        upper=torch.ones(n, device="cpu"),
        least=(0.0,) * m,
        smoothness=_block_norm((1.0 + g.value) * p.bend, p.slope * g.slope, p.value * g.bend),
        pareto_set=pareto_set,
        formula=formula,
        note=f"y are the first m - 1 variables, z the other k = n - m + 1. {note}".rstrip(),
        source=source,
    )
