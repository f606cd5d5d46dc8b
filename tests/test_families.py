"""What the families of Jacobians claim, checked in exact arithmetic."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from support import references as ref
from support.families import FAMILIES, Family, members
from support.references import fixed

families = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


@families
def test_a_family_is_deterministic_and_of_the_size_asked_for(family: Family) -> None:
    for m, n in product((1, 2, 5), (1, 3, 7)):
        if family.fits(m, n):
            J = family.make(m, n, 3)
            assert J.shape == (m, n)
            assert J.dtype == torch.float64
            assert torch.equal(J, family.make(m, n, 3))


@families
def test_the_claims_of_a_family_hold_exactly(family: Family) -> None:
    """Stationary if and only if gamma = 0; strongly so if and only if no gradient survives projection,
    because the dual cone is then the orthogonal complement of the rows; singular if and only if the rows are
    dependent."""
    for J in members(family):
        if family.stationary != "maybe":
            assert ref.is_stationary(J) == (family.stationary != "no")
        if family.stationary == "strong":
            assert not ref.projected_gradients(J).any()
        if family.singular:
            assert len(fixed.independent(fixed.gram(fixed.lift(J)))) < len(J)


def test_weakly_stationary_matrices_are_not_strongly_so() -> None:
    for J in members(FAMILIES["weakly_stationary"]):
        assert ref.projected_gradients(J).any()


def test_nearly_stationary_matrices_are_at_the_distance_they_are_made_for() -> None:
    for J in members(FAMILIES["nearly_stationary"]):
        assert ref.gamma(J) == pytest.approx(J[0, -1], rel=1e-15)
