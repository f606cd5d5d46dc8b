"""Ten seconds of the fuzzer, always the same ones, and that it finds, shrinks and shows what is wrong."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from support import references as ref
from support.families import FAMILIES, HARD
from support.families.cancelling import exact
from support.fuzz import campaign, report
from support.fuzz.checks import RULES, Scene, examine
from support.fuzz.exact import Problem
from support.fuzz.inputs import Input, draw
from support.fuzz.shrink import shrink
from support.fuzz.sums import ExactRows
from support.fuzz.truth import TRUTHS
from support.table import Row

import paretograd as pg


@pytest.mark.parametrize("part", range(8))
def test_no_rule_breaks_a_promise(part: int) -> None:
    """25 Jacobians a part, every rule; a failure prints the smallest inputs of some kinds."""
    tally = campaign.run(25, first=25 * part)
    first = list(tally.smallest.items())[:5]
    shown = [report.describe(shrink(kept[0], 50), tally.violations[kind]) for kind, kept in first]
    assert not shown, f"{len(tally.smallest)} kinds of violations\n" + "\n\n".join(shown)
    assert tally.jacobians == 25


#: Rules, and inputs on which they failed once, made small by the fuzzer.
FOUND = [
    ("pcgrad+", [[1, -0.5, 0, 0], [-0.3, -0.6, -1, -0.9], [-0.8, -1, -0.59, -1], [0.1, 1.784, 1.445, 1.2]]),
    (
        "cagrad(.5)",
        [
            [0, 3.7e137, 3.7e137, 3.7e137, -3.7e137, -3.7e137],
            [9.6e52, 0, -9.6e52, 0, 9.6e52, 9.6e52],
            [-3.3e-142, 3.3e-142, 0, 3.3e-142, 0, 3.3e-142],
            [0, -1, -1, -1, 0, 0],
        ],
    ),
    ("config*", [[0, 0, -7.8e143], [-9.1e133, 0, 9.1e133], [5.1e-144, 5.1e-144, 0], [0, -4.7e49, -4.7e49]]),
    (
        "fairgrad(.5)",
        [[0, 0, 2.0**-27], [-(2.0**-46), 0, 0], [2.0**42, 2.0**42, -(2.0**42)], [-(2.0**-12), 0, 2.0**-12]],
    ),
    (
        "fairgrad(10)",
        [
            [0, 0, 0, -(2.0**21)],
            [-(2.0**25), -(2.0**25), -(2.0**25), 2.0**25],
            [-(2.0**25), 0, -(2.0**25), 0],
            [2.0**-32, 0, -(2.0**-32), 2.0**-32],
        ],
    ),
    (
        "capped-mgda(eps=.5)",
        [
            [9.456610825966401e117, 2.85087722678743e118],
            [0, 2.2e-48],
            [8.407905781556849e-44, 2.5347249198198053e-43],
            [-2.8182896453042034e110, -8.496276220045775e110],
            [0, 0],
            [4.8050651477044104e-144, 1.4485793118615064e-143],
        ],
    ),
    (
        "capped-mgda(eps=.5)",
        [
            [0, 1, 0, 0],
            [-1, 0.4, 0.01, 0.1],
            [1.774920270333888e-66, 7.049565072172868e-66, -2.2480526746400997e-66, -1.1862553016413607e-66],
            [-2.4640646734111358e-33, 1.0939079636434267e-33, 5.908400225105059e-35, 2.3848369975580198e-33],
            [2.5367829621115104e-117, -1.1261908480864476e-117, -6.082766084070831e-119, -2.4552171572847864e-117],
            [1.8792071833434662e-96, 5.44958079631606e-96, 3.865576447427718e-98, -4.1254216516180793e-97],
            [2.382681228043002e-43, 1.9157360671314425e-43, -1.2213039712720562e-43, -3.475368265597464e-43],
            [-2.3248218724459473e135, 1.0320918877508353e135, 5.574520110088407e133, 2.2500713045270472e135],
        ],
    ),
    ("power-mean(-20)", [[-1e-13, 0, 1e-13], [0, 1, 1], [0, 0, -7e-9]]),
    (
        "fairgrad(10)",
        [[0, 0, -1e-15, 0], [1, -1, 1, 1], [-2.91e-11, 2.91e-11, 0, 0], [33554432, 0, 0, 0]],
    ),
    ("chi-square-mgda", [[1, 2], [2, -1], [-1, 2]]),
    ("spectral-mgda(4,2,1)", [[-1e143], [-1e-144], [-1e-141], [-5e-34], [1.0540952230393215]]),
    (
        "capped-mgda(eps=.5)",
        [
            [-0.6784137719419857, 1.253804550710456],
            [1e-133, 1.349e-133],
            [-1.838844213458966e-20, 3.3984440443812206e-20],
            [-2.3525163e-30, -5.573254e-30],
        ],
    ),
    ("upgrad*", [[1, 0], [5, 0], [-2, 1]]),
    ("blend(mgda,upgrad,dualproj)*", [[1, 0], [5, 0], [-2, 1]]),
    ("subproblem(non-conflicting)*", [[1, 0], [5, 0], [-2, 1]]),
]


def test_smallest_weights_that_would_conflict_are_not_taken() -> None:
    """The angle of rows 0 and 3 is just resolved, 1e-6; the distance of row 0 from the span of the others is not."""
    J = torch.tensor(
        [
            [-7.572150372958025, -6.192897142048898, -0.6256295475283395, -5.330125382892109, 0.7504163846697434],
            [-0.2160523682832718, -0.5936726331710815, -1.1046717166900635, -0.10292411595582962, -1.0040425062179565],
            [-1.6159859895706177, -1.182428240776062, -0.23608346283435822, 0.46650242805480957, -0.32703712582588196],
            [1.3695329427719116, 1.1200746297836304, 0.11315513402223587, 0.9640308022499084, -0.1357235163450241],
            [-0.9657367467880249, -0.2907196283340454, -0.861290693283081, -0.8169751763343811, 0.4461911618709564],
        ],
        dtype=torch.float64,
    )
    last = [-0.19563920253971612, 0.10306178033351898, -0.31266576051712036, 0.035382453352212906, 1.403663158416748]
    J = torch.column_stack([J, torch.tensor(last, dtype=torch.float64)])
    d = pg.UPGrad().normalized()(J)
    assert torch.cosine_similarity(J, d[None]).min() >= -1e-5


@pytest.mark.parametrize(("name", "rows"), FOUND, ids=[name for name, _ in FOUND])
def test_what_it_found_once(name: str, rows: list[list[float]]) -> None:
    given = Input("found", tuple(tuple(map(float, row)) for row in rows), single=False)
    with warnings.catch_warnings():
        campaign.prepare()
        for check in examine(Scene(given), name, depth=2):
            assert not check.is_violation, check


class _Wrong(pg.Mean):
    """The mean, with a promise that it does not keep."""

    @property
    def guarantee(self) -> pg.Guarantee:
        return replace(super().guarantee, non_conflicting=True)


def test_a_broken_promise_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gradients, one column: the least that a conflict needs."""
    monkeypatch.setitem(RULES, "wrong", Row("wrong", _Wrong))
    tally = campaign.run(40, first=100, names=["wrong"], families=["gaussian", "conflicting"])
    assert set(tally.violations) == {("wrong", "conflict")}
    small = shrink(tally.smallest["wrong", "conflict"][0])
    assert (small.given.m, small.given.n) == (2, 1)
    assert all(x in (1.0, -1.0) or len(repr(x)) <= 5 for row in small.given.rows for x in row)
    text = report.describe(small, 3)
    assert "wrong: conflict (found 3 times" in text
    assert (
        f"J = torch.tensor([[{small.given.rows[0][0]!r}], [{small.given.rows[1][0]!r}]], dtype=torch.float64)" in text
    )
    assert "0 of 1 rules without a violation" in report.table(tally)


