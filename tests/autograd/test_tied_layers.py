"""Weights with several uses: one linear map of all inputs, if that is cheaper than rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.backward import compare, graph_of, slowly
from support.models import MODELS, Losses, three
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg
from paretograd.autograd.layers.uses import Tied, split_layers, tied_layers

#: Builds the parameters, and computes losses from them.
CASES: dict[str, Callable[[], tuple[list[Tensor], Losses]]] = {}


def case(build: Callable[[], tuple[list[Tensor], Losses]]) -> Callable[[], tuple[list[Tensor], Losses]]:
    CASES[build.__name__] = build
    return build


@case
def siamese() -> tuple[list[Tensor], Losses]:
    net = nn.Linear(12, 10)
    x, y = torch.randn(3, 12), torch.randn(2, 12)
    return [net.weight, net.bias], three(net(x).tanh() @ net(y).T)


@case
def without_bias() -> tuple[list[Tensor], Losses]:
    weight, x = nn.Parameter(torch.randn(6, 6)), torch.randn(2, 6)
    return [weight], three(((x @ weight).tanh() @ weight).sin() @ weight)


@case
def with_a_bias_of_its_own() -> tuple[list[Tensor], Losses]:
    weight, bias, x = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6)), torch.randn(2, 6)
    return [weight], three(functional.linear(functional.linear(x, weight, bias).tanh(), weight))


@case
def convolution() -> tuple[list[Tensor], Losses]:
    net = nn.Conv2d(8, 6, 3)
    x, y = torch.randn(1, 8, 4, 4), torch.randn(1, 8, 3, 5)
    return [net.weight, net.bias], [a + b for a, b in zip(three(net(x)), three(net(y).square()), strict=True)]


@pytest.fixture(params=CASES)
def problem(request: pytest.FixtureRequest) -> tuple[list[Tensor], Losses]:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(20240506)
            return CASES[request.param]()
    finally:
        torch.set_default_dtype(torch.float32)


def rows_of(losses: Losses, inputs: list[Any]) -> list[Tensor]:
    """The gradients of all losses with respect to each input, shape ``(m, *input)``."""
    by_loss = [torch.autograd.grad(loss, inputs, retain_graph=True) for loss in losses]
    return [torch.stack(column) for column in zip(*by_loss, strict=True)]


def test_agrees_with_rows(problem: tuple[list[Tensor], Losses]) -> None:
    params, losses = problem
    graph = graph_of(losses)
    layers, rest = split_layers(params, graph)
    assert not layers
    (tied,), rest = tied_layers(rest, graph)
    assert not rest
    assert {id(param) for param in tied.params} == {id(param) for param in params}
    grads = tied.join(rows_of(losses, tied.edges))
    assert grads is not None
    assert grads.shape == (3, tied.output_size)
    gramian, short = tied.part(grads)
    found = torch.stack([*([] if gramian is None else [gramian]), *(row @ row.T for row in short)]).sum(dim=0)
    exact = rows_of(losses, tied.params)
    expected = sum(rows.flatten(1) @ rows.flatten(1).T for rows in exact)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    weights = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    for got, rows in zip(tied.gradients(weights @ grads), exact, strict=True):
        assert torch.allclose(got, torch.tensordot(weights, rows, 1), rtol=1e-10, atol=1e-12)


def test_the_engine_takes_them(engine_of_every_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it goes by layers: once for each of the two weights, and step after step."""
    taken, part = [], Tied.part
    monkeypatch.setattr(Tied, "part", lambda self, grads: taken.append(self) or part(self, grads))
    problem = MODELS["siamese"]()
    for _ in range(2):
        for param in problem.params:
            param.grad = None
        losses = problem.losses()
        expected = slowly(losses, problem.params, pg.UPGrad())
        taken.clear()
        compare(problem.params, expected, pg.backward(losses, pg.UPGrad(), problem.params, engine=engine_of_every_way))
        assert len(taken) == (2 if engine_of_every_way == "gramian" else 0)


def test_outputs_that_no_loss_reaches_count_as_zero() -> None:
    weight, x = nn.Parameter(torch.randn(6, 6)), torch.randn(2, 6)
    losses = three((x @ weight).tanh() @ weight)
    graph = graph_of(losses)
    (tied,), _ = tied_layers([weight], graph)
    rows = torch.ones(3, 2, 6)
    joined = tied.join([None, rows])
    assert joined is not None
    assert torch.equal(joined, torch.cat([torch.zeros(3, 12), rows.flatten(1)], dim=1))
    assert tied.join([None, None]) is None


def not_tied(losses: Losses, param: Tensor) -> bool:
    tied, rest = tied_layers([param], graph_of(losses))
    assert all(isinstance(layer, Tied) for layer in tied)
    return not tied and len(rest) == 1


def test_rows_are_used_if_they_are_no_dearer() -> None:
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(9, 4)
    assert not_tied(three((x @ weight).tanh() @ weight), weight)  # more inputs than the weight has
    table = nn.Parameter(torch.randn(9, 4))
    assert not_tied(three(functional.linear(functional.embedding(torch.arange(2), table), table)), table)


def test_rows_are_used_if_uses_cannot_be_joined() -> None:
    weight, x = nn.Parameter(torch.randn(6, 6)), torch.randn(1, 6)
    assert not_tied(three((x @ weight).tanh() @ weight.T), weight)
    groups, image = nn.Conv2d(8, 4, 3, groups=2), torch.randn(1, 8, 3, 3)
    assert not_tied(three(groups(image) + groups(image.flip(2))), groups.weight)
    assert not_tied(three((x @ weight).tanh() + weight.sum(dim=0)), weight)
    assert not_tied(three(x @ (weight @ weight)), weight)
    a, b, c = three(hidden := (x @ weight).tanh())
    assert not_tied([a, b, c + (hidden @ weight).sum()], weight)  # a loss's own use
