"""Jacobians of Pareto stationary points, exactly so, and of points that are nearly stationary.

The paper's gamma (eq. PS-quant) is zero here, no direction descends every objective, and a non-conflicting
rule must return a direction orthogonal to some of the gradients, or zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .family import full_row_rank, generator, integer_normal, integers, normal, shuffled, uniform


def _block(rng: torch.Generator, m: int, n: int) -> Tensor:
    """Integer rows with sum_k p_k g_k = 0 for positive integers p, p_m = 1: the last row is minus the
    weighted sum of the others. The weights p / sum(p) > 0 show that the block is strongly stationary."""
    rows = integer_normal(rng, m - 1, n)
    return torch.cat([rows, -(integers(rng, 1, 3, 1, m - 1) @ rows)])


def strongly_stationary(m: int, n: int, seed: int) -> Tensor:
    """0 is in the relative interior of the hull.

    Proof: J.T w = 0 for w = p / sum(p) > 0 (see `_block`; integers, no rounding), and a point is in the
    relative interior of the hull if and only if it is a combination of all rows with positive weights.
    """
    rng = generator(m, n, seed)
    return shuffled(rng, _block(rng, m, n))


def scaled_strongly_stationary(m: int, n: int, seed: int) -> Tensor:
    """As `strongly_stationary`, the rows times powers of two from 2^-20 to 2^20 (12 decades).

    Proof: J.T w = 0 for weights p_k / scale_k, normalised; a power of two is exact.
    """
    J = strongly_stationary(m, n, seed)
    return J * 2.0 ** integers(generator(m, n, seed + 1), -20, 20, m, 1)


def weakly_stationary(m: int, n: int, seed: int) -> Tensor:
    """0 is in the hull, but only with zero weight on some rows: a strongly stationary block plus rows on one
    side.

    Proof: the block has last coordinate 0 and the other rows have it positive. The block alone gives J.T w =
    0. In any such w the last coordinate, a sum of non-negative terms w_k J_kn, vanishes, so w_k = 0 outside
    the block.
    """
    rng = generator(m, n, seed)
    size = int(integers(rng, 2, m - 1, 1))
    J = torch.zeros(m, n, dtype=torch.float64)
    J[:size, :-1] = _block(rng, size, n - 1)
    J[size:, :-1] = integer_normal(rng, m - size, n - 1)
    J[size:, -1] = integers(rng, 1, 512, m - size)
    return shuffled(rng, J)


def nearly_stationary(m: int, n: int, seed: int) -> Tensor:
    """At distance exactly delta from stationarity, delta = 10^U(-6, -3) times the norm of the largest row.

    Proof: the last coordinate of every row is delta, so every point of the hull has norm >= delta; the other
    coordinates are a strongly stationary block, so some point has norm delta. The min-norm point is delta e_n
    and gamma = delta.
    """
    rng = generator(m, n, seed)
    block = _block(rng, m, n - 1)
    scale = float(block.norm(dim=1).max()) or 1.0
    delta = scale * 10 ** uniform(rng, -6.0, -3.0, 1, 1)
    return shuffled(rng, torch.cat([block, delta.expand(m, 1)], dim=1))


def opposite_rows(m: int, n: int, seed: int) -> Tensor:
    """A row and its exact negative among independent rows.

    Proof: w = 1/2 on the pair and 0 elsewhere gives J.T w = 0.
    """
    return _opposites(m, n, seed, 1.0)


def scaled_opposites(m: int, n: int, seed: int) -> Tensor:
    """A row g and -3 * 2^9 g among others: opposite, with norms three decades apart.

    Proof: w proportional to (3 * 2^9, 1) on the pair gives J.T w = 0, and the product is exact for integer g.
    """
    return _opposites(m, n, seed, 3.0 * 2.0**9)


def _opposites(m: int, n: int, seed: int, factor: float) -> Tensor:
    rng = generator(m, n, seed)
    first = full_row_rank(rng, 1, n)
    return shuffled(rng, torch.cat([first, -factor * first, integer_normal(rng, m - 2, n)]))


def zero_rows(m: int, n: int, seed: int) -> Tensor:
    """At least one row is zero (an objective at its optimum), the others Gaussian.

    Proof: all the weight on the zero row gives J.T w = 0.
    """
    rng = generator(m, n, seed)
    J = normal(rng, m, n)
    J[: int(integers(rng, 1, max(1, m - 1), 1))] = 0.0
    return shuffled(rng, J)


def all_zeros(m: int, n: int, seed: int) -> Tensor:
    """The zero matrix. Proof: J.T w = 0 for every w."""
    return torch.zeros(m, n, dtype=torch.float64)
