"""Every rule against an independent reference: relative error of the direction at most 1e-8, and mostly 1e-12.

The references (`support.references`) work in 300-digit fixed point on the Jacobian itself; the package sees the
Gramian in float64. A direction shorter than 1e-7 of the largest gradient is below what a Gramian resolves: there it
must be as negligible as the exact one.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import references as ref
from support.families import FAMILIES, Family, members
from support.promises import NEGLIGIBLE
from support.table import EXACT, Row

import paretograd as pg

Array = NDArray[np.float64]

rows = pytest.mark.parametrize("row", EXACT, ids=lambda row: row.id)


def error(row: Row, J: Array) -> float | None:
    """Relative error of the direction; 0 if both are negligible; None if the rule has no unique answer."""
    assert row.reference is not None
    rule = row.make()
    d = rule(torch.from_numpy(J)).numpy()
    largest = float(np.linalg.norm(J, axis=1).max())
    try:
        exact = row.reference(J)
    except ref.StationaryError:
        assert not d.any()  # no solution exists, and the answer says so
        return 0.0
    except (ref.NotUniqueError, ref.SlowError, ZeroDivisionError):
        return None
    if isinstance(rule, pg.CAGrad) and ref.is_stationary(J):
        check_cagrad(J, d, exact)
        return 0.0
    length = float(np.linalg.norm(exact))
    if length <= NEGLIGIBLE * largest:
        assert np.linalg.norm(d) <= 2.0 * NEGLIGIBLE * largest
        return 0.0
    return float(np.linalg.norm(d - exact)) / length


def check_cagrad(J: Array, d: Array, exact: Array) -> None:
    """At a stationary point the best worst-case decrease may be attained by many directions: d is one of them."""
    c, g0 = float(np.linalg.norm(exact - J.mean(axis=0))), J.mean(axis=0)
    lengths = np.linalg.norm(J, axis=1)
    assert np.linalg.norm(d - g0) <= c * (1.0 + 1e-12)
    assert (J @ d).min() >= (J @ exact).min() - 1e-12 * lengths.max() ** 2


def allowed(row: Row, family: Family, J: Array) -> float:
    """1e-8, or more next to a stationary point if the row declares that its rule is ill-conditioned there."""
    if family.name != "nearly_stationary" or not row.ill_conditioned:
        return 1e-8
    units = J / np.linalg.norm(J, axis=1, keepdims=True)
    return max(1e-8, 1e-14 / ref.gamma(units) ** 2)


@rows
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_directions_are_exact(row: Row, family: Family) -> None:
    for J in members(family, seeds=1):
        found, limit = error(row, J), allowed(row, family, J)
        hint = ""
        if family.name == "nearly_stationary" and not row.ill_conditioned:
            hint = (
                "; if the rule is ill-conditioned next to stationary points, declare it in its row (`ill_conditioned`)"
            )
        assert found is None or found <= limit, f"m={len(J)}: off by {found:.2g}, allowed {limit:.2g}{hint}"


@rows
@pytest.mark.parametrize("m", [8, 16])
@pytest.mark.parametrize("family", ["gaussian", "conflicting", "moderately_scaled", "badly_scaled_conflicting"])
def test_more_objectives(row: Row, m: int, family: str) -> None:
    J = FAMILIES[family].make(m, m + 4, 0).numpy()
    found = error(row, J)
    assert found is None or found <= 1e-10, found


@pytest.mark.parametrize("family", ["gaussian", "badly_scaled_conflicting", "duplicate_rows", "rank_deficient_acute"])
def test_a_hundred_objectives(family: str) -> None:
    """Against NNLS on the Jacobian, itself good to 1e-11 or so."""
    J = FAMILIES[family].make(128, 256, 0)
    upgrad = ref.float64.upgrad_nnls(J.numpy())
    assert np.linalg.norm(pg.UPGrad()(J).numpy() - upgrad) <= 1e-9 * np.linalg.norm(upgrad)
    mgda = J.numpy().T @ ref.float64.min_norm_nnls(J.numpy())
    assert np.linalg.norm(pg.MGDA()(J).numpy() - mgda) <= 1e-9 * np.linalg.norm(mgda)
    for rule, beta in ((pg.NashMTL(max_norm=None), 1.0), (pg.FairGrad(), 0.5)):
        w = rule.weights(pg.gramian(J)).numpy()
        x = J.numpy() @ (J.numpy().T @ w)
        np.testing.assert_allclose(np.log(x) + beta * np.log(w), 0.0, atol=1e-6 if "scaled" in family else 1e-9)
