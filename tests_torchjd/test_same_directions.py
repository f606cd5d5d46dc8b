"""Rules of the same name: ours and TorchJD's return the same direction, to the accuracy of TorchJD's solver.

The matrices are random, with more columns than rows, and so of full rank: elsewhere the pseudo-inverses and the
regularization of the two libraries differ by design.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torchjd.aggregation as peer
from torch import Tensor
from torchjd.linalg import QuadprogProjector

import paretograd as pg
from paretograd.torchjd import from_torchjd, to_torchjd

SEEDS = range(20)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


@dataclass(frozen=True)
class Pair:
    """The same rule in both libraries, for three objectives.

    Attributes:
        ours, theirs: build the rules.
        tolerance: of the distance between the directions, relative to their length.
        m: the number of objectives.
    """

    id: str
    ours: Callable[[], pg.Aggregator]
    theirs: Callable[[], peer.Aggregator]
    tolerance: float
    m: int = 3


def unregularized() -> QuadprogProjector:
    """quadprog on the Gramian itself."""
    return QuadprogProjector(norm_eps=0.0, reg_eps=0.0)


#: Rounding in float64 of a few operations, and of a quadratic program or a linear system of three equations.
SUMMED, SOLVED = 1e-15, 1e-11

PAIRS = [
    Pair("Mean", pg.Mean, peer.Mean, SUMMED),
    Pair("Sum", lambda: pg.Mean([1.0, 1.0, 1.0]), peer.Sum, SUMMED),
    Pair("Constant", lambda: pg.Mean(WEIGHTS), lambda: peer.Constant(WEIGHTS), SUMMED),
    Pair("UPGrad", pg.UPGrad, lambda: peer.UPGrad(projector=unregularized()), SOLVED),
    Pair("UPGrad(pref)", lambda: pg.UPGrad(WEIGHTS), lambda: peer.UPGrad(WEIGHTS, projector=unregularized()), SOLVED),
    # reg_eps = 1e-4, on a diagonal that sums to one, shifts the weights by about 1e-4 times the condition number.
    Pair("UPGrad(default)", pg.UPGrad, peer.UPGrad, 3e-3),
    Pair("DualProj", pg.DualProj, lambda: peer.DualProj(projector=unregularized()), SOLVED),
    Pair(
        "DualProj(pref)",
        lambda: pg.DualProj(WEIGHTS),
        lambda: peer.DualProj(WEIGHTS, projector=unregularized()),
        SOLVED,
    ),
    Pair("DualProj(default)", pg.DualProj, peer.DualProj, 3e-3),
    # Frank-Wolfe after t steps has |d|^2 up to 1/t too large, in units of the gradients' norms.
    Pair("MGDA", pg.MGDA, lambda: peer.MGDA(epsilon=1e-12, max_iters=5_000), 2e-2),
    # Clarabel stops at a gap of 1e-8 between the optimal values, which are quadratic in the direction.
    Pair("CAGrad(.5)", pg.CAGrad, lambda: peer.CAGrad(0.5), 1e-3),
    Pair("CAGrad(1)", lambda: pg.CAGrad(1.0), lambda: peer.CAGrad(1.0), 1e-3),
    # scipy's least_squares stops when a step changes the sum of squares by less than 1e-8 of it.
    Pair("FairGrad", pg.FairGrad, lambda: peer.FairGrad(2.0), 1e-4),
    Pair("IMTLG", pg.IMTLG, peer.IMTLG, SOLVED),
    Pair("ConFIG", pg.ConFIG, peer.ConFIG, SOLVED),
    # For m = 2 there is only one order of the objectives.
    Pair("PCGrad", lambda: pg.PCGrad(reduction="sum"), peer.PCGrad, SUMMED, m=2),
]


def matrix(seed: int, m: int = 3) -> Tensor:
    return torch.randn(m, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_same_direction(pair: Pair) -> None:
    for seed in SEEDS:
        J = matrix(seed, pair.m)
        ours, theirs = pair.ours()(J), pair.theirs()(J)
        assert (ours - theirs).norm() <= pair.tolerance * theirs.norm()
        assert torch.equal(to_torchjd(pair.ours())(J), ours)
        # Their solver gets a Gramian that is rounded otherwise.
        assert (from_torchjd(pair.theirs())(J) - theirs).norm() <= pair.tolerance * theirs.norm()


def test_nash_mtl_where_their_solver_succeeds() -> None:
    """In TorchJD's NashMTL, ECOS may fail; its last weights are then returned without a word."""
    solved, seeds = 0, range(40)
    for seed in seeds:
        J = matrix(seed)
        weights = peer.NashMTL(n_tasks=3).weighting(J)
        products = weights * (J @ J.T @ weights)  # all equal at a solution, as G w = 1 / w up to the length of w
        if products.max() > 1.001 * products.min():
            continue
        solved += 1
        ours, theirs = pg.NashMTL()(J), weights @ J
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm()
    assert 0.8 * len(seeds) < solved < len(seeds)  # 37, which docs/from-torchjd.md says


@pytest.mark.parametrize("size", [1e-15, 1e-3, 1e15])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_our_rules_keep_their_accuracy(size: float, dtype: torch.dtype) -> None:
    """TorchJD squares the entries in the dtype of the Jacobian; the wrapper does not."""
    J = (size * matrix(0)).to(dtype)
    for rule in (pg.UPGrad(), pg.MGDA(), pg.PowerMean(-1.0), pg.ConFIG()):
        wrapped = to_torchjd(rule)
        found = wrapped(J)
        assert torch.equal(found, rule(J))
        assert found.dtype is dtype
