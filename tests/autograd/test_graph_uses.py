"""`Graph.uses`: every operation that a parameter enters."""

from __future__ import annotations

import torch
from support.backward import graph_of
from support.models import three
from torch import Tensor, nn
from torch.nn import functional


def uses(losses: list[Tensor], param: Tensor) -> list[tuple[str, int, bool]]:
    graph = graph_of(losses)
    found = sorted((use.node.name(), use.position, use.transposed) for use in graph.uses(param))
    only = graph.use(param)
    assert (only is None) == (len(found) != 1)
    return found


def test_one_use() -> None:
    net = nn.Linear(3, 3)
    losses = three(net(torch.ones(2, 3)))
    assert uses(losses, net.weight) == [("AddmmBackward0", 2, True)]
    assert uses(losses, net.bias) == [("AddmmBackward0", 0, False)]


def test_several_uses_through_one_transpose_and_several() -> None:
    weight, x = nn.Parameter(torch.ones(3, 3)), torch.ones(2, 3)
    turned = weight.t()
    losses = three(x @ turned @ turned @ weight.t().t() @ weight)
    assert uses(losses, weight) == [("MmBackward0", 1, False)] * 2 + [("MmBackward0", 1, True)] * 2


def test_tied_tables() -> None:
    table = nn.Embedding(5, 3)
    losses = three(functional.linear(table(torch.arange(4)), table.weight))
    assert uses(losses, table.weight) == [("EmbeddingBackward0", 0, False), ("MmBackward0", 1, True)]
