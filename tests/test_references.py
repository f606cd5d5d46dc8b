"""The references and the families that the package is tested with, tested themselves. Nothing here imports the package.

References (fixed point, certified by optimality conditions) are compared with brute force over all faces, with scipy's
non-negative least squares and with Clarabel, on every family with at most 4 objectives. What a family claims of its
matrices is checked in exact arithmetic.
"""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray
from support import references as ref
from support.families import FAMILIES, Family, members
from support.references import brute, fixed, float64
from support.strategies import jacobians, select, well_conditioned_jacobians
from torch import Tensor

Array = NDArray[np.float64]

SCALED = {name for name in FAMILIES if "scaled" in name} - {"moderately_scaled"}
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


def difference(a: Array, b: Array, scale: float | None = None) -> float:
    """|a - b| relative to |a| or to the scale."""
    return float(np.linalg.norm(a - b)) / ((np.linalg.norm(a) if scale is None else scale) or 1.0)


# Min-norm points


@families
def test_min_norm_points_agree(family: Family) -> None:
    for J in members(family):
        exact, largest = ref.min_norm_point(J), float(np.linalg.norm(J, axis=1).max())
        assert difference(exact.direction, brute.min_norm_point(J).direction) <= 1e-15
        assert difference(exact.direction, J.T @ float64.min_norm_nnls(J), largest) <= 1e-14
        assert exact.weights.sum() == pytest.approx(1, abs=1e-15)
        assert exact.weights.min() >= 0


@families
def test_capped_min_norm_points_agree(family: Family) -> None:
    for J in members(family, seeds=1):
        m, largest = len(J), float(np.linalg.norm(J, axis=1).max())
        for cap in (1 / m, 1.3 / m):
            exact = ref.min_norm_point(J, cap)
            assert difference(exact.direction, brute.min_norm_point(J, cap).direction) <= 1e-15
            assert exact.weights.max() <= max(cap, 1 / m) * (1 + 1e-15)
            if family.name not in SCALED and m == 3:
                # The square root of the gap where the answer is zero.
                tolerance = 1e-10 if exact.norm > 1e-2 * largest else 1e-6
                conic = J.T @ float64.min_norm_conic(J, cap)
                assert difference(exact.direction, conic, largest) <= tolerance


@given(jacobians(max_m=24))
def test_the_min_norm_point_satisfies_the_variational_inequality(jacobian: Tensor) -> None:
    """<g_k, d> >= |d|^2 for every k characterises the min-norm point d of the hull, for any m."""
    J = jacobian.numpy()
    point = ref.min_norm_point(J)
    rows, d = fixed.lift(J), fixed.lift(point.direction)
    sizes = np.array([fixed.to_float(fixed.root(g)) for g in np.diag(fixed.gram(rows))])
    gap = fixed.lower(fixed.dot(rows, d) - fixed.dot(d, d))
    assert (gap >= -4e-16 * sizes * point.norm).all()


# Projections onto the dual cone


@families
def test_projections_agree(family: Family) -> None:
    for J in members(family):
        generic = np.cos(np.arange(J.shape[1]))
        for q in (J[0], J[-1], J.mean(axis=0), generic):
            exact, size = ref.project_dual_cone(J, q), float(np.linalg.norm(q))
            assert difference(exact, brute.project_dual_cone(J, q)) <= 1e-15
            near = 1e-10 if family.name == "nearly_stationary" else 1e-13
            assert difference(exact, q + J.T @ float64.project_nnls(J, q), size) <= near
        if len(J) == 3:
            assert difference(exact, float64.project_conic(J, generic), size) <= 1e-10


@settings(max_examples=30)
@given(jacobians(max_m=16))
def test_the_rules_made_of_projections_agree_with_least_squares(jacobian: Tensor) -> None:
    J = jacobian.numpy()
    projected = np.stack([g + J.T @ float64.project_nnls(J, g) for g in J])
    largest = float(np.linalg.norm(J, axis=1).max())
    assert difference(ref.upgrad(J), projected.mean(axis=0), largest) <= 1e-9
    assert difference(ref.upgrad(J), float64.upgrad_nnls(J), largest) <= 1e-9
    mean = J.mean(axis=0)
    assert difference(ref.dualproj(J), mean + J.T @ float64.project_nnls(J, mean), largest) <= 1e-9
    longest = float(np.linalg.norm(projected, axis=1).max())
    assert abs(np.linalg.norm(ref.greedy_dcp(J)) - longest) <= 1e-9 * largest


# Aligned-MTL


@given(well_conditioned_jacobians(max_m=8))
def test_alignment_is_the_polar_factor(jacobian: Tensor) -> None:
    J = jacobian.numpy()
    U, S, Vt = np.linalg.svd(J, full_matrices=False)
    for scale, sigma in (("min", S[-1]), ("rmse", float(np.sqrt(np.mean(S**2))))):
        d = sigma * Vt.T @ (U.T @ np.full(len(J), 1.0 / len(J)))
        assert difference(ref.aligned_mtl(J, scale), d) <= 1e-12


# The power-mean equation


