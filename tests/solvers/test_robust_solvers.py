"""The entropic and the chi-square min-norm points against exact references, their limits, and Clarabel."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import references as ref
from support.families import FAMILIES, Family, members
from support.promises import NEGLIGIBLE
from support.references import robust

from paretograd.geometry.unit_gramian import UnitGramian, unit_gramian
from paretograd.solution import Status, status_of
from paretograd.solvers.chi_square import chi_square_min_norm_point
from paretograd.solvers.entropic import entropic_point

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
#: In units of the mean squared norm.
TEMPERATURES = (1e-6, 1e-3, 0.1, 1.0, 100.0)

families = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
larger = pytest.mark.parametrize("family", ["gaussian", "conflicting", "badly_scaled", "zero_rows", "duplicate_rows"])


def unit(J: Array) -> UnitGramian:
    return unit_gramian(J @ J.T, EPS)


def mean_square(J: Array) -> float:
    return float((J**2).sum()) / len(J) or 1.0


def radii(m: int) -> tuple[float, ...]:
    return (1e-6, 0.1, 1.0, m / 2)


def check_direction(J: Array, w: Array, exact: Array) -> None:
    """Relative error at most 1e-8, and 1e-12 where rounding of the Gramian allows it.

    A direction of length gamma, in units of the largest gradient, is known to 1e-16 / gamma^2 at best; one shorter
    than 1e-7 must be as negligible as the exact one.
    """
    d, length, largest = J.T @ w, float(np.linalg.norm(exact)), float(np.linalg.norm(J, axis=1).max())
    if length <= NEGLIGIBLE * largest:
        assert np.linalg.norm(d) <= 2.0 * NEGLIGIBLE * largest
    else:
        allowed = min(1e-8, 1e-12 + 1e-15 * (largest / length) ** 2)
        assert np.linalg.norm(d - exact) <= allowed * length, (len(J), length / largest)


def check_weights(w: Array, residual: float) -> None:
    assert w.min() >= 0.0
    assert abs(w.sum() - 1.0) <= 1e-14 * (8 + len(w))
    assert status_of(residual, len(w)) is Status.OPTIMAL


# Against the references


@families
def test_entropic_directions_are_exact(family: Family) -> None:
    for J in members(family, seeds=1):
        for temperature in TEMPERATURES:
            tau = temperature * mean_square(J)
            w, residual, *_ = entropic_point(unit(J), tau)
            check_weights(w, residual)
            check_direction(J, w, robust.entropic(J, tau).direction)


@families
def test_chi_square_directions_are_exact(family: Family) -> None:
    for J in members(family, seeds=1):
        for radius in radii(len(J)):
            point = chi_square_min_norm_point(unit(J), radius)
            check_weights(point.weights, point.residual)
            assert len(J) * (point.weights @ point.weights) - 1.0 <= radius + 1e-11 * (1.0 + radius)
            exact = robust.chi_square(J, radius).direction
            check_direction(J, point.weights, exact)
            if not exact.any():
                assert point.stationary


@larger
def test_more_objectives(family: str) -> None:
    J = FAMILIES[family].make(8, 12, 0).numpy()
    for temperature in (1e-3, 1.0):
        tau = temperature * mean_square(J)
        check_direction(J, entropic_point(unit(J), tau).weights, robust.entropic(J, tau).direction)
    for radius in (0.1, 1.0):
        check_direction(J, chi_square_min_norm_point(unit(J), radius).weights, robust.chi_square(J, radius).direction)


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
def test_near_duplicates(angle: float) -> None:
    """Rows that a Gramian can only just tell apart."""
    J = FAMILIES["gaussian"].make(4, 6, 3).numpy() + 1.0
    J[1] = J[0] + angle * J[2]
    for radius in (0.05, 0.3, 1.0):
        check_direction(J, chi_square_min_norm_point(unit(J), radius).weights, robust.chi_square(J, radius).direction)
    for temperature in (1e-12, 1e-6, 1e-2):
        tau = temperature * mean_square(J)
        check_direction(J, entropic_point(unit(J), tau).weights, robust.entropic(J, tau).direction)


# Limits


@families
def test_limits_are_the_mean_and_mgda(family: Family) -> None:
    for J in members(family, seeds=1):
        m, mean, mgda = len(J), J.mean(axis=0), ref.min_norm_point(J).direction
        check_direction(J, entropic_point(unit(J), 1e17 * mean_square(J)).weights, mean)
        check_direction(J, chi_square_min_norm_point(unit(J), 0.0).weights, mean)
        check_direction(J, chi_square_min_norm_point(unit(J), m - 1.0).weights, mgda)
        smallest = np.min(np.linalg.norm(J, axis=1), initial=1.0, where=J.any(axis=1))
        check_direction(J, entropic_point(unit(J), 1e-25 * smallest**2).weights, mgda)


def test_extreme_temperatures_and_scales() -> None:
    J = FAMILIES["gaussian"].make(4, 6, 0).numpy()
    at_one = entropic_point(unit(J), 0.3).weights
    for scale in (1e-120, 1e-15, 1e15, 1e70):
        np.testing.assert_allclose(entropic_point(unit(scale * J), 0.3 * scale**2).weights, at_one, rtol=1e-13)
        np.testing.assert_allclose(
            chi_square_min_norm_point(unit(scale * J), 0.1).weights,
            chi_square_min_norm_point(unit(J), 0.1).weights,
            rtol=1e-13,
        )
        for temperature in (1e-300, 1e300):
            check_weights(*entropic_point(unit(scale * J), temperature)[:2])


def test_one_gradient_and_none() -> None:
    for J in (np.array([[3.0, 4.0]]), np.zeros((3, 2))):
        uniform = np.full(len(J), 1.0 / len(J))
        np.testing.assert_array_equal(entropic_point(unit(J), 0.1).weights, uniform)
        point = chi_square_min_norm_point(unit(J), 0.1)
        np.testing.assert_array_equal(point.weights, uniform)
        assert point.stationary is not J.any()


def test_equal_gradients_have_equal_weights() -> None:
    """Also where the gradients alone leave a choice, zero gradients among them."""
    J = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    for w in (entropic_point(unit(J), 1e-3).weights, chi_square_min_norm_point(unit(J), 0.2).weights):
        assert w[0] == pytest.approx(w[2], rel=1e-9)
        assert w[1] == pytest.approx(w[3], rel=1e-12)


def test_stationary_point_in_the_ball() -> None:
    """Two opposite rows are one zero combination; all four, which the ball asks for, are another."""
    J = np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 1.0], [-2.0, -1.0]])
    point = chi_square_min_norm_point(unit(J), 0.01)
    assert point.stationary
    np.testing.assert_allclose(point.weights, 0.25, atol=0.06)
    np.testing.assert_allclose(J.T @ point.weights, 0.0, atol=1e-9)


# Many objectives: the optimality conditions, from the Jacobian


@larger
def test_a_hundred_objectives(family: str) -> None:
    J = FAMILIES[family].make(128, 160, 0).numpy()
    norms = np.linalg.norm(J, axis=1)
    for temperature in TEMPERATURES:
        tau = temperature * mean_square(J)
        w, residual, steps, *_ = entropic_point(unit(J), tau)
        check_weights(w, residual)
        assert steps <= 40
        positive = w > 1e-250
        value = (J @ (J.T @ w))[positive] + tau * np.log(w[positive])
        scale = norms[positive] * (norms @ w) + tau * (1.0 - np.log(w[positive]))
        assert np.abs((value - w[positive] @ value) / scale).max() <= 1e-12
    for radius in (1e-6, 0.1, 1.0):
        point = chi_square_min_norm_point(unit(J), radius)
        check_weights(point.weights, point.residual)
        check_chi_square(J, point.weights, radius)


def check_chi_square(J: Array, w: Array, radius: float) -> None:
    """Slopes fall linearly with the weights on the support, and are no less than where w = 0 outside it."""
    slopes, scale = J @ (J.T @ w), np.linalg.norm(J, axis=1) * (np.linalg.norm(J, axis=1) @ w)
    excess = len(w) * (w @ w) - 1.0
    assert excess <= radius * (1.0 + 1e-6)
    level = w @ slopes
    mu = 0.0
    if excess >= radius * (1.0 - 1e-6):
        centred = np.where(w > 0.0, w - w[w > 0.0].mean(), 0.0)
        mu = max(0.0, -float(centred @ slopes) / float(centred @ w))
        level += mu * (w @ w)
    gap = (slopes + mu * w - level) / (scale + mu * w + level + 1e-300)
    assert gap.min() >= -1e-8
    assert np.abs(gap[w > 0.0]).max() <= 1e-8


# A second opinion


def clarabel(objective: Any, w: Any, *constraints: Any) -> Array:
    import cvxpy as cp

    tolerance = {f"tol_{kind}": 1e-13 for kind in ("gap_abs", "gap_rel", "feas", "ktratio")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": 1e-6 is all that is asked for
        cp.Problem(cp.Minimize(objective), [w >= 0, cp.sum(w) == 1, *constraints]).solve(solver="CLARABEL", **tolerance)
    return np.asarray(w.value)


@pytest.mark.parametrize("family", ["gaussian", "conflicting", "well_conditioned"])
@pytest.mark.parametrize("m", [3, 5])
def test_clarabel_agrees(family: str, m: int) -> None:
    import cvxpy as cp

    J = FAMILIES[family].make(m, 6, 1).numpy()
    w = cp.Variable(m)
    for temperature in (0.1, 1.0):
        tau = temperature * mean_square(J)
        other = clarabel(cp.sum_squares(J.T @ w) / 2 - tau * cp.sum(cp.entr(w)), w)
        np.testing.assert_allclose(entropic_point(unit(J), tau).weights, other, atol=1e-6)
    for radius in (0.05, 0.3, 1.0):
        other = clarabel(cp.sum_squares(J.T @ w), w, m * cp.sum_squares(w) <= 1 + radius)
        found = chi_square_min_norm_point(unit(J), radius).weights
        # Clarabel stops on the value, 2e-9 inside the ball now and then: its weights are good to 1e-5.
        assert np.linalg.norm(J.T @ found) == pytest.approx(np.linalg.norm(J.T @ other), rel=1e-6)
        np.testing.assert_allclose(found, other, atol=1e-4)
