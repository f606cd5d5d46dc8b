"""Table 1 of the paper: for each row, the direction from s and r is the dedicated rule's.

The table's own s are families; the independent ones here are written in torch or cvxpy, as a user would.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import paretograd as pg
from paretograd import subproblem as sp
from paretograd.aggregators.paper_table import TABLE_1, TableRow

ROWS = {row.label.split(" (")[0]: row for row in TABLE_1}

rows = pytest.mark.parametrize("row", TABLE_1, ids=lambda row: row.label)


def jacobians(sizes: tuple[int, ...] = (2, 3, 5, 10), seeds: int = 4) -> list[Tensor]:
    """Gaussian rows, all sizes, more columns than rows, so that the rows are well away from dependent."""
    draws = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return [torch.randn(m, 3 * m + 2, generator=draw, dtype=torch.float64) for m in sizes for draw in draws]


def test_the_table_has_the_rows_of_the_paper() -> None:
    names = [
        "LS",
        "MGDA",
        "Nash-MTL",
        "FairGrad",
        "DualProj",
        "UPGrad",
        "CAGrad",
        "IMTL-G",
        "Capped MGDA",
        "Greedy-DCP",
    ]
    assert list(ROWS) == names


@rows
def test_families_give_the_dedicated_direction(row: TableRow) -> None:
    # IMTL-G's mu is 1e-8 instead of 0, and its multipliers are differences that lose as many digits.
    tolerance = 1e-6 if row.label == "IMTL-G" else 1e-12
    assert max(row.difference(J) for J in jacobians()) <= tolerance


def difference(generic: pg.Aggregator, row: TableRow, J: Tensor) -> float:
    """As `TableRow.difference`, for another form of s."""
    d, other = row.dedicated()(J), generic(J)
    if row.length != "same":
        d, other = d / d.norm(), other / other.norm()
    if row.length == "any":
        other = other * torch.sign(d @ other)
    return float((d - other).norm() / d.norm())


def impartial_in_cvxpy(G: Tensor) -> sp.Scalarization:
    norms = G.diagonal().sqrt().numpy()
    return sp.Cvxpy(lambda x: cp.sum_squares(x - norms))


def projected(k: int) -> Callable[[cp.Expression], cp.Expression]:
    """-x_k where no objective goes up: its direction is the projection of gradient k onto the dual cone."""
    return lambda x: -x[k] + cp.transforms.indicator([x >= 0])


def projections(G: Tensor) -> list[sp.Linear]:
    """alpha_k of the paper, by the conic solver."""
    found = [pg.Subproblem(sp.Cvxpy(projected(k)), m=len(G)).weights(G) for k in range(len(G))]
    return [sp.Linear(alpha.clamp(min=0.0)) for alpha in found]


def mean_projection(G: Tensor) -> sp.Scalarization:
    return sp.Linear(sum(part.weights for part in projections(G)) / len(G))


IN_CVXPY: dict[str, Callable[[int], pg.Subproblem]] = {
    "LS": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: -cp.sum(x) / m)),
    "MGDA": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: cp.max(-x))),
    "Nash-MTL": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: -cp.geo_mean(x))),
    "FairGrad": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: cp.sum(cp.inv_pos(x))), sp.Ball(1.0), strict=False),
    "DualProj": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: -cp.sum(x) / m + cp.transforms.indicator([x >= 0]))),
    "UPGrad": lambda m: pg.Subproblem(sp.FromGramian(mean_projection)),
    "CAGrad": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: cp.max(-x)), sp.MeanBall(0.5)),
    "IMTL-G": lambda m: pg.Subproblem(sp.FromGramian(impartial_in_cvxpy), sp.HalfSquare(1e-7)),
    "Capped MGDA": lambda m: pg.Subproblem(sp.Cvxpy(lambda x: cvar(x, 0.5, m))),
    "Greedy-DCP": lambda m: pg.Subproblem(sp.FromGramian(lambda G: sp.Lowest(projections(G)))),
}


def cvar(x: cp.Expression, eps: float, m: int) -> cp.Expression:
    """The mean of the worst ``eps m``, a fraction of the last one included."""
    tail = eps * m
    whole = math.floor(tail)
    part = (1.0 - (tail - whole)) * cp.sum_largest(-x, whole) if whole else 0.0
    return (part + (tail - whole) * cp.sum_largest(-x, whole + 1)) / tail if tail > whole else part / tail


@pytest.mark.filterwarnings("ignore:inexact weights")  # the conic solver knows its answer for IMTL-G to 1e-4 only
@pytest.mark.parametrize("name", IN_CVXPY)
def test_cvxpy_gives_the_dedicated_direction(name: str) -> None:
    """To 1e-6, about what an interior-point method reaches for the weights; 1/x magnifies that a little."""
    tolerance = 5e-6 if name == "FairGrad" else 1e-6
    for J in jacobians(sizes=(2, 3, 5), seeds=2):
        assert difference(IN_CVXPY[name](len(J)), ROWS[name], J) <= tolerance


def positive_only(values: Tensor, x: Tensor) -> Tensor:
    """The sum of the values, infinite unless every x is positive."""
    return torch.where(x > 0.0, values, torch.inf).sum()


IN_TORCH: dict[str, Callable[[], pg.Subproblem]] = {
    "LS": lambda: pg.Subproblem(lambda x: -x.mean()),
    "Nash-MTL": lambda: pg.Subproblem(lambda x: positive_only(-x.log(), x), sp.Ball(1.0), strict=False),
    "FairGrad": lambda: pg.Subproblem(lambda x: positive_only(1.0 / x, x), sp.HalfSquare(), strict=False),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_torch_gives_the_dedicated_direction(name: str) -> None:
    """Newton's method reaches rounding, amplified by the condition of the Gramian (below 100 here)."""
    for J in jacobians():
        assert difference(IN_TORCH[name](), ROWS[name], J) <= 1e-12
