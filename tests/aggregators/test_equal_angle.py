"""IMTL-G, ConFIG and Aligned-MTL where gradients are dependent: the exact answer for the rows before they were rounded.

The rows of a family are fractions, exactly dependent. A rule sees them rounded to float32 or float64, which makes most
of them independent. The exact answer for the rounded rows is then noise, and the one for the fractions is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import references as ref
from torch import Tensor

import paretograd as pg

Exact = NDArray[Any]
Rng = np.random.Generator

DTYPES = [torch.float32, torch.float64]
REFERENCES: dict[type[pg.Aggregator], Callable[[Exact], Exact]] = {
    pg.IMTLG: lambda J: ref.imtl_g(J).direction,
    pg.ConFIG: ref.config,
    pg.AlignedMTL: ref.aligned_mtl,
}
#: Rows are known to 6e-8 or 1e-16; their condition, here up to 1e2, multiplies that, and is squared in a Gramian.
ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-10}


def fractions(values: Any) -> Exact:
    array = np.asarray(values)
    return np.array([Fraction(v) for v in array.ravel().tolist()], dtype=object).reshape(array.shape)


def draw(rng: Rng, *size: int) -> Exact:
    """Fractions of few bits, which float32 stores without rounding."""
    return fractions(rng.integers(-999, 1000, size)) / 256


def factors(rng: Rng, m: int, decades: int = 0) -> Exact:
    """Positive decimal fractions, which no float stores without rounding."""
    return fractions(rng.integers(1, 30, m)) * fractions(10) ** rng.integers(-decades, decades + 1, m) / 10


def rank_one(rng: Rng) -> Exact:
    m = int(rng.integers(2, 6))
    return np.outer(factors(rng, m) * rng.choice([-1, 1], m), draw(rng, 3))


def opposite(rng: Rng) -> Exact:
    a, b = draw(rng, 2, 4)
    return np.stack([a, a * Fraction(-3, 10), b])


def differences(rng: Rng) -> Exact:
    a, b, c, d = draw(rng, 4, 6) * factors(rng, 4)[:, None]
    return np.stack([a - b, b - c, c - a, d])


def copies(rng: Rng, decades: int = 0) -> Exact:
    m = int(rng.integers(3, 6))
    distinct = int(rng.integers(1, m))
    source = np.concatenate([np.arange(distinct), rng.integers(distinct, size=m - distinct)])
    return draw(rng, distinct, 6)[source] * factors(rng, m, decades)[:, None]


def opposite_copies(rng: Rng) -> Exact:
    J = copies(rng)
    return J * rng.choice([-1, 1], (len(J), 1))


def signs(rng: Rng) -> Exact:
    J = rng.integers(-1, 2, (int(rng.integers(2, 6)), int(rng.integers(1, 5))))
    J[~J.any(axis=1)] = 1
    return fractions(J)


FAMILIES = {
    "rank one": rank_one,
    "opposite": opposite,
    "differences": differences,
    "copies": copies,
    "copies over 16 decades": lambda rng: copies(rng, 8),
    "opposite copies": opposite_copies,
    "signs": signs,
}


def rounded(J: Exact, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[float(v) for v in row] for row in J], dtype=torch.float64).to(dtype)


def distance(a: Exact | Tensor, b: Exact | Tensor) -> float:
    return float(np.linalg.norm(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)))


def orders(m: int, rng: Rng) -> list[list[int]]:
    every = [list(order) for order in permutations(range(m))]
    return every if m < 5 else [every[k] for k in rng.integers(len(every), size=24)]


@pytest.mark.parametrize("rule", REFERENCES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_dependent_gradients_get_the_exact_direction_in_every_order(
    rule: type[pg.Aggregator], dtype: torch.dtype, family: str
) -> None:
    for seed in range(12):
        rng = np.random.default_rng([seed, len(family)])
        exact_rows = FAMILIES[family](rng)
        J = rounded(exact_rows, dtype)
        status = rule().solve(pg.gramian(J)).status
        try:
            exact = REFERENCES[rule](exact_rows)
        except ZeroDivisionError:
            exact = np.zeros(J.shape[1])
            assert status is pg.Status.DEGENERATE
        longest = max(float(J.norm(dim=1).max()), float(np.linalg.norm(exact)))
        for order in orders(len(J), rng):
            assert distance(rule()(J[order]), exact) <= ALLOWED[dtype] * longest, (seed, order)
        assert status is pg.Status.OPTIMAL or (status is pg.Status.DEGENERATE and not exact.any()), seed


@pytest.mark.parametrize("rule", REFERENCES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_starred_rules_keep_their_sign_in_every_order(
    rule: type[pg.Aggregator], dtype: torch.dtype, family: str
) -> None:
    for seed in range(12):
        rng = np.random.default_rng([seed, len(family)])
        J = rounded(FAMILIES[family](rng), dtype)
        starred = rule().normalized()
        d = starred(J)
        for order in orders(len(J), rng):
            assert distance(starred(J[order]), d) <= ALLOWED[dtype] * float(J.norm(dim=1).max()), (seed, order)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_config_has_no_direction_where_the_unit_gradients_cancel(dtype: torch.dtype) -> None:
    a = 0.5023306973107161
    J = torch.tensor([[a], [-0.21528458456173546], [0.07176152818724517], [-a]], dtype=torch.float64).to(dtype)
    for order in permutations(range(4)):
        solution = pg.ConFIG().solve(pg.gramian(J[list(order)]))
        assert solution.status is pg.Status.DEGENERATE
        assert not solution.weights.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_config_is_zero_where_its_projections_cancel_and_its_starred_variant_has_no_value(dtype: torch.dtype) -> None:
    """The unit vector exists, (+, -, -) along one line, and the gradients 0.6, -0.3, -0.3 sum to zero along it."""
    J = torch.outer(torch.tensor([0.6, -0.3, -0.3]), torch.tensor([0.1, 0.7, -0.2])).to(dtype)
    for order in permutations(range(3)):
        G = pg.gramian(J[list(order)])
        plain, starred = pg.ConFIG().solve(G), pg.ConFIG().normalized().solve(G)
        assert plain.status is pg.Status.OPTIMAL
        assert starred.status is pg.Status.DEGENERATE
        assert not plain.weights.any()
        assert not starred.weights.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [[1.0, -1.0], [0.7, -0.7, 0.3, -0.3], [0.6, -0.3, -0.3]])
def test_imtl_g_has_no_value_where_its_weights_sum_to_zero(dtype: torch.dtype, lengths: list[float]) -> None:
    """Along one line the weights are proportional to the gradients: they sum to zero where the gradients do."""
    J = torch.outer(torch.tensor(lengths), torch.tensor([0.1, 0.7, -0.2])).to(dtype)
    solution = pg.IMTLG().solve(pg.gramian(J))
    assert solution.status is pg.Status.DEGENERATE
    assert not solution.weights.any()


@pytest.mark.parametrize("rule", [pg.IMTLG, pg.ConFIG])
def test_rows_apart_by_more_than_the_resolution_are_independent(rule: type[pg.Aggregator]) -> None:
    """Opposite up to 1e-5 in float64: the direction, 1e-5 long, is what remains of gradients with 16 digits."""
    for seed in range(5):
        a, b, c = np.random.default_rng(seed).standard_normal((3, 5))
        J = np.stack([a, -1.7 * (a + 1e-5 * c), b])
        exact = REFERENCES[rule](J)
        for order in permutations(range(3)):
            d = rule()(torch.from_numpy(J[list(order)]))
            assert distance(d, exact) <= 1e-9 * np.linalg.norm(exact)


@pytest.mark.parametrize("rule", REFERENCES)
def test_rows_apart_by_less_than_the_resolution_are_dependent(rule: type[pg.Aggregator]) -> None:
    for seed in range(5):
        a, b, c = np.random.default_rng(seed).standard_normal((3, 5))
        nearly = torch.from_numpy(np.stack([a, -2.0 * (a + 1e-8 * c), b]))
        exact = REFERENCES[rule](np.stack([a, -2.0 * a, b]))
        for order in permutations(range(3)):
            assert distance(rule()(nearly[list(order)]), exact) <= 1e-7 * np.linalg.norm(exact)


@pytest.mark.parametrize("rule", REFERENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_low_precision_gramian_decides_its_rank_by_its_own_rounding(
    rule: type[pg.Aggregator], dtype: torch.dtype
) -> None:
    J = rounded(opposite(np.random.default_rng(3)), torch.float64)
    exact = rule()(J)
    w = rule().weights(pg.gramian(J).to(dtype)).double()
    # Cosines off by eps move the weights by a few eps here.
    assert distance(w @ J, exact) <= 20 * torch.finfo(dtype).eps * float(J.norm(dim=1).max())
