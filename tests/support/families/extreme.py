"""Jacobians of very small integers, of subnormal numbers, and with norms over three hundred decades.

Every claim about exact dependence holds for the stored numbers: rows are scaled by powers of two only.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from .cancelling import exact
from .family import Rows, generator, integers, normal, uniform

#: A row with a smaller norm has a square below float64's normal numbers, and counts as zero next to longer rows.
LEAST_NORM = 1.5e-154


def small_integers(m: int, n: int, seed: int) -> Tensor:
    """Entries from -3 to 3: dependent, opposite and zero rows are common, and many conditions hold with equality."""
    return integers(generator(m, n, seed), -3, 3, m, n)


def signs(m: int, n: int, seed: int) -> Tensor:
    """Entries -1, 0 and 1."""
    return integers(generator(m, n, seed), -1, 1, m, n)


def _directions(m: int, n: int, seed: int) -> Tensor:
    """Gaussian rows, signs, or Gaussian rows of which some are copies or negatives of the first."""
    rng = generator(m, n, seed)
    kind = int(integers(rng, 0, 2, 1))
    if kind == 1:
        return signs(m, n, seed)
    J = normal(rng, m, n)
    if kind == 2:
        copied = torch.rand(m, generator=rng) < 0.4
        J[copied] = J[0] * (2 * integers(rng, 0, 1, int(copied.sum()), 1) - 1)
    return J


def _scaled(m: int, n: int, seed: int, decades: float) -> Tensor:
    exponents = torch.round(uniform(generator(m, n, seed + 1), -decades, decades, m, 1) * 3.3219)
    half = torch.floor(0.5 * exponents)
    return _directions(m, n, seed) * torch.exp2(half) * torch.exp2(exponents - half)


def scaled_15(m: int, n: int, seed: int) -> Tensor:
    """Rows times powers of two from 1e-15 to 1e15; some are exactly parallel or opposite."""
    return _scaled(m, n, seed, 15.0)


def scaled_150(m: int, n: int, seed: int) -> Tensor:
    """Rows times powers of two from 1e-149 to 1e149; some are exactly parallel or opposite."""
    return _scaled(m, n, seed, 149.0)


def subnormal(m: int, n: int, seed: int) -> Tensor:
    """All rows, or with more than one sometimes only the first, at 2^-1040: subnormal numbers of about 30 bits."""
    J = _directions(m, n, seed)
    tiny = slice(None) if m == 1 or seed % 3 else slice(0, 1)
    J[tiny] = J[tiny] * 2.0**-520 * 2.0**-520
    return J


def ideal_subnormal(m: int, n: int, seed: int) -> list[Rows]:
    """The rows as stored; with longer rows among them also those with the subnormal one set to zero."""
    rows = exact(subnormal(m, n, seed))
    zeros = [[Fraction(0)] * n if max(map(abs, row)) < LEAST_NORM else row for row in rows]
    return [rows] if not any(map(any, zeros)) else [zeros, rows]
