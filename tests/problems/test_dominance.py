"""Dominance, the non-dominated subset and the hypervolume, each against a slow and obvious reference."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import paretograd as pg
from paretograd.problems import dominates, hypervolume, non_dominated

SETS = st.integers(1, 4).flatmap(
    lambda m: st.lists(st.lists(st.integers(0, 4), min_size=m, max_size=m), min_size=1, max_size=40)
)


def slow_subset(rows: list[list[float]]) -> list[bool]:
    """By the definition, with loops."""

    def beats(a: list[float], b: list[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))

    return [not any(beats(a, b) for a in rows) for b in rows]


def slow_volume(rows: list[list[float]], reference: list[float]) -> float:
    """The cells between all coordinates that some point dominates, added up one by one."""
    if not reference:
        return 1.0 if rows else 0.0
    rows = [row for row in rows if all(x < r for x, r in zip(row, reference, strict=True))]
    levels = sorted({row[0] for row in rows} | {reference[0]})
    total = 0.0
    for low, high in itertools.pairwise(levels):
        total += (high - low) * slow_volume([row[1:] for row in rows if row[0] <= low], reference[1:])
    return total


def draws(n: int, m: int, seed: int = 0) -> Tensor:
    return torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(rows=SETS)
def test_subset_is_the_definition(rows: list[list[float]]) -> None:
    """Ties and duplicates included."""
    assert non_dominated(torch.tensor(rows, dtype=torch.float64)).tolist() == slow_subset(rows)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_subset_across_blocks(m: int) -> None:
    """Several blocks of candidates, of which many are dominated by points of other blocks."""
    losses = torch.cat([draws(700, m), draws(300, m, seed=1) + 0.3])
    assert non_dominated(losses).tolist() == slow_subset(losses.tolist())


@pytest.mark.parametrize("m", [2, 3, 6])
def test_subset_of_ten_thousand_points_that_are_all_on_the_front(m: int) -> None:
    """The costliest case. Each has a copy that is worse, and is dominated by it."""
    front = draws(5_000, m)
    front /= front.norm(dim=-1, keepdim=True)
    kept = non_dominated(torch.cat([front + 1e-6, front]))
    assert kept[5_000:].all()
    assert not kept[:5_000].any()


def test_subset_of_few_and_of_extreme_points() -> None:
    assert non_dominated(torch.empty(0, 3)).shape == (0,)
    assert non_dominated(torch.tensor([[3.0], [1.0], [1.0]])).tolist() == [False, True, True]
    infinite = torch.tensor([[1.0, torch.inf], [torch.inf, torch.inf], [-torch.inf, torch.inf]])
    assert non_dominated(infinite).tolist() == [False, False, True]
    assert non_dominated(torch.tensor([[0.0, 1.0], [-0.0, 1.0]])).all()
    assert non_dominated(draws(50, 3).half().requires_grad_()).dtype == torch.bool


def test_dominance_broadcasts() -> None:
    losses = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    table = dominates(losses.unsqueeze(1), losses.unsqueeze(0))
    assert table.tolist() == [[False, True, True], [False] * 3, [False] * 3]


@given(rows=SETS)
def test_hypervolume_is_the_sum_of_dominated_cells(rows: list[list[float]]) -> None:
    reference = [3.5] * len(rows[0])
    found = hypervolume(torch.tensor(rows, dtype=torch.float64), reference)
    assert found == pytest.approx(slow_volume(rows, reference), rel=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_hypervolume_of_random_points(m: int) -> None:
    losses = draws(25, m)
    expected = slow_volume(losses.tolist(), [0.9] * m)
    assert hypervolume(losses, torch.full((m,), 0.9)) == pytest.approx(expected, rel=1e-6)  # a float32 reference
    assert hypervolume(losses, [0.9] * m) == pytest.approx(expected, rel=1e-12)


def test_hypervolume_of_known_fronts() -> None:
    """ZDT1's front up to (1, 1) bounds the area 1 - integral of 1 - sqrt(f1), which is 2/3; DTLZ2's leaves out pi/4."""
    assert hypervolume(pg.problem("zdt1").pareto_front(5_000), [1.0, 1.0]) == pytest.approx(2 / 3, abs=1e-3)
    front = pg.problem("dtlz2", m=2).pareto_front(5_000)
    assert hypervolume(front, [1.0, 1.0]) == pytest.approx(1 - torch.pi / 4, abs=1e-3)


def test_hypervolume_of_nothing() -> None:
    assert hypervolume(torch.empty(0, 2), [1.0, 1.0]) == 0.0
    assert hypervolume(torch.tensor([[2.0, 0.0]]), [1.0, 1.0]) == 0.0


def test_hypervolume_without_its_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moocore", None)
    with pytest.raises(pg.MissingExtraError, match=r"pip install 'paretograd\[moo\]'"):
        hypervolume(torch.zeros(1, 2), [1.0, 1.0])


@pytest.mark.parametrize("function", [non_dominated, lambda losses: hypervolume(losses, [1.0, 1.0])])
def test_wrong_losses(function) -> None:
    with pytest.raises(pg.DTypeError, match="torch tensor; got list"):
        function([[1.0, 2.0]])
    with pytest.raises(pg.DTypeError, match=r"got torch\.int64"):
        function(torch.tensor([[1, 2]]))
    with pytest.raises(pg.ShapeError, match=r"\(N, m\), one point per row; got \(2,\)"):
        function(torch.zeros(2))
    with pytest.raises(pg.InputError, match=r"drop the points \[1\]"):
        function(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]))


def test_wrong_reference() -> None:
    for reference in ([1.0], [1.0, torch.inf], 1.0):
        with pytest.raises(pg.ShapeError, match="m = 2 finite numbers"):
            hypervolume(torch.zeros(1, 2), reference)
