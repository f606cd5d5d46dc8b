"""Table 1 of the paper: each rule as the solution of the subproblem, with its s and r."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.dual_cone import GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG
from paretograd.aggregators.named import MGDA, CAGrad, CappedMGDA, DualProj, Mean
from paretograd.aggregators.power import FairGrad, NashMTL
from paretograd.aggregators.subproblem import Subproblem
from paretograd.subproblem import (
    Ball,
    CVaR,
    FromGramian,
    HalfSquare,
    Linear,
    Lowest,
    MeanBall,
    MinusPowerMean,
    NonConflicting,
    Scalarization,
    Smooth,
    WorstCase,
)

#: The mu in the row of IMTL-G, relative to the squared norms of the gradients. In the paper it tends to zero.
_MU = 1e-8


@dataclass(frozen=True)
class TableRow:
    """A row of Table 1.

    Attributes:
        s: the paper's s.
        r: the paper's r.
        result: the most specific result that covers the rule (the row's colour in the paper); None if there is none.
        dedicated: creates the rule with its own solver.
        subproblem: creates the same rule from s and r.
        length: ``"same"`` if the two directions are equal, ``"positive"`` or ``"any"`` if they agree up to a positive
            factor or up to any factor.
    """

    label: str
    s: str
    r: str
    result: str | None
    dedicated: Callable[[], Aggregator]
    subproblem: Callable[[], Subproblem]
    length: str = "same"

    def difference(self, jacobian: Tensor) -> float:
        """Return ``|d - d'| / |d|`` for the two directions, scaled to norm one if their lengths may differ."""
        d, other = self.dedicated()(jacobian), self.subproblem()(jacobian)
        if self.length != "same":
            d, other = d / d.norm(), other / other.norm()
        if self.length == "any":
            other = other * torch.sign(d @ other)
        return float((d - other).norm() / d.norm())


def _projections(G: Tensor) -> list[Tensor]:
    """Return alpha_k, the weights of the projection of g_k onto the dual cone, for each k."""
    return [Subproblem(NonConflicting(unit)).weights(G) for unit in np.eye(len(G))]


def _upgrad(G: Tensor) -> Scalarization:
    return Linear(torch.stack(_projections(G)).mean(dim=0))


def _greedy(G: Tensor) -> Scalarization:
    return Lowest([Linear(alpha) for alpha in _projections(G)])


def _dualproj(G: Tensor) -> Scalarization:
    return Linear(Subproblem(NonConflicting()).weights(G))


def _impartial(G: Tensor) -> Scalarization:
    norms = G.diagonal().sqrt()
    return Smooth(lambda x: ((x - norms) ** 2).sum())


def _sum_of_inverses(x: Tensor) -> Tensor:
    return torch.where(x > 0.0, 1.0 / x, torch.inf).sum()


TABLE_1: tuple[TableRow, ...] = (
    TableRow("LS (uniform)", "-1'x / m", "|d|^2 / 2", "thm:PSreg", Mean, lambda: Subproblem(Linear())),
    TableRow("MGDA", "max_k (-x_k)", "|d|^2 / 2", "thm:cvg_nonconflict", MGDA, lambda: Subproblem(WorstCase())),
    TableRow(
        "Nash-MTL",
        "-(prod_k x_k)^(1/m)",
        "|d|^2 / 2",
        "thm:PSreg",
        NashMTL,
        lambda: Subproblem(MinusPowerMean(0.0)),
        length="positive",
    ),
    TableRow(
        "FairGrad (alpha = 2)",
        "sum_k 1 / x_k",
        "|d| <= eps",
        "thm:PSreg",
        FairGrad,
        lambda: Subproblem(Smooth(_sum_of_inverses), Ball(1.0), strict=False),
        length="positive",
    ),
    TableRow(
        "DualProj", "-alpha'x", "|d|^2 / 2", "thm:PS_proj_cvg", DualProj, lambda: Subproblem(FromGramian(_dualproj))
    ),
    TableRow(
        "UPGrad",
        "-(mean_k alpha_k)'x",
        "|d|^2 / 2",
        "thm:PS_proj_cvg",
        UPGrad,
        lambda: Subproblem(FromGramian(_upgrad)),
    ),
    TableRow(
        "CAGrad (c = 1/2)",
        "max_k (-x_k)",
        "|d - g0| <= c |g0|",
        "thm:PS-cvx",
        lambda: CAGrad(0.5),
        lambda: Subproblem(WorstCase(), MeanBall(0.5)),
    ),
    TableRow(
        "IMTL-G",
        "|x - n|^2",
        "mu |d|^2, mu -> 0",
        None,
        IMTLG,
        lambda: Subproblem(FromGramian(_impartial), HalfSquare(2.0 * _MU)),
        length="any",
    ),
    TableRow(
        "Capped MGDA (eps = 1/2)",
        "CVaR_eps(x)",
        "|d|^2 / 2",
        "thm:PSreg",
        lambda: CappedMGDA(eps=0.5),
        lambda: Subproblem(CVaR(eps=0.5)),
    ),
    TableRow(
        "Greedy-DCP",
        "min_k -alpha_k'x",
        "|d|^2 / 2",
        "thm:PS_proj_cvg",
        GreedyDCP,
        lambda: Subproblem(FromGramian(_greedy)),
    ),
)
