"""TorchJD's own matrices and properties, on each of our rules as an aggregator of TorchJD.

The matrices and the assertions come from the files that `fetch.py` unpacked. Our guarantees select the properties that
a rule has to pass. If a guarantee says nothing of a property, a list below does, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import pytest
import torch
from fetch import their_tests
from support.table import ROWS, Row
from torch import Tensor

import paretograd as pg
from paretograd.torchjd import to_torchjd

sys.path.append(str(their_tests()))

from unit.aggregation._inputs import non_strong_matrices, scaled_matrices, typical_matrices
from unit.aggregation._property_testers import (
    ExpectedStructureProperty,
    LinearUnderScalingProperty,
    NonConflictingProperty,
    PermutationInvarianceProperty,
    StrongStationarityProperty,
)

#: The starred variants have the same directions, and tests/ covers their lengths.
PLAIN = [row for row in ROWS if not row.id.endswith("*")]

#: Rules that scale with each gradient on its own: sums of a mapping of each gradient that depends on the directions of
#: the others only, and ConFIG, whose length is a sum of projections onto a direction that scales do not change.
LINEAR = ("mean", "upgrad", "pcgrad", "pcgrad+", "config")

#: Rules whose weights are all positive, so that a direction of zero is a positive combination of the gradients.
POSITIVE = ("mean", "upgrad", "dualproj", "pcgrad", "pcgrad+", "rgw")

#: Gamma, relative to the longest row, of a matrix that is stationary up to the rounding of float32, in which TorchJD
#: draws it. A direction whose length does not scale with the gradients has no limit there, so rounding matters.
RESOLVED = 1e-6


def rows(select: Callable[[Row], bool]) -> pytest.MarkDecorator:
    """Parametrize a test with the selected rows."""
    return pytest.mark.parametrize("row", [row for row in PLAIN if select(row)], ids=lambda row: row.id)


def check(assertion: Callable[[object, Tensor], None], row: Row, matrices: Iterable[Tensor]) -> None:
    """Assert a property for every matrix with a number of rows that suits the rule."""
    torch.manual_seed(0)
    for matrix in matrices:
        if row.fits(len(matrix)):
            rule = row.make()
            with rule.one_step():  # several calls of a schedule are about one of its members
                assertion(to_torchjd(rule), matrix)


def resolved(row: Row, matrix: Tensor) -> bool:
    """Whether the matrix determines the direction."""
    if row.make().guarantee.degree == 1.0:
        return True
    gamma, longest = pg.stationarity(pg.gramian(matrix)), matrix.norm(dim=1).max()
    return bool(longest == 0.0 or gamma == 0.0 or gamma > RESOLVED * longest)


def test_the_matrices_are_theirs() -> None:
    assert len(scaled_matrices) == 36
    assert len(typical_matrices) == 24
    assert len(non_strong_matrices) == 10


@rows(lambda row: True)
def test_structure(row: Row) -> None:
    check(ExpectedStructureProperty._assert_expected_structure_property, row, scaled_matrices + typical_matrices)


@rows(lambda row: row.make().guarantee.non_conflicting)
def test_non_conflicting(row: Row) -> None:
    check(NonConflictingProperty._assert_non_conflicting_property, row, typical_matrices)


@rows(lambda row: row.make().guarantee.equivariant)
def test_permutation_invariance(row: Row) -> None:
    matrices = [matrix for matrix in typical_matrices if resolved(row, matrix)]
    assert len(matrices) >= len(typical_matrices) - 10
    check(PermutationInvarianceProperty._assert_permutation_invariance_property, row, matrices)


@rows(lambda row: row.id in LINEAR)
def test_linear_under_scaling(row: Row) -> None:
    check(LinearUnderScalingProperty._assert_linear_under_scaling_property, row, typical_matrices)


@rows(lambda row: row.id in POSITIVE)
def test_strong_stationarity(row: Row) -> None:
    check(StrongStationarityProperty._assert_stationarity_property, row, non_strong_matrices)


def test_the_lists_name_rules() -> None:
    assert {*LINEAR, *POSITIVE} <= {row.id for row in PLAIN}
