"""Jacobians with exact linear dependence or exact orthogonality, most of them not Pareto stationary."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from .family import full_row_rank, generator, integer_normal, integers, normal, shuffled


def orthogonal(m: int, n: int, seed: int) -> Tensor:
    """Exactly orthogonal rows: row k is non-zero on its own block of columns only (n >= m).

    Proof: two rows share no column, so every term of their inner product is zero. Linearly independent, hence
    not stationary. Each g_k lies on the boundary of the dual cone, where constraints are active with zero
    multiplier: complementarity is degenerate, and an active-set method must not cycle.
    """
    rng = generator(m, n, seed)
    owner = torch.cat([torch.arange(m), torch.randint(m, (n - m,), generator=rng)])
    owner = owner[torch.randperm(n, generator=rng)]
    entries = integer_normal(rng, m, n)
    entries[entries == 0] = 1.0  # a row of zeros would be stationary
    return torch.where(owner == torch.arange(m)[:, None], entries, 0.0)


def _copies(m: int, n: int, seed: int, factors: list[float]) -> Tensor:
    """Independent integer rows, and copies of them times a factor from the list; at least one copy."""
    rng = generator(m, n, seed)
    distinct = min(int(integers(rng, 1, m - 1, 1)), n)
    base = full_row_rank(rng, distinct, n)
    source = torch.cat([torch.arange(distinct), torch.randint(distinct, (m - distinct,), generator=rng)])
    factor = torch.tensor(factors, dtype=torch.float64)[torch.randint(len(factors), (m, 1), generator=rng)]
    return shuffled(rng, base[source] * factor)


def duplicate_rows(m: int, n: int, seed: int) -> Tensor:
    """Some rows occur twice or more, bit for bit.

    Proof: two equal rows make J J.T singular. J.T w = B.T v with independent rows B and v_i the sum of the
    weights of the copies of row i; v >= 0 is not zero, so J.T w is not zero: not stationary.
    """
    return _copies(m, n, seed, [1.0])


def scaled_duplicates(m: int, n: int, seed: int) -> Tensor:
    """As `duplicate_rows`, each copy times a positive factor (exact in float64).

    Proof: as there, with v_i the sum of factor times weight, positive where a weight is.
    """
    return _copies(m, n, seed, [1.0, 0.25, 3.0, 2.0**12, 2.0**-16])


def _rank(rng: Generator, m: int, n: int) -> int:
    """A rank below m and at most n."""
    return int(integers(rng, 1, min(m - 1, n), 1))


def rank_deficient(m: int, n: int, seed: int) -> Tensor:
    """J = A B with integer A of shape (m, r), B of shape (r, n), r < m.

    Proof: the rank is at most r, and the product of small integers is exact. Whether 0 is in the hull depends
    on A: no claim.
    """
    rng = generator(m, n, seed)
    r = _rank(rng, m, n)
    return integers(rng, -9, 9, m, r) @ full_row_rank(rng, r, n)


def rank_deficient_acute(m: int, n: int, seed: int) -> Tensor:
    """J = A B as `rank_deficient`, with A > 0 and the rows of B independent: singular but not stationary.

    Proof: J.T w = B.T (A.T w); for w in the simplex A.T w > 0, and B.T v = 0 only for v = 0.
    """
    rng = generator(m, n, seed)
    r = _rank(rng, m, n)
    return integers(rng, 1, 9, m, r) @ full_row_rank(rng, r, n)


def tall(m: int, n: int, seed: int) -> Tensor:
    """More objectives than parameters (m > n), Gaussian rows that lean to one side.

    Proof of singularity: the rank is at most n < m. The lean (half a unit along a random direction) makes
    both stationary and non-stationary matrices common: no claim.
    """
    rng = generator(m, n, seed)
    lean = normal(rng, n)
    return normal(rng, m, n) + 0.5 * n**0.5 * lean / lean.norm()