@settings(max_examples=10)
@given(well_conditioned_jacobians(max_m=8))
def test_the_power_mean_equations_are_solved(jacobian: Tensor) -> None:
    J = jacobian.numpy()
    m = len(J)
    omega = np.linspace(0.5, 2.0, m)
    assert ref.power_residual(J, ref.nash_mtl(J).weights, 1.0) <= 1e-14
    assert ref.power_residual(J, ref.fairgrad(J, 2.0).weights, 0.5) <= 1e-14
    assert ref.power_residual(J, ref.pivrg(J, omega).weights, 0.5, omega) <= 1e-14
    for p in (0.5, 0.0, -1.0, -7.0):
        assert ref.power_mean_residual(J, ref.power_mean(J, p).weights, p) <= 1e-13
    assert np.linalg.norm(ref.nash_mtl(J).direction) == pytest.approx(math.sqrt(m), rel=1e-15)


@pytest.mark.parametrize("name", select(stationary=["no"]))
def test_the_power_mean_lies_between_its_limits(name: str) -> None:
    """As p falls from 1 to -inf the direction goes from the mean to the min-norm point and the worst slope
    over |d|, the objective's limit, does not fall below that of any larger p."""
    for J in members(FAMILIES[name], seeds=1)[-1:]:
        assert difference(ref.power_mean(J, 1).direction, J.mean(axis=0)) <= 1e-9
        limit = ref.min_norm_point(J)
        directions = [ref.power_mean(J, p).direction for p in (0.5, 0.0, -2.0, -math.inf)]
        worst = [(J @ (d / np.linalg.norm(d))).min() for d in directions]
        rounding = 1e-15 * float(np.linalg.norm(J, axis=1).max())
        assert all(a <= b + rounding for a, b in pairwise(worst))
        assert worst[-1] == pytest.approx(limit.norm, rel=1e-12, abs=rounding)


@pytest.mark.parametrize("name", select(stationary=["weak", "strong"]))
def test_the_equation_has_no_solution_at_a_stationary_point(name: str) -> None:
    with pytest.raises(ref.StationaryError):
        ref.nash_mtl(members(FAMILIES[name])[-1])


# CAGrad


@families
def test_cagrad_is_as_good_as_the_conic_solver(family: Family) -> None:
    for J in members(family, seeds=1)[-4:]:
        mean = float(np.linalg.norm(J.mean(axis=0)))
        largest = float(np.linalg.norm(J, axis=1).max())
        for c in (0.4, 1.5):
            try:
                d = ref.cagrad(J, c)
            except ref.NotUniqueError:
                assert family.stationary != "no"
                continue
            assert np.linalg.norm(d - J.mean(axis=0)) <= c * mean * (1 + 1e-12) + 1e-15 * largest
            other = float64.cagrad_conic(J, c)
            assert (J @ d).min() >= (J @ other).min() - 1e-10 * mean * largest
            if family.stationary == "no" and family.name not in SCALED:
                assert difference(d, other, mean) <= 1e-4


@settings(max_examples=30)
@given(jacobians(select(stationary=["no"]), min_m=2, max_m=6))
def test_both_ways_to_find_the_tight_gradients_agree(jacobian: Tensor) -> None:
    """Above six objectives sets are not enumerated; four copies of each row change no answer."""
    J = jacobian.numpy()
    for c in (0.4, 1.0, 2.0):
        assert difference(ref.cagrad(J, c), ref.cagrad(np.tile(J, (4, 1)), c)) <= 1e-14


# The classics


def test_pcgrad_and_pcgrad_plus_are_upgrad_for_two_objectives() -> None:
    for family in FAMILIES.values():
        for J in members(family):
            if len(J) == 2:
                largest = float(np.linalg.norm(J, axis=1).max())
                assert difference(ref.upgrad(J), ref.pcgrad(J), largest) <= 1e-14
                assert difference(ref.upgrad(J), ref.pcgrad_plus(J), largest) <= 1e-13


def test_pcgrad_on_the_counter_example_of_the_paper() -> None:
    J = np.array([[1, math.sqrt(3), 0.1], [-2, 0, 0.1], [1, -math.sqrt(3), 0.1]])
    assert J[0] @ ref.pcgrad(J) == pytest.approx(-0.4702, abs=5e-5)
    assert (J @ ref.pcgrad_plus(J) >= -1e-12).all()


def test_pcgrad_takes_orders_and_sums() -> None:
    J = FAMILIES["conflicting"].make(4, 6, 0).numpy()
    back = ref.pcgrad(J[::-1], reduction="sum")
    assert difference(ref.pcgrad(J, orders=[[3, 2, 1, 0]] * 4), back / 4) <= 1e-14


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SCALED and "opposites" not in name])
def test_imtl_g_and_config_are_the_formulas_of_their_papers(name: str) -> None:
    """numpy's pinv, whose rank is a guess, agrees where rows are of similar size."""
    for J in members(FAMILIES[name]):
        norms = np.linalg.norm(J, axis=1)
        weights = np.linalg.pinv(J @ J.T, hermitian=True) @ norms
        if abs(weights.sum()) > 1e-3 * np.abs(weights).sum():
            assert difference(ref.imtl_g(J).direction, weights @ J / weights.sum()) <= 1e-9
        u = np.linalg.pinv(float64.unit_rows(J)[0]) @ np.ones(len(J))
        if np.linalg.norm(u) > 1e-6:  # else its direction is rounding
            u /= np.linalg.norm(u)
            assert difference(ref.config(J), (J @ u).sum() * u, float(norms.sum())) <= 1e-9


# Families


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
