"""Layers keep nothing alive that torch saved: a pass can free it while layers exist."""

from __future__ import annotations

import weakref

import pytest
import torch
from support.backward import graph_of
from torch import nn

from paretograd.autograd.layers.uses import split_layers
from paretograd.autograd.samples.way import SamplePullback, pull_samples

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(4, 3), (5, 4)),
    "linear without bias": (nn.Linear(4, 3, bias=False), (5, 4)),
    "convolution": (nn.Conv2d(2, 3, 2), (5, 2, 4, 4)),
    "layer norm": (nn.LayerNorm(4), (5, 4)),
    "group norm": (nn.GroupNorm(2, 4), (5, 4, 3)),
    "batch norm": (nn.BatchNorm1d(4), (5, 4)),
    "batch norm in evaluation": (nn.BatchNorm1d(4).eval(), (5, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_inputs_are_freed_by_a_pass(name: str) -> None:
    layer, shape = LAYERS[name]
    inputs = torch.randn(shape) * 2.0
    alive = weakref.ref(inputs)
    losses = [layer(inputs).square().mean()]
    del inputs
    graph = graph_of(losses)
    layers, rest = split_layers(list(layer.parameters()), graph)
    assert len(layers) == 1
    assert not rest
    assert alive() is not None
    losses[0].backward()
    assert alive() is None


def test_words_are_freed_by_a_pass() -> None:
    table = nn.Embedding(5, 3)
    words = torch.arange(4) + 0
    alive = weakref.ref(words)
    losses = [table(words).square().mean()]
    del words
    graph = graph_of(losses)
    layers, _ = split_layers([table.weight], graph)
    assert len(layers) == 1
    losses[0].backward()
    assert alive() is None


def test_the_gradients_of_outputs_are_released_one_after_the_other() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    losses = net(torch.randn(5, 4)).square().mean(dim=1)
    graph = graph_of(losses)
    with torch.no_grad():
        found = pull_samples(losses, graph.leaves, graph)
        assert isinstance(found, SamplePullback)
        assert len(found._groups) == 2
        assert len(found.combine(torch.ones(5, dtype=torch.float64))) == 4
    assert not found._groups
