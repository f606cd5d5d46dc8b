"""Hypothesis strategies for Jacobians.

What is drawn is a family, the sizes and a seed, so that examples stay small, print in one line and shrink
towards the first families, few objectives and seed 0; the matrix itself is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import strategies as st
from torch import Tensor

from .families import FAMILIES, Family


class Case(NamedTuple):
    """The recipe of one Jacobian: rebuild it with ``FAMILIES[family].make(m, n, seed)``."""

    family: str
    m: int
    n: int
    seed: int

    @property
    def jacobian(self) -> Tensor:
        return FAMILIES[self.family].make(self.m, self.n, self.seed)


def select(*, stationary: Iterable[str] | None = None, singular: bool | None = None) -> list[str]:
    """The names of the families with the given claims (None: either)."""
    wanted = None if stationary is None else set(stationary)
    return [
        family.name
        for family in FAMILIES.values()
        if (wanted is None or family.stationary in wanted) and (singular is None or family.singular == singular)
    ]


@st.composite
def cases(
    draw: st.DrawFn,
    families: Iterable[str] | None = None,
    *,
    min_m: int = 1,
    max_m: int = 12,
    extra_n: int = 6,
) -> Case:
    """A recipe from the named families (all by default); n exceeds the least that the family allows by up to
    extra_n.

    For families that need n >= m this is up to m + extra_n; for the others n starts at 1, so that m > n is
    common.
    """

    def exists(family: Family) -> bool:
        return family.min_m <= max_m and (family.max_m or max_m) >= min_m

    names = [name for name in (families or FAMILIES) if exists(FAMILIES[name])]
    family = FAMILIES[draw(st.sampled_from(names))]
    m = draw(st.integers(max(min_m, family.min_m), min(max_m, family.max_m or max_m)))
    low, high = family.columns(m)
    limit = max(low, m) + extra_n
    n = draw(st.integers(low, limit if high is None else min(limit, high)))
    return Case(family.name, m, n, draw(st.integers(0, 2**16)))


def jacobians(
    families: Iterable[str] | None = None,
    *,
    min_m: int = 1,
    max_m: int = 12,
    extra_n: int = 6,
) -> st.SearchStrategy[Tensor]:
    """The Jacobians of `cases`, float64, shape (m, n)."""
    drawn = cases(families, min_m=min_m, max_m=max_m, extra_n=extra_n)
    return drawn.map(lambda case: case.jacobian)


def well_conditioned_jacobians(*, min_m: int = 1, max_m: int = 12, extra_n: int = 6) -> st.SearchStrategy[Tensor]:
    """Jacobians of full row rank with singular values between 1 and 2: answers are good to a few ulps."""
    return jacobians(["well_conditioned"], min_m=min_m, max_m=max_m, extra_n=extra_n)