def test_a_seed_is_always_the_same_input() -> None:
    for seed in range(20):
        assert draw(seed) == draw(seed)
    assert {draw(seed, ["signs"]).family for seed in range(5)} == {"signs"}


def test_ideal_rows_are_the_stored_ones_but_for_rounding() -> None:
    for family in HARD.values():
        given = Input.of(family, 4, 3, 5)
        eps = 1e-4 if family.name.startswith("nearly") else 1.3e-7 if given.single else 2.3e-16
        for ideal in given.ideals or ():
            rows = np.array([[float(x) for x in row] for row in ideal])
            assert np.abs(rows - np.array(given.rows)).max() <= eps * np.abs(rows).max()


def test_exact_answers_agree_with_the_references() -> None:
    """Two ways to the same numbers: supports in integers, and an active-set method in fixed point."""
    for family in ("conflicting", "rank_deficient", "weakly_stationary", "badly_scaled", "tall", "signs"):
        J = (FAMILIES | HARD)[family].make(4, 3 if family == "tall" else 5, 1)
        problem, A = Problem(exact(J)), J.numpy()
        expected = {
            "upgrad": ref.upgrad(A),
            "dualproj": ref.dualproj(A),
            "greedy-dcp": ref.greedy_dcp(A),
            "mgda": ref.min_norm_point(A).direction,
            "capped-mgda(.5)": ref.min_norm_point(A, 0.5).direction,
            "pcgrad": ref.pcgrad(A),
        }
        if not problem.is_stationary:
            expected |= {"cagrad(.5)": ref.cagrad(A, 0.5), "cagrad(1)": ref.cagrad(A, 1.0)}
        for name, d in expected.items():
            answers = [np.ldexp(problem.direction(w), problem.exponent) for w in TRUTHS[name].answers(problem) if w]
            assert min(np.linalg.norm(x - d) for x in answers) <= 1e-13 * np.abs(A).max(), (family, name)


