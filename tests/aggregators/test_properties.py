"""Every rule keeps what its guarantee promises, on every family of Jacobians."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from hypothesis import given
from support.families import FAMILIES, HARD, Family
from support.fuzz.checks import examine, scene_of
from support.promises import NEGLIGIBLE, check_promises
from support.strategies import Case, cases
from support.table import ROWS, Row
from torch import Tensor

import paretograd as pg

rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


def promising(promise: str) -> pytest.MarkDecorator:
    """Parametrize a test by the rows whose rule promises something."""
    kept = [row for row in ROWS if getattr(row.make().guarantee, promise)]
    return pytest.mark.parametrize("row", kept, ids=lambda row: row.id)


def sizes(family: Family, wanted: tuple[int, ...]) -> list[tuple[int, int]]:
    """Shapes (m, n) of the family: one with few more columns than it needs, one with many."""
    shapes = []
    for m in wanted:
        low, high = family.columns(m)
        columns = {max(low, min(m + 3, high or m + 3)), high or max(low, 3 * m)}
        shapes += [(m, n) for n in columns if family.fits(m, n)]
    return shapes


@cache
def jacobians(family: Family) -> list[Tensor]:
    """A matrix of each shape, made once in a process."""
    return [family.make(m, n, m + n) for m, n in sizes(family, (1, 2, 3, 5, 12))]


@rows
@families
def test_promises_are_kept(row: Row, family: Family) -> None:
    for J in jacobians(family):
        if row.fits(len(J)):
            check_promises(row.make(), J)


@rows
@pytest.mark.parametrize("family", HARD.values(), ids=lambda family: family.name)
def test_promises_are_kept_where_rounding_decides(row: Row, family: Family) -> None:
    """On the fuzzer's families, and by its checks: what is promised, up to what the rounded rows can say."""
    for m, n in sizes(family, (2, 3, 4, 6)):
        if row.fits(m):
            for check in examine(scene_of(family, m, n, 7), row.id, depth=1):
                assert not check.is_violation, (check, m, n)


@rows
@given(case=cases())
def test_promises_are_kept_on_drawn_jacobians(row: Row, case: Case) -> None:
    if row.fits(case.m):
        check_promises(row.make(), case.jacobian)


@pytest.mark.parametrize("m", [40, 128])
@pytest.mark.parametrize("row", [row for row in ROWS if row.fits(128) and not row.id.endswith("*")], ids=lambda r: r.id)
def test_promises_are_kept_for_many_objectives(row: Row, m: int) -> None:
    for name in ("gaussian", "badly_scaled_conflicting", "duplicate_rows", "rank_deficient", "weakly_stationary"):
        check_promises(row.make(), FAMILIES[name].make(m, 2 * m, 0))


@rows
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "badly_scaled", "rank_deficient_acute", "opposite_rows"])
def test_homogeneity(row: Row, name: str) -> None:
    """A(tJ) = t^degree A(J). Powers of two scale without rounding, so only the last bits may differ."""
    J = FAMILIES[name].make(row.objectives, 8, 5)
    degree = row.make().guarantee.degree
    if degree is None:
        pytest.skip("the rule does not promise it")
    base = row.make()(J)
    for power in (-50, -17, 1, 50):
        t = 2.0**power
        scaled = row.make()(t * J) / t**degree
        assert (scaled - base).norm() <= 1e-12 * max(base.norm(), 1e-3 * J.norm())


@rows
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "badly_scaled", "rank_deficient_acute", "tall"])
def test_order_of_objectives_does_not_matter(row: Row, name: str) -> None:
    """Permutation equivariance: the weights may differ where they are not unique, the direction may not."""
    m = row.objectives
    if not row.make().guarantee.equivariant:
        pytest.skip("the rule does not promise it")
    for seed in range(4):
        J = FAMILIES[name].make(m, m - 1 if name == "tall" else m + 3, seed)
        permutation = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
        d, permuted = row.make()(J), row.make()(J[permutation])
        assert (d - permuted).norm() <= 1e-9 * d.norm() + NEGLIGIBLE * J.norm(dim=1).min()


