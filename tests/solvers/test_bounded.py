"""The min-norm point with an upper bound for each weight, against a conic solver and its own optimality conditions."""

import numpy as np
import pytest
from support.references.float64 import _clarabel

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.solvers.bounded import bounded_min_norm_point
from paretograd.solvers.min_norm import min_norm_point


def unit_rows(kind: str, m: int, n: int, rng: np.random.Generator) -> Array:
    J = rng.normal(size=(m, n))
    if kind == "integers":
        J = rng.integers(-1, 2, size=(m, n)) + np.eye(1, n)
    if kind == "opposite":
        J[m // 2 :] = -J[: m - m // 2]
    if kind == "copies":
        J = J[rng.integers(0, m, size=m)]
    if kind == "alike":
        J = J[:1] + 1e-5 * J
    norms = np.linalg.norm(J, axis=1, keepdims=True)
    return np.asarray(J / np.where(norms > 0.0, norms, 1.0))


def conic(J: Array, bounds: Array) -> Array:
    import cvxpy as cp

    w = cp.Variable(len(J))
    _clarabel(cp.Problem(cp.Minimize(cp.sum_squares(J.T @ w)), [w >= 0, w <= bounds, cp.sum(w) == 1]))
    return np.asarray(w.value)


@pytest.mark.parametrize("kind", ["normal", "integers", "opposite", "copies", "alike"])
@pytest.mark.parametrize("seed", range(12))
def test_the_norm_is_that_of_a_conic_solver(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 14)), int(rng.integers(1, 12))
    J = unit_rows(kind, m, n, rng)
    bounds = rng.dirichlet(np.ones(m)) / rng.uniform(0.2, 0.95)
    if m > 3:
        bounds[0] = 0.0
    bounds *= max(1.0, 1.0 / bounds.sum())
    found = bounded_min_norm_point(J @ J.T, bounds)
    w = found.weights
    assert abs(w.sum() - 1.0) <= 1e-14
    assert (w >= 0.0).all()
    assert (w <= bounds * (1.0 + 1e-14) + 1e-16).all()
    # The sum is unique. Clarabel knows squared norms to about 1e-10, and so a sum of norm zero to 1e-4.
    other = conic(J, bounds)
    assert np.linalg.norm(J.T @ w) <= np.linalg.norm(J.T @ other) + 1e-8
    assert np.linalg.norm(J.T @ (w - other)) <= 3e-4
    # Differences of rows of length 1e-5 are known to 1e-16, and so slopes to 1e-11 of these.
    assert found.residual <= (1e-11 if kind == "alike" else 1e-14 * m)


@pytest.mark.parametrize("m", [1, 2, 5, 40])
def test_bounds_of_one_give_the_min_norm_point(m: int) -> None:
    rng = np.random.default_rng(m)
    J = unit_rows("normal", m, 7, rng)
    found = bounded_min_norm_point(J @ J.T, np.ones(m))
    wanted = min_norm_point(unit_gramian(J @ J.T, 1e-16))
    assert (
        np.linalg.norm(J.T @ (found.weights - wanted.weights)) <= 1e-7
    )  # zero for m = 40, up to the Gramian's rounding
    assert found.stationary == (m == 40)


def test_bounds_that_leave_one_choice() -> None:
    bounds = np.array([0.2, 0.3, 0.5])
    assert bounded_min_norm_point(np.eye(3), bounds).weights == pytest.approx(bounds, abs=1e-15)
