"""The min-norm point over a permutahedron: against an exact reference, its three limits, and a conic solver."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.families import FAMILIES, Family, members
from support.promises import NEGLIGIBLE
from support.references import min_norm_point as min_norm_reference
from support.references.spectral import spectral_min_norm_point as reference

from paretograd.geometry.gramian import gramian
from paretograd.geometry.unit_gramian import UnitGramian, unit_gramian
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.spectral import capped_min_norm_point, spectral_min_norm_point

Array = NDArray[np.float64]


def normal(values: Array) -> Array:
    return values / values.sum()


def padded(values: list[float], m: int) -> Array:
    return normal(np.append(values, np.zeros(m))[:m])


def cvar(m: int) -> Array:
    """The worst 60%: equal entries, one that is a fraction of them, zeros."""
    return normal(np.clip(0.6 * m - np.arange(m), 0.0, 1.0))


SPECTRA: dict[str, Callable[[int], Array]] = {
    "linear": lambda m: normal(np.arange(m, 0.0, -1.0)),
    "geometric": lambda m: normal(0.5 ** np.arange(m)),
    "three": lambda m: padded([0.5, 0.3, 0.2], m),
    "cvar": cvar,
    "plateaus": lambda m: normal(4.0 / 2 ** (3 * np.arange(m) // m)),
    "flat tail": lambda m: normal(np.where(np.arange(m) > 0, 1e-6, 1.0)),
    "steep tail": lambda m: normal(np.maximum(1e-6 ** np.arange(m), 1e-60)),
}
spectra = pytest.mark.parametrize("name", SPECTRA)


def unit(J: Array) -> UnitGramian:
    return unit_gramian(gramian(torch.from_numpy(J)).numpy(), float(np.finfo(np.float64).eps))


def error(J: Array, spectrum: Array) -> float:
    """Relative error of the direction, 0 where both are negligible; asserts that the weights are feasible."""
    found = spectral_min_norm_point(unit(J), spectrum)
    w, m = found.weights, len(J)
    assert found.residual <= 2e-16 * (100 + 10 * m)
    assert w.min() >= 0.0
    assert abs(w.sum() - 1.0) <= 4e-15
    assert (np.sort(w)[::-1].cumsum() <= spectrum.cumsum() + 4e-15).all()
    d, exact = w @ J, reference(J, spectrum).direction
    length, longest = float(np.linalg.norm(exact)), float(np.linalg.norm(J, axis=1).max())
    if length <= NEGLIGIBLE * longest:
        assert np.linalg.norm(d) <= 2.0 * NEGLIGIBLE * longest
        return 0.0
    return float(np.linalg.norm(d - exact)) / length


@spectra
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_directions_are_exact(name: str, family: Family) -> None:
    for J in members(family, seeds=1):
        spectrum = SPECTRA[name](len(J))
        # Terms that cancel leave 1e-16 of them: relative to a direction of 1e-6 of the terms, 1e-10.
        short = np.linalg.norm(reference(J, spectrum).direction) <= 1e-2 * np.linalg.norm(J, axis=1).max()
        assert error(J, spectrum) <= (1e-8 if short else 1e-12), len(J)


@spectra
@pytest.mark.parametrize("m", [7, 16])
@pytest.mark.parametrize(
    "family",
    [
        "gaussian",
        "moderately_scaled",
        "badly_scaled_conflicting",
        "extremely_scaled",
        "scaled_duplicates",
        "rank_deficient_acute",
        "zero_rows",
        "scaled_strongly_stationary",
    ],
)
def test_more_objectives(name: str, m: int, family: str) -> None:
    assert error(FAMILIES[family].make(m, m + 4, 0).numpy(), SPECTRA[name](m)) <= 1e-10


@pytest.mark.parametrize("name", ["linear", "cvar", "plateaus"])
@pytest.mark.parametrize("family", ["conflicting", "badly_scaled", "duplicate_rows"])
def test_many_objectives(name: str, family: str) -> None:
    assert error(FAMILIES[family].make(48, 60, 0).numpy(), SPECTRA[name](48)) <= 1e-10


def test_a_hundred_objectives() -> None:
    assert error(FAMILIES["gaussian"].make(100, 120, 0).numpy(), SPECTRA["linear"](100)) <= 1e-10


@pytest.mark.parametrize("name", ["linear", "geometric", "three", "plateaus"])
@pytest.mark.parametrize(
    "family",
    ["extremely_scaled", "tall", "zero_rows", "weakly_stationary", "rank_deficient_acute", "scaled_opposites"],
)
def test_many_objectives_satisfy_the_optimality_conditions(name: str, family: str) -> None:
    found = spectral_min_norm_point(
        unit(FAMILIES[family].make(64, 63 if family == "tall" else 70, 1).numpy()), SPECTRA[name](64)
    )
    assert found.residual <= 2e-16 * 1000


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_limits(family: Family) -> None:
    """All on one entry: MGDA. 1/k on k of them: MGDA with a cap of 1/k. Equal entries: the mean."""
    for J in members(family, seeds=1):
        m, G, longest = len(J), unit(J), float(np.linalg.norm(J, axis=1).max())
        plain = spectral_min_norm_point(G, padded([1.0], m)).weights
        np.testing.assert_array_equal(plain, min_norm_point(G).weights)
        np.testing.assert_allclose(spectral_min_norm_point(G, np.full(m, 1.0 / m)).weights, 1.0 / m, rtol=1e-15)
        for k in range(2, m):
            d = spectral_min_norm_point(G, padded([1.0 / k] * k, m)).weights @ J
            exact = min_norm_reference(J, 1.0 / k).direction
            size = max(float(np.linalg.norm(exact)), NEGLIGIBLE * longest)
            assert np.linalg.norm(d - exact) <= 1e-8 * size + 2.0 * NEGLIGIBLE * longest * (
                size <= NEGLIGIBLE * longest
            )
            assert np.linalg.norm(d - capped_min_norm_point(G, 1.0 / k).weights @ J) <= 1e-7 * longest


@pytest.mark.parametrize("seed", range(12))
def test_a_conic_solver_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = 2 + seed % 5
    J = rng.standard_normal((m, m + 1)) + rng.standard_normal(m + 1)
    mu = normal(np.sort(rng.random(m) ** 3)[::-1])
    w = cp.Variable(m)
    bounds = [cp.sum_largest(w, j) <= mu[:j].sum() for j in range(1, m)]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(J.T @ w)), [w >= 0, cp.sum(w) == 1, *bounds])
    problem.solve(solver="CLARABEL")
    found = spectral_min_norm_point(unit(J), mu).weights @ J
    assert np.linalg.norm(found - w.value @ J) <= 1e-6 * np.linalg.norm(J, axis=1).max()
    assert np.linalg.norm(found - reference(J, mu).direction) <= 1e-12 * np.linalg.norm(J, axis=1).max()


@pytest.mark.parametrize("name", ["linear", "geometric", "flat tail"])
def test_norms_may_span_hundreds_of_decades(name: str) -> None:
    """Their ratios, squared, overflow."""
    J = np.random.default_rng(0).standard_normal((9, 12))
    J *= 10.0 ** np.linspace(-130.0, 70.0, 9)[:, None]
    found = spectral_min_norm_point(unit(J), SPECTRA[name](9))
    assert np.isfinite(found.weights).all()
    assert found.residual <= 1e-14


def test_one_objective_and_zero_gradients() -> None:
    assert spectral_min_norm_point(unit(np.array([[3.0, 4.0]])), np.ones(1)).weights.tolist() == [1.0]
    zeros = spectral_min_norm_point(unit(np.zeros((3, 2))), np.array([0.5, 0.3, 0.2]))
    assert zeros.stationary
    assert zeros.weights.sum() == pytest.approx(1.0)
    # A zero gradient takes the largest weight, the shorter of the others the next.
    J = np.array([[0.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    found = spectral_min_norm_point(unit(J), np.array([0.9, 0.07, 0.03]))
    assert not found.stationary
    np.testing.assert_allclose(found.weights, [0.03, 0.9, 0.07], rtol=1e-14)
