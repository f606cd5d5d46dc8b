"""`backward` on real architectures: each engine agrees with one plain pass per loss, to 1e-10 of the largest entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from architectures import ARCHITECTURES
from support.backward import compare, slowly
from support.models import Losses
from torch import Tensor

import paretograd as pg

#: The number of steps: the first with a batched pass compares it with plain ones, and "auto" tries all ways in eight.
STEPS = {"jacobian": 1, "batched": 2, "gramian": 2, "auto": 9}
#: Models that no engine batches. Other models must take the way that the engine names.
PLAIN = {
    *("bert", "t5", "mixtral", "gcn", "gat", "schnet_with_forces", "physics_informed", "wav2vec2"),  # unverified nodes
    *("swin", "yolos", "detr", "deformable_detr"),  # the same
    *("unet", "autoencoder"),  # a group norm of channels that come last in memory fails under torch.vmap
    "llama_with_lora_and_checkpoints",
}


def values(losses: Losses) -> Sequence[Tensor]:
    return list(losses.values()) if isinstance(losses, dict) else losses


def leaves(losses: Losses) -> Iterator[Tensor]:
    """Yield all tensors without a graph of their own that the losses reach, parameters or not."""
    nodes = [loss.grad_fn for loss in values(losses)]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            yield node.variable
        new = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= new
        nodes += new


@pytest.mark.filterwarnings("ignore:engine=.* is not possible for this model")  # plain passes are taken instead
@pytest.mark.filterwarnings("ignore:the losses depend on .* no nn.Parameter")
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("engine", STEPS)
def test_agrees_with_a_pass_per_loss(name: str, engine: str) -> None:
    problem = ARCHITECTURES[name]()
    expected = slowly(values(problem.losses()), problem.params, pg.UPGrad())
    for _ in range(STEPS[engine]):
        losses = problem.losses()
        activations = [leaf for leaf in leaves(losses) if all(leaf is not param for param in problem.params)]
        step = pg.backward(losses, pg.UPGrad(), engine=engine)
        compare(problem.params, expected, step)
        assert step.names == (tuple(losses) if isinstance(losses, dict) else None)
        assert step.how.way == engine or engine == "auto" or name in PLAIN
        assert all(leaf.grad is None for leaf in activations)
        for param in problem.params:
            param.grad = None


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forward_passes_repeat(name: str) -> None:
    """Otherwise the comparison above would be one of different losses."""
    problem = ARCHITECTURES[name]()
    first, second = values(problem.losses()), values(problem.losses())
    assert len(first) >= 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert {loss.dtype for loss in first} == {torch.float64}
