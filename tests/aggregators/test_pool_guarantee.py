"""What pools of rules guarantee: the theorem and constant of a pool, on drawn pools and on whole runs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.promises import check_promises
from support.strategies import Case, cases
from support.table import ROWS, Row, later
from torch import Tensor

import paretograd as pg
from paretograd import subproblem as sp
from paretograd.aggregators.mixed import paper_pool
from paretograd.guarantees import MEAN, SUM, Surrogate


def test_the_papers_pool_has_theorem_2() -> None:
    for name in ("mas-rand", "mas-rr(1000)", "mas-rr(3)*"):
        promise = pg.get(name).guarantee
        assert (promise.theorem, promise.alignment, promise.F) == ("thm:cvg_nonconflict", 1.0, SUM)
        assert promise.non_conflicting
        assert promise.in_hull
        assert promise.equivariant
        assert promise.degree == 1.0


@pytest.mark.parametrize(
    ("pool", "theorem", "alignment", "F"),
    [
        ([pg.MGDA(), pg.UPGrad().normalized()], "thm:cvg_nonconflict", 1.0, SUM),
        ([pg.UPGrad(), pg.DualProj()], "thm:PS_proj_cvg", 1.0, SUM),
        ([pg.UPGrad([1.0, 1.0]), pg.DualProj()], "thm:PS_proj_cvg", 0.5, SUM),
        ([pg.UPGrad(), pg.MGDA()], "thm:PS-cvx", 1.0, SUM),
        ([pg.Mean(), pg.CAGrad(0.25)], "thm:PS-cvx", 0.8, MEAN),
        ([pg.Mean(), pg.MGDA(), pg.CAGrad(0.25)], "thm:PS-cvx", 0.8, MEAN),
        ([pg.MGDA(), pg.DualProj().normalized()], "thm:cvg_nonconflict", 1.0, MEAN),
        ([pg.DualProj([1.0, 2.0]), pg.UPGrad()], "thm:PS_proj_cvg", 0.5, SUM),
        ([pg.CappedMGDA(cap=0.5), pg.EntropicMGDA()], "thm:PSreg", 1.0, MEAN),
        ([pg.PowerMean(-1.0), pg.Mean()], "thm:PS-cvx", 1.0, MEAN),
        ([pg.NashMTL(), pg.MGDA()], "thm:PS-fd", None, SUM),
        ([pg.NashMTL(), pg.Mean()], "thm:PS-fd", None, SUM),
        ([pg.UPGrad([0.2, 0.2]), pg.MGDA()], "thm:PS-fd", 1.0, SUM),
        ([pg.MGDA()], "thm:cvg_nonconflict", 1.0, MEAN),
        ([pg.Mean([1.0, 2.0])], "thm:PS-cvx", 1.0, Surrogate((1.0, 2.0))),
        ([pg.Mean([1.0, 2.0]), pg.Mean([1.0, 2.0])], "thm:PS-cvx", 1.0, Surrogate((1.0, 2.0))),
        ([pg.Mean([0.1, 0.2]), pg.Subproblem(sp.Linear([0.1, 0.2]))], "thm:PS-fd", 1.0, Surrogate((0.1, 0.2))),
        ([pg.Mean([1.0, 2.0]), pg.MGDA()], None, None, SUM),
        ([pg.Mean([1.0, 2.0]), pg.Mean([2.0, 1.0])], None, None, SUM),
        ([pg.MGDA(), pg.RGW(seed=0)], None, None, SUM),
        ([pg.Mixed([pg.Mean(), pg.UPGrad()]), pg.MGDA()], "thm:PS-cvx", 1.0, SUM),
        ([pg.Blend([pg.Mean(), pg.CAGrad(0.25)]), pg.Mean()], "thm:PS-cvx", 0.8, MEAN),
    ],
    ids=str,
)
def test_theorem_and_constant(
    pool: list[pg.Aggregator], theorem: str | None, alignment: float | None, F: Surrogate
) -> None:
    promise = pg.Mixed(pool).guarantee
    assert (promise.theorem, promise.alignment, promise.F) == (theorem, alignment, F)


def test_notes_name_the_rules_that_the_promise_depends_on() -> None:
    assert "holds RGW, IMTL-G, which no theorem covers" in pg.Mixed([pg.RGW(), pg.IMTLG(), pg.MGDA()]).guarantee.note
    assert "Mean has F = 1 f_0 + 2 f_1." in pg.Mixed([pg.Mean([1.0, 2.0]), pg.MGDA()]).guarantee.note
    assert pg.Mixed([pg.NashMTL(), pg.MGDA()]).guarantee.note == pg.NashMTL().guarantee.note
    assert pg.Mixed([pg.NashMTL(), pg.Mean()]).guarantee.note == f"Nash-MTL: {pg.NashMTL().guarantee.note}"
    assert pg.Mixed([pg.Mean(), pg.CappedMGDA(cap=0.5)]).guarantee.note == ""


def test_the_star_of_a_pool_is_the_pool_of_stars() -> None:
    pool = [pg.NashMTL(), pg.Mean()]
    starred = pg.Mixed(pool).normalized().guarantee
    assert starred == pg.Mixed([rule.normalized() for rule in pool]).guarantee
    assert (starred.theorem, starred.alignment, starred.F) == ("thm:PS-cvx", 1.0, SUM)


def test_degrees_and_orders_must_be_common() -> None:
    assert pg.Mixed([pg.NashMTL(), pg.MGDA()]).guarantee.degree is None
    assert pg.Mixed([pg.NashMTL(), pg.NashMTL(max_norm=2.0)]).guarantee.degree == 0.0
    assert not pg.Mixed([pg.MGDA(), pg.GreedyDCP()]).guarantee.equivariant


@given(
    rows=st.lists(st.sampled_from(ROWS), min_size=1, max_size=4),
    case=cases(max_m=6),
    nested=st.booleans(),
    starred=st.booleans(),
)
def test_any_pool_keeps_what_it_promises(rows: list[Row], case: Case, nested: bool, starred: bool) -> None:
    fitting = [row for row in rows if row.fits(case.m)]
    if not fitting:
        return
    for turn in range(len(fitting)):
        pool = [row.make() for row in fitting]
        rule = later(pg.Mixed(pool), turn)
        if nested:
            rule = pg.Mixed([rule, pg.MGDA()])
        check_promises(rule.normalized() if starred else rule, case.jacobian)
        promise = rule.guarantee
        covered = all(member.guarantee.theorem for member in pool)
        own_f = any(member.guarantee.F not in (SUM, MEAN) for member in pool)
        assert (promise.theorem is not None) == covered or own_f


HESSIANS = torch.tensor([[1.0, 4.0], [3.0, 0.5]], dtype=torch.float64)
CENTRES = torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64)


def run(rule: pg.Aggregator, theta: Tensor, steps: int, lr: float) -> tuple[Tensor, list[float], list[float]]:
    """Descent on f_k = sum_i h_ki (theta_i - c_ki)^2 / 2: the last point, every gamma and every squared |d|."""
    gammas, squares = [], []
    for _ in range(steps):
        jacobian = HESSIANS * (theta - CENTRES)
        gammas.append(float(pg.stationarity(pg.gramian(jacobian))))
        d = rule(jacobian)
        squares.append(float(d @ d))
        theta = theta - lr * d
    return theta, gammas, squares


START = torch.tensor([4.0, -3.0], dtype=torch.float64)


@pytest.mark.parametrize("name", ["mas-rand(3)", "mas-rr(1)", "mas-rr(20)"])
def test_a_run_comes_near_stationarity_and_resumes_bit_by_bit(name: str) -> None:
    end, gammas, _ = run(pg.get(name), START, 200, 0.05)
    assert gammas[-1] < 0.05 * gammas[0]
    first = pg.get(name)
    middle, before, _ = run(first, START, 77, 0.05)
    saved = json.loads(json.dumps(first.state_dict()))
    again = pg.get(name)
    again.load_state_dict(saved)
    resumed, after, _ = run(again, middle, 123, 0.05)
    assert torch.equal(resumed, end)
    assert before + after == gammas


@pytest.mark.parametrize(
    "pool",
    [paper_pool(), (pg.Mean(), pg.UPGrad()), (pg.Mean(), pg.CAGrad()), (pg.Mean(), pg.CAGrad(), pg.MGDA())],
    ids=str,
)
def test_the_bound_of_corollary_1_holds_on_a_run(pool: tuple[pg.Aggregator, ...]) -> None:
    """sum_t |d_t|^2 <= 2 L F(w_0) / c^2 with the step c / L, for the F and the c of the pool."""
    rule = pg.Mixed(pool, pg.Random(0))
    promise = rule.guarantee
    assert promise.alignment is not None
    phi = torch.from_numpy(promise.F.phi(2))
    smoothness = float((phi @ HESSIANS).max())
    start = float(phi @ (HESSIANS * (START - CENTRES) ** 2 / 2).sum(dim=1))
    _, gammas, squares = run(rule, START, 300, promise.alignment / smoothness)
    bound = 2.0 * smoothness * start / promise.alignment**2
    assert sum(squares) <= bound
    assert min(gammas) <= math.sqrt(bound / 300)
