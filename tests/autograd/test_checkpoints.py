"""Gradient checkpointing: the engines recompute a segment once for each backward pass, and never to read it."""

from __future__ import annotations

import pytest
import torch
from support.backward import compare, graph_of, slowly
from support.models import three
from torch import Tensor, nn
from torch.autograd.graph import Node, save_on_cpu
from torch.utils.checkpoint import checkpoint

import paretograd as pg
from paretograd.autograd.layers.layer import reads_checkpoint
from paretograd.autograd.layers.uses import split_layers


class Block(nn.Module):
    """A block that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.net = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = x + self.net(x)
        return out


@pytest.fixture
def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"first": nn.Linear(5, 6), "block": Block(), "last": nn.Linear(6, 2)}).double()


def losses_of(model: nn.ModuleDict) -> list[Tensor]:
    x = torch.linspace(-1.0, 1.0, 35, dtype=torch.float64).reshape(7, 5)
    return three(model["last"](checkpoint(model["block"], model["first"](x).tanh(), use_reentrant=False)))


def test_agrees(model: nn.ModuleDict, engine_of_every_way: str) -> None:
    params = list(model.parameters())
    losses = losses_of(model)
    expected = slowly(losses, params, pg.UPGrad())
    compare(params, expected, pg.backward(losses, pg.UPGrad(), params, engine=engine_of_every_way))


def test_each_backward_pass_recomputes_once(model: nn.ModuleDict, engine_of_every_way: str) -> None:
    """The first forward pass, at most one pass for each loss, and at most one for the weighted sum."""
    pg.backward(losses_of(model), pg.UPGrad(), model, engine=engine_of_every_way)
    model["block"].calls = 0
    pg.backward(losses_of(model), pg.UPGrad(), model, engine=engine_of_every_way)
    assert model["block"].calls <= 1 + 3 + 1


def test_only_layers_outside_have_a_rule(model: nn.ModuleDict) -> None:
    graph = graph_of(losses_of(model))
    model["block"].calls = 0
    layers, rest = split_layers(graph.leaves, graph)
    assert model["block"].calls == 0
    assert {id(p) for p in rest} == {id(p) for p in model["block"].parameters()}
    assert {id(p) for layer in layers for p in layer.params} == {
        id(p) for name in ("first", "last") for p in model[name].parameters()
    }


def operation(output: Tensor) -> Node:
    assert output.grad_fn is not None
    return output.grad_fn


def test_packed_tensors_are_told_from_plain_ones() -> None:
    """No hook is called to tell."""
    x, weight = torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)
    assert not reads_checkpoint(operation(x @ weight))
    assert not reads_checkpoint(operation(torch.stack([weight, weight])))

    def fail(_: object) -> Tensor:
        raise AssertionError("unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
        assert reads_checkpoint(operation(x @ weight))
        several = operation(torch.linalg.multi_dot([weight, x, weight])).next_functions[0][0]
        assert several is not None
        assert reads_checkpoint(several)
    with save_on_cpu():
        assert reads_checkpoint(operation(x @ weight))


def test_a_freed_graph_raises_the_error_of_torch() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    loss = (torch.ones(2, 3) @ weight).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        pg.backward([loss, loss], pg.UPGrad(), engine="gramian")
