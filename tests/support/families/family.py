"""What a family of Jacobians is, and the seeded draws that all of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Make = Callable[[int, int, int], Tensor]
#: Rows in exact rationals.
Rows = list[list[Fraction]]
Shape = Literal["any", "wide", "tall"]
Stationary = Literal["no", "strong", "weak", "maybe"]


@dataclass(frozen=True)
class Family:
    """A generator ``make(m, n, seed)`` and what is known of every matrix it makes.

    Args:
        name: the key in `FAMILIES`. make: the generator; its docstring holds the proof of what is claimed
        here. stationary: ``"no"``: 0 is not in the convex hull of the rows. ``"strong"``: 0 is in its
        relative interior,
            i.e. J.T w = 0 for some w > 0. ``"weak"``: J.T w = 0 for some w in the simplex, and nothing more
            is claimed. ``"maybe"``: no claim.
        singular: whether J J.T is singular for certain. False is no claim.
        shape: ``"wide"`` needs n >= m, ``"tall"`` needs n < m.
        min_m, max_m, min_n: the sizes that the family exists for.
        ideals: the row sets whose exact answers count as right, where these are not the stored rows alone: rows before
            they were rounded, see `cancelling`.
    """

    name: str
    make: Make
    stationary: Stationary
    singular: bool = False
    shape: Shape = "any"
    min_m: int = 1
    max_m: int | None = None
    min_n: int = 1
    ideals: Callable[[int, int, int], list[Rows]] | None = None

    def fits(self, m: int, n: int) -> bool:
        """Whether the family has matrices of m rows and n columns."""
        low, high = self.columns(m)
        return self.min_m <= m <= (self.max_m or m) and low <= n <= (high or n)

    def columns(self, m: int) -> tuple[int, int | None]:
        """The least and the greatest n (None: no limit) for m rows."""
        low = max(self.min_n, m) if self.shape == "wide" else self.min_n
        return low, (m - 1 if self.shape == "tall" else None)


def generator(m: int, n: int, seed: int) -> Generator:
    """A generator that depends on the size too, so that no matrix is a part of another."""
    return Generator().manual_seed(seed * 1_000_003 + 1_009 * m + n)


def normal(rng: Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=rng, dtype=torch.float64)


def uniform(rng: Generator, low: float, high: float, *size: int) -> Tensor:
    return low + (high - low) * torch.rand(*size, generator=rng, dtype=torch.float64)


def integers(rng: Generator, low: int, high: int, *size: int) -> Tensor:
    """Integers from low to high (both included), stored in float64."""
    return torch.randint(low, high + 1, size, generator=rng).to(torch.float64)


def integer_normal(rng: Generator, *size: int) -> Tensor:
    """Gaussian entries rounded to integers of about 10 bits: sums of their products are exact in float64."""
    return (256 * normal(rng, *size)).round()


def full_row_rank(rng: Generator, rows: int, n: int, draw: Callable[..., Tensor] = integer_normal) -> Tensor:
    """A matrix of full row rank: draws until the smallest singular value is well away from zero."""
    while True:
        A = draw(rng, rows, n)
        s = torch.linalg.svdvals(A)
        if s[-1] > 1e-4 * s[0]:
            return A


def shuffled(rng: Generator, J: Tensor) -> Tensor:
    """The rows in random order, so that no test can rely on where the special rows are."""
    return J[torch.randperm(len(J), generator=rng)]


def members(family: Family, seeds: int = 2) -> list[NDArray[np.float64]]:
    """A few matrices with m = 1, ..., 4 of every shape that the family has, as numpy arrays."""
    sizes = [(m, n) for m, n in product(range(1, 5), (1, 3, 5)) if family.fits(m, n)]
    return [family.make(m, n, seed).numpy() for m, n in sizes for seed in range(seeds)]