@promising("scale_invariant")
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "rank_deficient_acute", "duplicate_rows"])
def test_scales_of_gradients_do_not_matter(row: Row, name: str) -> None:
    """Scale invariance: factors of the gradients change at most the length of the direction."""
    m = row.objectives
    for seed in range(4):
        J = FAMILIES[name].make(m, m + 3, seed)
        factors = torch.exp2(torch.randint(-9, 10, (m, 1), generator=torch.Generator().manual_seed(seed)))
        d, scaled = row.make()(J), row.make()(factors.double() * J)
        assert (scaled / scaled.norm() - d / d.norm()).norm() <= 1e-9


def paths(m: int, inside: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield Jacobians of small integers, many of them with dependent rows, each with a step to nearby Jacobians.

    Args:
        m: number of rows.
        inside: keep those with gamma > 0 only.
    """
    rng = torch.Generator().manual_seed(m)
    for n in (1, 2, 3):
        for _ in range(60):
            J, step = (torch.randint(-high, high + 1, (m, n), generator=rng).double() for high in (2, 1))
            if not inside or float(pg.stationarity(pg.gramian(J))) > 0.05:
                yield J, step


@promising("continuous_inside")
def test_directions_converge_with_their_jacobians(row: Row) -> None:
    """Continuity: A(J + t E) approaches A(J) as t vanishes, from any J, or from any J with gamma > 0.

    The slowest are the rules of power means next to stationary points: for a geometric mean of m = 3 slopes, one of
    them of order t, the distance is t^(1/6). So it falls to an eighth if J is 2^18 times closer.
    """
    promise, m = row.make().guarantee, row.objectives
    for J, step in paths(m, inside=not promise.continuous):
        d = row.make()(J)
        near, nearer = ((row.make()(J + 2.0**-power * step) - d).norm() for power in (6, 24))
        assert nearer <= max(near / 2.0, 1e-3), (J, step)


@rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_jacobians_are_aggregated_exactly(row: Row, dtype: torch.dtype) -> None:
    """The direction of a rounded Jacobian is the float64 direction of the same numbers, rounded once."""
    for seed in range(3):
        J = FAMILIES["gaussian"].make(row.objectives, 9, seed).to(dtype)
        d = row.make()(J)
        assert d.dtype == dtype
        exact = row.make()(J.double())
        assert (d.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


@rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_gramians_give_usable_weights(row: Row, dtype: torch.dtype) -> None:
    """Entries off by eps move the answer by about eps times the condition, here below 100."""
    if row.selects:
        pytest.skip("gradients of equal length and angle nearly tie")
    J = FAMILIES["well_conditioned"].make(row.objectives, 9, 3)
    w = row.make().weights(pg.gramian(J).to(dtype))
    assert w.dtype == dtype
    exact = row.make().weights(pg.gramian(J))
    assert (w.double() - exact).abs().max() <= 100 * torch.finfo(dtype).eps * exact.abs().max()


@rows
def test_a_batch_is_its_members(row: Row) -> None:
    """Solving (2, 3, m, m) at once gives bit for bit what solving one by one within a step gives."""
    m = row.objectives
    G = torch.stack([pg.gramian(FAMILIES["conflicting"].make(m, 7, seed)) for seed in range(6)]).reshape(2, 3, m, m)
    batch, single = row.make(), row.make()
    solution = batch.solve(G)
    assert solution.weights.shape == (2, 3, m)
    with single.one_step():
        one_by_one = torch.stack([single.weights(g) for g in G.reshape(6, m, m)]).reshape(2, 3, m)
    assert torch.equal(solution.weights, one_by_one)
    assert len(solution.items) == 6
    assert solution.residual == max(item.residual for item in solution.items)
