"""Weights that are not exact are never handed on in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import paretograd as pg
from paretograd.aggregators.base import GramianAggregator
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Outcome, Status

J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
G = pg.gramian(J)


class Rough(GramianAggregator):
    """The mean, with a solve that ends as it is told."""

    name = label = "rough"
    description = pg.Mean.description
    guarantee = pg.Guarantee()

    def __init__(self, residual: float, status: Status = Status.INACCURATE) -> None:
        self.residual, self.status = residual, status

    def _solve(self, unit: UnitGramian) -> Outcome:
        return Outcome(np.full(unit.m, 1.0 / unit.m), self.status, self.residual, 1)

    def __repr__(self) -> str:
        return "Rough()"


def by_backward(rule: pg.Aggregator) -> None:
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    pg.backward([(row * x).sum() for row in J], rule)


WAYS: dict[str, Callable[[pg.Aggregator], object]] = {
    "weights": lambda rule: rule.weights(G),
    "a batch": lambda rule: rule.weights(G.expand(3, 2, 2)),
    "a Jacobian": lambda rule: rule(J),
    "backward": by_backward,
    "descend": lambda rule: pg.descend(pg.problem("quadratic", m=3), rule, 0.1, 1, seeds=(0,)),
    "starred": lambda rule: rule.normalized().weights(G),
    "a part": lambda rule: pg.Blend([pg.Mean(), rule])(J),
    "a member": lambda rule: pg.Mixed([rule])(J),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_inexact_solve_is_told_where_it_was_asked_for(way: Callable[[pg.Aggregator], object]) -> None:
    with pytest.warns(UserWarning, match=r"inexact weights: .*Rough\(\).*is up to 1e-03.*rule.solve") as caught:
        way(Rough(3e-4))
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("rule", [Rough(1e-9), Rough(0.1, Status.APPROXIMATE), Rough(1.0, Status.DEGENERATE)])
def test_what_is_negligible_or_no_failure_is_not(rule: pg.Aggregator) -> None:
    rule(J)


def test_the_rounding_of_a_gramian_is_allowed_for() -> None:
    Rough(1e-3).weights(G.bfloat16())
    with pytest.warns(UserWarning, match="inexact"):
        Rough(1e-3).weights(G.float())


def test_solve_tells_by_its_status_alone() -> None:
    solution = Rough(3e-4).solve(G)
    assert (solution.status, solution.residual) == (Status.INACCURATE, 3e-4)


def test_a_loop_is_not_flooded() -> None:
    """Python shows equal words once for each place: a thousand residuals of one size are one message."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for k in range(1000):
            Rough(2e-5 + 1e-9 * k)(J)
    assert len(caught) == 1


@pytest.mark.parametrize("residual", [float("nan"), float("inf")])
def test_a_residual_that_is_no_number(residual: float) -> None:
    with pytest.warns(UserWarning, match=f"residual is {residual}"):
        Rough(residual)(J)


def test_a_function_that_no_solver_can_serve() -> None:
    """A slope that autograd makes up: s says one thing, its derivative another."""

    def s(x: Tensor) -> Tensor:
        return (torch.exp(-x) - 1.0 + 0.9 * (x.detach() - x)).sum()

    rule = pg.Subproblem(s, strict=False)
    with pytest.warns(UserWarning, match=r"inexact weights: Subproblem"):
        rule(1e3 * J)
    assert rule.solve(1e6 * G).status is Status.INACCURATE