def test_the_limit_of_the_sweeps() -> None:
    J = FAMILIES["conflicting"].make(4, 9, 0)
    problem = Problem(exact(J))
    w = problem.pcgrad_plus()
    assert w is not None
    assert np.linalg.norm(np.ldexp(problem.direction(w), problem.exponent) - ref.pcgrad_plus(J.numpy())) <= 1e-12


def test_sums_without_rounding() -> None:
    """Where terms cancel to the last bit but one, and where norms span three hundred decades."""
    rows = ExactRows(np.array([[1.0, 1e16], [0.0, -1e16]]))
    found = rows.sum(np.array([1.0, 1.0]))
    assert np.ldexp(found.d, found.exponent).tolist() == [1.0, 0.0]
    assert np.ldexp(found.length, found.exponent) == 1.0
    found = ExactRows(np.array([[3e-150, 4e-150], [1e150, 0.0]])).sum(np.array([1e150, 1e-150]))
    assert np.ldexp(found.length, found.exponent) == pytest.approx(np.hypot(4.0, 4.0))
    assert found.slopes == pytest.approx(np.ldexp([0.6 * 4 + 0.8 * 4, 4.0], -found.exponent))


def test_weights_are_the_smallest_that_give_the_projection() -> None:
    """Of a duplicate, once long and once short, either will do; the size is the same, and no combination is smaller."""
    rows = [[Fraction(x) for x in row] for row in ((1, 0), (-1, 0), (-4, 0), (0, 1))]
    problem = Problem(rows)
    w = problem.project([Fraction(1), Fraction(0), Fraction(0), Fraction(0)])
    assert problem.direction(w) == [0.0, 0.0]
    assert problem.size(w) == pytest.approx(2 * problem.norms[0])
