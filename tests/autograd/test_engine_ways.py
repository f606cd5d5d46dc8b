"""Which way `backward` goes: it falls back in silence where a pass cannot be batched, so that only a test sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.models import MODELS
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import by_layers
from paretograd.autograd.batched import start
from paretograd.autograd.by_layers import LayersWay
from paretograd.autograd.call import Call, plan_of

STREAMED = (
    "mlp",
    "task_heads",
    "vector_of_losses",
    "cnn_in_training",
    "cnn_in_evaluation",
    "residual_block",
    "convolutions_with_named_padding",
    "norms_of_every_kind",
    "transformer",
    "linear_on_sequences",
    "embedding",
)


@pytest.mark.parametrize("name", STREAMED)
def test_common_models_are_streamed_in_one_batched_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_layers, "_KEPT_SHARE", 0.0)
    way = LayersWay(plan_of(Call(losses=MODELS[name]().losses(), has_rule=False)))
    assert way.passes
    assert way.share > 0.4


JOINED: dict[str, Callable[[list[Tensor]], Sequence[Tensor] | Tensor]] = {
    "stack": torch.stack,
    "cat": lambda losses: torch.cat([loss.reshape(1) for loss in losses]),
    "list of a stack": lambda losses: list(torch.stack(losses)),
    "entries of a stack": lambda losses: [torch.stack(losses)[k] for k in (0, 1, -1)],
}


@pytest.mark.parametrize("join", JOINED)
def test_heads_are_found_behind_a_vector(join: str) -> None:
    """A head gets its own loss's gradient however the losses were joined, and taken apart again."""
    torch.manual_seed(0)
    trunk, heads = nn.Linear(4, 8).double(), nn.ModuleList(nn.Linear(8, 2).double() for _ in range(3))
    inputs = torch.randn(5, 4, dtype=torch.float64)

    def losses() -> list[Tensor]:
        features = trunk(inputs).relu()
        return [10.0**k * head(features).square().mean() for k, head in enumerate(heads)]

    pg.backward(losses(), pg.MGDA())
    wanted = [param.grad for param in (*trunk.parameters(), *heads.parameters())]
    for param in (*trunk.parameters(), *heads.parameters()):
        param.grad = None
    given = JOINED[join](losses())
    source, _ = start(plan_of(Call(losses=given, aggregator=pg.MGDA())))
    assert not any(output is loss for output in source.outputs for loss in given)
    pg.backward(given, pg.MGDA())
    for param, want in zip((*trunk.parameters(), *heads.parameters()), wanted, strict=True):
        assert torch.allclose(param.grad, want, rtol=1e-12, atol=0.0)
