"""Aligned-MTL: what alignment does, where its steps vanish, and gradients of very different lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.families import FAMILIES

import paretograd as pg
from paretograd.solvers.lapack import graded_svd


def gaussian(m: int, n: int, seed: int) -> torch.Tensor:
    return FAMILIES["gaussian"].make(m, n, seed)


def test_orthogonal_gradients_get_the_length_of_the_shortest() -> None:
    J = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    assert torch.allclose(pg.AlignedMTL()(J), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=1e-15)
    assert torch.allclose(pg.AlignedMTL("median")(J), torch.full((3,), 2 / 3, dtype=torch.float64), rtol=1e-15)
    assert torch.allclose(pg.AlignedMTL("rmse")(J), torch.full((3,), math.sqrt(7) / 3, dtype=torch.float64), rtol=1e-15)


def test_ones_give_the_sum_of_the_original_code() -> None:
    J = gaussian(3, 5, 0)
    assert torch.allclose(pg.AlignedMTL(preference=[1.0] * 3)(J), 3.0 * pg.AlignedMTL()(J), rtol=1e-14)


def test_the_lower_of_two_middle_singular_values_is_the_median() -> None:
    J = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    assert torch.allclose(pg.AlignedMTL("median")(J), torch.full((4,), 0.5, dtype=torch.float64), rtol=1e-15)


def test_one_gradient_is_its_own_direction() -> None:
    J = gaussian(1, 4, 0)
    for scale in ("min", "median", "rmse"):
        assert torch.allclose(pg.AlignedMTL(scale)(J), J[0], rtol=1e-15)


def test_steps_are_no_longer_than_gamma_for_independent_gradients() -> None:
    """|d| = sigma |p| = sigma / sqrt(m), and no weight vector on the simplex is shorter than 1 / sqrt(m)."""
    for seed in range(50):
        J = gaussian(2 + seed % 4, 8, seed)
        d = pg.AlignedMTL()(J)
        sigma = torch.linalg.svdvals(J)[-1]
        assert d.norm() == pytest.approx(float(sigma) / math.sqrt(len(J)), rel=1e-12)
        assert d.norm() <= pg.stationarity(pg.gramian(J)) * (1.0 + 1e-9)


def test_steps_vanish_where_gradients_become_dependent_and_jump_where_they_are() -> None:
    """Two nearly parallel gradients are far from stationary, and yet there is hardly a step."""
    for gap in (1e-1, 1e-2, 1e-3):
        J = torch.tensor([[1.0, 0.0], [1.0, gap]], dtype=torch.float64)
        assert pg.AlignedMTL()(J).norm() < gap
        assert float(pg.stationarity(pg.gramian(J))) == pytest.approx(1.0)
    J = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(pg.AlignedMTL()(J), J[0])


def test_a_preference_is_that_of_condition_a() -> None:
    p = [0.2, 3.0, 0.0]
    rule = pg.AlignedMTL(preference=p)
    for seed in range(20):
        J = gaussian(3, 5, seed)
        d = rule(J)
        assert float((J @ d) @ torch.tensor(p, dtype=torch.float64)) >= float(d @ d) * (1.0 - 1e-12)
    assert str(rule.guarantee.F) == "0.2 f_0 + 3 f_1 + 0 f_2"
    with pytest.raises(pg.ParameterError, match=r"preference has 3 numbers, but there are m = 2"):
        rule(gaussian(2, 5, 0))


def test_other_scales_do_not_satisfy_condition_a() -> None:
    J = torch.diag(torch.tensor([1.0, 1e-3, 1e-3], dtype=torch.float64))
    d = pg.AlignedMTL("rmse")(J)
    assert float((J @ d).mean()) < 0.7 * float(d @ d)
    assert pg.AlignedMTL("rmse").guarantee.alignment is None


def test_a_scale_that_does_not_exist() -> None:
    with pytest.raises(pg.ParameterError, match="scale='max': use 'min'"):
        pg.AlignedMTL("max")  # type: ignore[arg-type]


@pytest.mark.parametrize("decades", [15, 150])
def test_gradients_that_differ_by_hundreds_of_decades(decades: int) -> None:
    """The polar factor of ``D Q`` with orthonormal rows Q is Q, whatever the lengths in D."""
    Q = torch.linalg.qr(gaussian(9, 6, 3))[0].T
    lengths = 10.0 ** torch.linspace(-decades, decades, 6, dtype=torch.float64)
    d = pg.AlignedMTL()(lengths[:, None] * Q)
    assert torch.allclose(d / lengths[0], Q.mean(dim=0), rtol=1e-10, atol=1e-14)


def test_mean_gradient_zero() -> None:
    """If the gradients sum to zero, so do the aligned ones, up to rounding, which must not pass for a direction."""
    J = gaussian(3, 4, 1)
    J[2] = -J[0] - J[1]
    G = pg.gramian(J)
    solution = pg.AlignedMTL().solve(G)
    assert solution.status is pg.Status.OPTIMAL
    assert not solution.weights.any()
    assert pg.AlignedMTL().normalized().solve(G).status is pg.Status.DEGENERATE


def test_the_graded_decomposition_finds_small_singular_values() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 5)) * 10.0 ** -np.arange(0.0, 100.0, 20.0)
    U, s, V = graded_svd(A)
    assert np.linalg.norm(U.T @ U - np.eye(5)) <= 1e-14
    assert np.linalg.norm(V.T @ V - np.eye(5)) <= 1e-14
    error = np.abs((U * s) @ V.T - A) / np.linalg.norm(A, axis=0)
    assert error.max() <= 1e-14  # column by column
