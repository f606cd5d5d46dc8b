"""Directions where gradients cancel: exact for the rows before they were rounded, in every order, with small weights.

What is required (`support.fuzz.checks` and `Input.allowed` say it in code): the direction is off by at most 1e-5
(float32 rows) or 1e-7 (float64 rows) of the longest gradient, its weights are at most 1e4 times their smallest possible
size, it conflicts with no stored row by a cosine beyond 1e-5, and a projection is never longer than what it projects.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from support import references as ref
from support.families import HARD
from support.families.cancelling import exact
from support.fuzz.checks import RULES, Scene, examine
from support.fuzz.exact import Problem
from support.fuzz.inputs import Input
from support.fuzz.truth import TRUTHS, judge
from torch import nn

import paretograd as pg

CASES = json.loads(Path(__file__).with_name("cancellation.json").read_text())
#: The rules whose answers jump where gradients cancel.
NAMES = ["upgrad", "dualproj", "pcgrad+", "greedy-dcp", "cagrad(.5)", "cagrad(1)"]

rules = pytest.mark.parametrize("name", NAMES + [f"{name}*" for name in NAMES])


def case(name: str, *ideals: list[list[Fraction]]) -> Input:
    """A Jacobian that went wrong once, with the rows that the right answer is for."""
    rows = tuple(map(tuple, CASES[name]["rows"]))
    return Input(name, rows, CASES[name]["dtype"] == "float32", tuple(ideals) or None)


def stored(name: str) -> list[list[Fraction]]:
    return exact(torch.tensor(CASES[name]["rows"], dtype=torch.float64))


def assert_right_in_every_order(name: str, given: Input, every: int = 1) -> None:
    """Every check of the fuzzer passes for every order of the rows, or for some of them if there are many."""
    for order in list(permutations(range(given.m)))[::every]:
        assert_right(name, Scene(given.take(list(order))))


def assert_right(name: str, scene: Scene) -> None:
    for check in examine(scene, name, depth=1):
        assert not check.is_violation, (check, scene.given.rows)


@cache
def scenes(family: str, m: int, n: int, seed: int) -> list[Scene]:
    """A family's matrix in every order of its rows, made once in a process."""
    given = Input.of(HARD[family], m, n, seed)
    return [Scene(given.take(list(order))) for order in permutations(range(m))]


@rules
def test_a_negative_multiple_in_float32(name: str) -> None:
    """a, -0.3 a and b, rounded: the exact answer for the rounded rows takes weights of 4e4, the ideal one of 3."""
    a, _, b = stored("multiples")
    assert_right_in_every_order(name, case("multiples", [a, [Fraction(-3, 10) * x for x in a], b]))


@rules
def test_opposite_rows_and_one_that_nearly_is(name: str) -> None:
    """Rows 0 and 1 are opposite to 1e-13, row 2 is 5e-6 away from both: a small angle, and a genuine one."""
    a, b, c, d = stored("nearly opposite")
    assert_right_in_every_order(name, case("nearly opposite", [a, [-x for x in a], c, d], [a, b, c, d]))


@rules
def test_signs(name: str) -> None:
    assert_right_in_every_order(name, case("signs 5 x 3"), every=11)


def test_upgrad_on_signs_is_what_it_is_by_hand() -> None:
    """The third row lies in the cone of what is left once the first and the fourth, opposite, are satisfied."""
    J = torch.tensor(CASES["signs 5 x 3"]["rows"], dtype=torch.float64)
    expected = torch.tensor([0.3, 0.5, 0.0], dtype=torch.float64)
    assert (pg.UPGrad()(J) - expected).norm() <= 1e-12
    assert (pg.UPGrad()(J.float()).double() - expected).norm() <= 1e-6


@rules
def test_seven_rows_of_signs(name: str) -> None:
    given = case("signs 7 x 5")
    scene = Scene(given)
    judged = judge(name, given, scene.rows.sum(RULES[name].make().solve(scene.gramian()).weights.numpy()))
    assert judged is None or max(judged) <= 1.0, judged


