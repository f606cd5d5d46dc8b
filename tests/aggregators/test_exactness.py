"""Every rule against an independent reference: relative error of the direction at most 1e-8, and mostly 1e-12.

The references (`support.references`) work in 300-digit fixed point on the Jacobian itself; the package sees the
Gramian in float64. A direction shorter than 1e-7 of the largest gradient is below what a Gramian resolves: there it
must be as negligible as the exact one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import references as ref
from support.families import FAMILIES, Family, members
from support.promises import NEGLIGIBLE

import paretograd as pg

Array = NDArray[np.float64]

PAIRS: dict[str, tuple[Callable[[], pg.Aggregator], Callable[[Array], Array]]] = {
    "mean": (pg.Mean, lambda J: J.mean(axis=0)),
    "mgda": (pg.MGDA, lambda J: ref.min_norm_point(J).direction),
    "capped-mgda(eps=.5)": (lambda: pg.CappedMGDA(eps=0.5), lambda J: ref.min_norm_point(J, 2 / len(J)).direction),
    "capped-mgda(eps=.8)": (lambda: pg.CappedMGDA(eps=0.8), lambda J: ref.min_norm_point(J, 1.25 / len(J)).direction),
    "upgrad": (pg.UPGrad, ref.upgrad),
    "dualproj": (pg.DualProj, ref.dualproj),
    "greedy-dcp": (pg.GreedyDCP, ref.greedy_dcp),
    "cagrad(.4)": (lambda: pg.CAGrad(0.4), lambda J: ref.cagrad(J, 0.4)),
    "cagrad(1)": (lambda: pg.CAGrad(1.0), lambda J: ref.cagrad(J, 1.0)),
    "cagrad(2)": (lambda: pg.CAGrad(2.0), lambda J: ref.cagrad(J, 2.0)),
    "nash-mtl": (lambda: pg.NashMTL(max_norm=None), lambda J: ref.nash_mtl(J).direction),
    "fairgrad(2)": (pg.FairGrad, lambda J: ref.fairgrad(J, 2.0).direction),
    "fairgrad(.5)": (lambda: pg.FairGrad(0.5), lambda J: ref.fairgrad(J, 0.5).direction),
    "pivrg": (pg.PIVRG, lambda J: ref.pivrg(J, np.ones(len(J))).direction),
    "power-mean(.5)": (lambda: pg.PowerMean(0.5), lambda J: ref.power_mean(J, 0.5).direction),
    "power-mean(0)": (lambda: pg.PowerMean(0.0), lambda J: ref.power_mean(J, 0.0).direction),
    "power-mean(-1)": (lambda: pg.PowerMean(-1.0), lambda J: ref.power_mean(J, -1.0).direction),
    "power-mean(-20)": (lambda: pg.PowerMean(-20.0), lambda J: ref.power_mean(J, -20.0).direction),
    "pcgrad": (pg.PCGrad, ref.pcgrad),
    "pcgrad(sum)": (lambda: pg.PCGrad(reduction="sum"), lambda J: ref.pcgrad(J, reduction="sum")),
    "pcgrad+": (pg.PCGradPlus, ref.pcgrad_plus),
    "imtl-g": (pg.IMTLG, lambda J: ref.imtl_g(J).direction),
    "config": (pg.ConFIG, ref.config),
}
#: Rules whose weights stay well-conditioned next to a stationary point.
STABLE = {"mean", "mgda", "capped-mgda(eps=.5)", "capped-mgda(eps=.8)", "upgrad", "dualproj", "pcgrad"}

pairs = pytest.mark.parametrize("name", PAIRS)


def error(name: str, J: Array) -> float | None:
    """Relative error of the direction; 0 where both are negligible; None where the rule has no unique answer."""
    make, reference = PAIRS[name]
    d = make()(torch.from_numpy(J)).numpy()
    largest = float(np.linalg.norm(J, axis=1).max())
    try:
        exact = reference(J)
    except ref.StationaryError:
        assert not d.any()  # no solution exists, and the answer says so
        return 0.0
    except (ref.NotUniqueError, ref.SlowError, ZeroDivisionError):
        return None
    if name.startswith("cagrad") and ref.is_stationary(J):
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


def allowed(name: str, family: Family, J: Array) -> float:
    """1e-8, but where the rule's own condition is beyond it.

    A distance gamma from stationarity enters most formulas as gamma^2, a difference of the Gramian's entries. The
    reference for PCGrad+ repeats sweeps until conflicts are below 1e-13, which stops about 1e-13 / gamma^2 early.
    """
    if family.name != "nearly_stationary" or name in STABLE:
        return 1e-8
    units = J / np.linalg.norm(J, axis=1, keepdims=True)
    return max(1e-8, (1e-13 if name == "pcgrad+" else 1e-14) / ref.gamma(units) ** 2)


@pairs
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_directions_are_exact(name: str, family: Family) -> None:
    for J in members(family, seeds=1):
        found = error(name, J)
        assert found is None or found <= allowed(name, family, J), (name, len(J), found)


@pairs
@pytest.mark.parametrize("m", [8, 16])
@pytest.mark.parametrize("family", ["gaussian", "conflicting", "moderately_scaled", "badly_scaled_conflicting"])
def test_more_objectives(name: str, m: int, family: str) -> None:
    J = FAMILIES[family].make(m, m + 4, 0).numpy()
    found = error(name, J)
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
