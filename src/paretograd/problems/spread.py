"""Deterministic, evenly spread points in an interval, a cube or a simplex, to sample Pareto sets."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.checks import whole_number


def cube(count: int, d: int) -> Tensor:
    """Return points ``(count, d)`` in [0, 1]^d, float64.

    For d = 1 they are evenly spaced and include both ends; otherwise they form a Kronecker sequence. The sequence
    steps by the powers of 1/phi, where phi^(d + 1) = phi + 1 (the golden ratio for d = 1). Any number of its points
    covers the cube evenly, and none lies on the boundary.
    """
    count = whole_number("points of a Pareto set", "count", count)
    if d == 1:
        return torch.linspace(0.0, 1.0, count, dtype=torch.float64, device="cpu").unsqueeze(-1)
    phi = 2.0
    for _ in range(64):  # a contraction, which converges to the last digit long before
        phi = (1.0 + phi) ** (1.0 / (d + 1))
    steps = phi ** -torch.arange(1, d + 1, dtype=torch.float64, device="cpu")
    return torch.frac(0.5 + torch.arange(1, count + 1, dtype=torch.float64, device="cpu").unsqueeze(-1) * steps)


def sticks(count: int, d: int) -> Tensor:
    """Return shares ``(count, d)`` that break a stick d times into d + 1 pieces, uniform on the simplex."""
    exponents = 1.0 / torch.arange(d, 0, -1, dtype=torch.float64, device="cpu")
    return cube(count, d) ** exponents


def products(kept: Tensor, taken: Tensor) -> Tensor:
    """Return a_1 ... a_d, a_1 ... a_{d-1} b_d, ..., a_1 b_2, b_1 for a = ``kept`` and b = ``taken``.

    With a + b = 1 these are the pieces of a broken stick; with cosines and sines, a point on the sphere, in the order
    of DTLZ and MaF.

    Args:
        kept: shape ``(..., d)``.
        taken: shape ``(..., d)``.

    Returns:
        shape ``(..., d + 1)``.
    """
    left = torch.ones_like(kept[..., 0])
    pieces = []
    for j in range(kept.shape[-1]):
        pieces.append(left * taken[..., j])
        left = left * kept[..., j]
    return torch.stack([left, *reversed(pieces)], -1)


def simplex(count: int, m: int) -> Tensor:
    """Return weights ``(count, m)`` that are non-negative and sum to one."""
    if m == 1:
        return torch.ones(whole_number("points of a Pareto set", "count", count), 1, dtype=torch.float64, device="cpu")
    shares = sticks(count, m - 1)
    return products(shares, 1.0 - shares)