@pytest.mark.parametrize("name", ["upgrad", "dualproj", "greedy-dcp", "pcgrad+", "cagrad(1)"])
def test_a_weakly_stationary_point_of_twenty_objectives(name: str) -> None:
    """Eight of the gradients have a positive combination that vanishes.

    A direction that conflicts with none of them is orthogonal to all eight. So their span is projected away, and what
    is left is a projection onto the dual cone of the other twelve, which is regular.
    """
    J = np.array(CASES["weakly stationary"]["rows"])
    w = pg.MGDA().solve(pg.gramian(torch.from_numpy(J))).weights.numpy()
    eight = np.flatnonzero(w > 1e-6)
    assert len(eight) == 8
    basis = np.linalg.svd(J[eight], full_matrices=False)[2][:-1]
    assert np.linalg.norm(w @ J) <= 1e-14
    others = np.delete(J, eight, axis=0)
    free = others - others @ basis.T @ basis

    def project(q: np.ndarray) -> np.ndarray:
        return ref.project_dual_cone(free, q - basis.T @ (basis @ q))

    d = RULES[name].make()(torch.from_numpy(J)).numpy()
    lengths = np.linalg.norm(J, axis=1)
    assert (J @ d / lengths).min() >= -1e-5 * np.linalg.norm(d)
    assert np.linalg.norm(d) <= lengths.max()
    projected = np.array([project(g) for g in J])
    if name == "upgrad":
        expected = projected.mean(axis=0)
    elif name == "greedy-dcp":
        expected = projected[np.linalg.norm(projected, axis=1).argmax()]
    elif name in ("dualproj", "cagrad(1)"):
        expected = project(J.mean(axis=0))
    else:
        return
    assert np.linalg.norm(d - expected) <= 1e-7 * lengths.max()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("config", "config"),
        ("capped", "capped-mgda(eps=.5)"),
        ("chi-square", "chi-square-mgda"),
        ("power mean", "power-mean(.5)"),
        ("power mean", "power-mean(.9)"),
    ],
)
def test_other_rules_that_went_wrong(name: str, rule: str) -> None:
    """Noise of full length, norms over 28 and over 200 decades, and norms of 1e-94: promises, order and scale hold."""
    for check in examine(Scene(case(name)), rule, depth=2):
        assert not check.is_violation, check


def test_config_is_zero_where_unit_gradients_cancel() -> None:
    """Two gradients point one way and two the other: no direction has equal angles to all."""
    J = torch.tensor(CASES["config"]["rows"], dtype=torch.float64)
    assert pg.ConFIG()(J).norm() <= 1e-12 * J.norm()


@rules
@pytest.mark.parametrize(
    "family",
    [
        "cancelling_gaps",
        "cancelling_gaps_single",
        "rounded_multiples",
        "rounded_multiples_single",
        "rounded_dependent",
        "rounded_dependent_single",
        "small_integers",
        "signs",
    ],
)
def test_families(name: str, family: str) -> None:
    for m, n, seed in ((3, 2, 1000), (3, 2, 1001), (3, 5, 1000), (3, 5, 1001), (4, 3, 1000)):
        for scene in scenes(family, m, n, seed):
            assert_right(name, scene)


@cache
def gaps(seed: int) -> tuple[nn.Module, list[torch.Tensor], Problem]:
    """A float32 network, the three gaps of its losses and a loss, and their gradients: in float64, combined exactly."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(256, 10), torch.randn(256, 4)
    a, b, c, d = (net(x) - y).square().mean(0)
    double = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    double.load_state_dict(net.state_dict())
    losses = (double(x.double()) - y.double()).square().mean(0)
    grads = [torch.autograd.grad(loss, list(double.parameters()), retain_graph=True) for loss in losses]
    A, B, C, D = exact(torch.stack([torch.cat([part.flatten() for part in grad]) for grad in grads]))
    rows = [[p - q for p, q in zip(u, v, strict=True)] for u, v in ((A, B), (B, C), (C, A))]
    return net, [a - b, b - c, c - a, d], Problem([*rows, D])


@pytest.mark.parametrize("name", NAMES)
def test_gaps_of_losses_through_backward(name: str) -> None:
    """The direction of a float32 network is off by at most 1e-4 of the longest gradient, on each of 50 seeds."""
    errors = []
    for seed in range(50):
        net, losses, problem = gaps(seed)
        net.zero_grad()
        pg.backward(losses, RULES[name].make(), retain_graph=True)
        step = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double().numpy()
        longest = math.ldexp(max(problem.norms), problem.exponent)
        answers = [w for w in TRUTHS[name].answers(problem) if w is not None]
        directions = [np.ldexp(problem.direction(w), problem.exponent) for w in answers]
        errors.append(min(float(np.linalg.norm(step - d)) for d in directions) / longest)
    assert max(errors) <= 1e-4, (int(np.argmax(errors)), max(errors), sum(e > 1e-4 for e in errors))
