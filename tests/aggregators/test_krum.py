"""Krum and Multi-Krum: ties, neighbours, and gradients that lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import paretograd as pg


def drawn(m: int, n: int, seed: int) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chosen(rule: pg.Krum, J: Tensor) -> list[int]:
    return [int(k) for k in rule.weights(pg.gramian(J)).nonzero()[:, 0]]


@pytest.mark.parametrize("power", [1, 8, 30, 75])
def test_an_attacker_is_never_selected(power: int) -> None:
    for seed in range(20):
        J = 1.0 + 0.1 * drawn(9, 5, seed)
        J[3] = -(10.0**power)
        assert 3 not in chosen(pg.Krum(attackers=1), J)
        assert chosen(pg.Krum(attackers=1, selected=None), J) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_the_default_is_the_most_attackers_that_m_allows() -> None:
    for m, attackers in ((3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4)):
        for seed in range(5):
            J = drawn(m, 4, seed)
            assert chosen(pg.Krum(), J) == chosen(pg.Krum(attackers=attackers), J)


def test_ties_go_to_the_first() -> None:
    """Two gradients that are each other's only neighbour, and copies that rounding sets apart."""
    for J in (drawn(2, 3, 0), drawn(1, 3, 0).expand(4, 3) * torch.ones(4, 1), torch.zeros(3, 2)):
        assert chosen(pg.Krum(attackers=0), J) == [0]
    near = drawn(1, 50, 1) * (1.0 + 1e-16 * drawn(6, 50, 2))
    for seed in range(10):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        assert chosen(pg.Krum(), near[order]) == [0]


def test_more_selected_than_there_are_gradients() -> None:
    J = drawn(3, 4, 0)
    assert torch.allclose(pg.Krum(selected=7)(J), J.mean(dim=0))
    assert torch.equal(pg.Krum()(J[:1]), J[0])


def test_too_many_attackers_are_refused() -> None:
    with pytest.raises(pg.ParameterError, match=r"attackers=1 needs m >= 5 gradients; got m=4"):
        pg.Krum(attackers=1)(drawn(4, 3, 0))
    with pytest.raises(pg.ParameterError, match="selected=0"):
        pg.Krum(selected=0)
