"""The named pairs (s, r): a rule and its subproblem are one thing, with one guarantee."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.families import FAMILIES
from support.promises import check_promises
from support.table import ROWS, Row

import paretograd as pg
from paretograd.aggregators.named import NamedRule
from paretograd.guarantees import MEAN, RESULTS, SUM, Surrogate

NAMED = [row for row in ROWS if isinstance(row.make(), NamedRule)]
#: Rows whose constants for further F are checked.
ALTERNATIVES = [row for row in ROWS if row.make().guarantee.alternatives]
_FAMILIES = ("gaussian", "conflicting", "moderately_scaled", "duplicate_rows", "tall")


def named(row: Row) -> NamedRule:
    rule = row.make()
    assert isinstance(rule, NamedRule)
    return rule


def test_the_rules_of_the_framework_are_named_pairs() -> None:
    assert {named(row).name for row in NAMED} >= {
        "mean",
        "mgda",
        "capped-mgda",
        "entropic-mgda",
        "spectral-mgda",
        "chi-square-mgda",
        "power-mean",
        "dualproj",
        "cagrad",
    }


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.id)
def test_a_rule_and_its_subproblem_have_one_guarantee(row: Row) -> None:
    rule = named(row)
    assert pg.Subproblem(rule.s, rule.r).guarantee == rule.guarantee


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.id)
@pytest.mark.parametrize("family", _FAMILIES)
def test_a_rule_and_its_subproblem_have_one_direction(row: Row, family: str) -> None:
    """CAGrad's twin searches for beta, hence its larger error."""
    J, rule = FAMILIES[family].make(row.objectives, 7, 3), named(row)
    d, twin = rule(J), pg.Subproblem(rule.s, rule.r)(J)
    longest = float(J.norm(dim=1).max())
    assert (d - twin).norm() <= (1e-6 if isinstance(rule, pg.CAGrad) else 1e-10) * longest


@pytest.mark.parametrize("row", ALTERNATIVES, ids=lambda row: row.id)
@pytest.mark.parametrize("family", _FAMILIES)
def test_alternatives_hold_and_are_not_stronger(row: Row, family: str) -> None:
    rule = row.make()
    promise, m = rule.guarantee, row.objectives
    for one in promise.alternatives:
        assert one.theorem in RESULTS
        for seed in range(5):
            J = FAMILIES[family].make(m, 6, seed)
            check_promises(_Promising(rule, replace(promise, alignment=one.alignment, F=one.F)), J)
        assert promise.constant_for(one.F) is not None


class _Promising(pg.Aggregator):
    """A rule with another guarantee."""

    def __init__(self, rule: pg.Aggregator, promise: pg.Guarantee) -> None:
        self.rule, self._promise = rule, promise
        self.name, self.label, self.description = rule.name, rule.label, rule.description  # type: ignore[misc]

    @property
    def guarantee(self) -> pg.Guarantee:
        return self._promise

    def _answer(self, G, eps):  # type: ignore[no-untyped-def]
        return self.rule._answer(G, eps)


def test_the_guarantees_of_the_paper() -> None:
    """The strongest constant, for the mean, beside what the paper states for the sum."""
    for rule, theorem in ((pg.MGDA(), "thm:cvg_nonconflict"), (pg.DualProj(), "thm:PS_proj_cvg")):
        promise = rule.guarantee
        assert (promise.theorem, promise.alignment, promise.F) == (theorem, 1.0, MEAN)
        assert [(one.theorem, one.alignment, one.F) for one in promise.alternatives] == [(theorem, 1.0, SUM)]
    assert pg.CAGrad(0.5).guarantee.alignment == 1.0 / 1.5
    preferred = pg.DualProj([1.0, 2.0]).guarantee
    assert (preferred.alignment, preferred.F) == (1.0, Surrogate((1.0, 2.0)))
    assert preferred.constant_for(SUM) == 0.5
    assert preferred.constant_for(MEAN) is None
    for same in (pg.CappedMGDA(cap=1.0), pg.PowerMean(-math.inf)):
        assert replace(same.guarantee, hypotheses=()) == replace(pg.MGDA().guarantee, hypotheses=())


def test_a_run_may_be_certified_for_the_sum() -> None:
    """A constant for the mean serves the sum, too."""
    problem = pg.problem("quadratic", m=3)
    run = pg.descend(problem, pg.MGDA(), pg.descent.Smooth(), 50, seeds=(0,))
    assert run.step_sizes[0] == pytest.approx(1.0 / problem.smoothness)  # type: ignore[operator]
    assert pg.certify_run(run).ok
    assert pg.certify_run(run, F="sum").ok


def test_weights_given_to_a_caller_are_a_copy() -> None:
    J = torch.eye(3, dtype=torch.float64)
    for rule in (pg.Mean([1.0, 2.0, 3.0]), pg.DualProj([1.0, 2.0, 3.0])):
        weights = rule.weights(pg.gramian(J))
        weights.zero_()
        assert rule.weights(pg.gramian(J)).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(pg.ParameterError, match="preference"):
        pg.DualProj([1.0, 2.0])(J)
