"""The rules for layers: which parameters they serve, and how to add one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.backward import compare, graph_of, slowly
from support.models import MODELS
from torch import Tensor

import paretograd as pg
from paretograd.autograd.layers import layer as layers_module
from paretograd.autograd.layers.uses import split_layers


class Bilinear(pg.Layer):
    """``y_no = sum_ij x_ni W_oij z_nj``, as a user of the package would write it."""

    def __init__(self, node: Any, weight: Tensor) -> None:
        super().__init__(node, [weight])
        self.left, self.right = node._saved_i1.squeeze(), node._saved_i3.squeeze()

    def part(self, grads: Tensor) -> pg.Part:
        rows = torch.einsum("mno,ni,nj->moij", grads, self.left, self.right)
        return pg.Part(None, [rows.flatten(1)])

    def gradients(self, grad: Tensor) -> list[Tensor]:
        return [torch.einsum("no,ni,nj->oij", grad, self.left, self.right)]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A copy of the registry, so that a rule of a test stays in it."""
    rules = dict(layers_module._RULES)
    monkeypatch.setattr(layers_module, "_RULES", rules)
    return rules


def split(losses: Callable[[], Any]) -> tuple[list[pg.Layer], list[Tensor]]:
    graph = graph_of(losses())
    return split_layers(graph.leaves, graph)


def test_a_registered_rule_is_used(registry: dict[str, Any], engine_of_every_way: str) -> None:
    problem = MODELS["several_inputs"]()
    weight = problem.params[0]
    before, _ = split(problem.losses)
    assert all(weight is not param for layer in before for param in layer.params)

    @pg.register_layer("TrilinearBackward0")
    def bilinear(node: Any, uses: Any) -> pg.Layer | None:
        return Bilinear(node, uses[1][0]) if set(uses) == {1} else None

    assert registry["TrilinearBackward0"] is bilinear
    after, _ = split(problem.losses)
    assert [layer.params for layer in after if isinstance(layer, Bilinear)] == [[weight]]
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.UPGrad())
    compare(problem.params, expected, pg.backward(losses, pg.UPGrad(), problem.params, engine=engine_of_every_way))


def test_a_rule_may_decline(registry: dict[str, Any]) -> None:
    """Its parameters then use rows."""
    problem = MODELS["mlp"]()
    pg.register_layer("AddmmBackward0")(lambda *_: None)
    layers, rest = split(problem.losses)
    assert not layers
    assert {id(param) for param in rest} == {id(param) for param in problem.params}
