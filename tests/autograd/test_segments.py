"""Plain passes in segments, and rows in half precision: less memory, and the same numbers to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.models import MODELS
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import segments as segments_module
from paretograd.autograd import ways
from paretograd.autograd.batched import BatchedRows, chunks_of, obstacle
from paretograd.autograd.call import Call, plan_of
from paretograd.autograd.graph import Graph
from paretograd.autograd.segments import in_quarters, segments
from paretograd.autograd.ways import PlainRows


class Residual(nn.Module):
    """A trunk of residual blocks, and a head for each task."""

    def __init__(self, depth: int = 8, tasks: int = 3, width: int = 6, tied: bool = False) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
        self.blocks = nn.ModuleList([blocks[0]] * depth if tied else blocks)
        self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, scale: float = 1.0) -> list[Tensor]:
        for block in self.blocks:
            x = x + block(x)
            if scale != 1.0 and x.requires_grad:
                x.register_hook(lambda grad: scale * grad)
        return [10.0**k * head(x).square().mean() for k, head in enumerate(self.heads)]


def residual(**options: int) -> tuple[Residual, Tensor]:
    torch.manual_seed(0)
    return Residual(**options).double(), torch.randn(5, 6, dtype=torch.float64)


def rows_of(losses: Sequence[Tensor] | Tensor, small: int, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return the rows of all parameters, with segments if they take at least ``small`` bytes."""
    monkeypatch.setattr(ways, "SMALL", small)
    plan = plan_of(Call(losses=losses, has_rule=False))
    with torch.no_grad():
        way = PlainRows(plan, retain=True)
    return [way.rows.block(param) for param in plan.common]


def test_a_residual_network_is_cut_into_segments() -> None:
    model, inputs = residual()
    losses = model(inputs)
    finest = segments(Graph(losses), len(losses))
    assert len(finest) == 8
    found = in_quarters(finest)
    assert len(found) == 4
    together = [key for part in found for key in part.leaves]
    assert sorted(together) == sorted(map(id, model.parameters()))  # each leaf lies in one of them


@pytest.mark.filterwarnings("ignore:the losses depend on")
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_whole_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = MODELS[name]().losses()
    whole = rows_of(losses, 2**60, monkeypatch)
    for found, wanted in zip(rows_of(losses, 0, monkeypatch), whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=0.0, equal_nan=True)  # a tied weight's sum


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"scale": -2.0}], ids=["plain", "tied", "hooks"])
def test_segments_change_nothing(options: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for weights that several segments use, nor for hooks of activations at which the graph is cut."""
    scale = options.pop("scale", 1.0)
    model, inputs = residual(**options)  # type: ignore[arg-type]
    losses = model(inputs, scale)
    whole = rows_of(losses, 2**60, monkeypatch)
    cut = rows_of(losses, 0, monkeypatch)
    for found, wanted in zip(cut, whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-300)


def test_activations_see_each_pass_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are called once for each loss, and `retain_grad` leaves the sum of the gradients, wherever the cuts are."""
    monkeypatch.setattr(ways, "SMALL", 0)
    model, inputs = residual()
    calls, kept = [0] * 8, []
    x = inputs
    for number, block in enumerate(model.blocks):
        x = x + block(x)
        x.retain_grad()
        x.register_hook(lambda grad, number=number: calls.__setitem__(number, calls[number] + 1))
        kept.append(x)
    losses = [10.0**k * head(x).square().mean() for k, head in enumerate(model.heads)]
    rows = [torch.autograd.grad(loss, kept, retain_graph=True) for loss in losses]
    wanted = [sum(found) for found in zip(*rows, strict=True)]
    for each in kept:
        each.grad = None
    calls[:] = [0] * 8
    pg.backward(losses, pg.UPGrad(), engine="jacobian")
    assert calls == [3] * 8
    for each, grad in zip(kept, wanted, strict=True):
        torch.testing.assert_close(each.grad, grad, rtol=1e-12, atol=1e-14)


def test_activations_of_a_segment_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last block is differentiated, what the first passes needed is gone."""
    monkeypatch.setattr(ways, "SMALL", 0)
    model, inputs = residual()
    freed: list[bool] = []
    losses = model(inputs)
    first, *_, last = [node for node in Graph(losses).nodes if node.name() == "TanhBackward0"]

    def look(_: Sequence[Tensor | None]) -> None:
        try:
            freed.append(last._saved_result is None)  # type: ignore[attr-defined]
        except RuntimeError:
            freed.append(True)

    first.register_prehook(look)
    pg.backward(losses, pg.UPGrad(), engine="jacobian")
    assert freed == [True] * 3


@pytest.mark.filterwarnings("ignore:the losses depend on")
@pytest.mark.parametrize("name", [*MODELS, "residual"])
def test_chunks_of_batched_passes_change_nothing(name: str) -> None:
    """Whatever the number of rows that go through each segment at once."""
    if name == "residual":
        model, inputs = residual()
        losses: Sequence[Tensor] | Tensor = model(inputs)
    else:
        losses = MODELS[name]().losses()
    plan = plan_of(Call(losses=losses, has_rule=False))
    if "sparse" in name or obstacle(plan.graph) is not None or plan.m == 1 or plan.graph.is_packed:
        pytest.skip("no pass through this model is batched")
    with torch.no_grad():
        whole = PlainRows(plan, retain=True)
        chunks = [1 + number % plan.m for number in range(len(segments(plan.graph, plan.m)))]
        found = BatchedRows(plan, retain=True, chunks=chunks)
    assert name != "residual" or chunks == [1, 2, 3, 1, 2, 3, 1, 2]
    for param in plan.common:
        torch.testing.assert_close(found.rows.block(param), whole.rows.block(param), rtol=1e-10, atol=1e-12)


def test_rows_go_at_once_through_what_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stem of this network is wider than all that lies behind it, so that fewer rows go through it at once."""
    monkeypatch.setattr(segments_module, "SMALL", 0)
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Linear(2, 4096), nn.Tanh(), nn.Linear(4096, 6))
    model = Residual(depth=4, tasks=10)
    losses = model(stem(torch.randn(64, 2)))
    plan = plan_of(Call(losses=losses, aggregator=pg.UPGrad()))
    found = chunks_of(plan)
    assert found is not None
    assert found[0] == 10
    assert found[-1] < 10
    step = pg.backward(losses, pg.UPGrad(), engine="batched", retain_graph=True)
    wanted = pg.backward(losses, pg.UPGrad(), engine="jacobian")
    torch.testing.assert_close(step.weights, wanted.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("engine", ["jacobian", "batched"])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_under_autocast_are_in_half_precision(engine: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are those of the loop, to the last bit of float32 in the weighted sum."""
    monkeypatch.setattr(ways, "SMALL", 0)
    torch.manual_seed(0)
    model = Residual(tied=tied)
    inputs = torch.randn(5, 6)

    def losses() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs)

    step = pg.backward(losses(), pg.UPGrad(), engine=engine)
    trunk = list(model.blocks.parameters())
    found = losses()
    rows = [torch.autograd.grad(loss, trunk, retain_graph=True) for loss in found]
    for param, *grads in zip(trunk, *rows, strict=True):
        wanted = sum(float(w) * grad.double() for w, grad in zip(step.weights, grads, strict=True))
        assert param.grad is not None
        assert param.grad.dtype is torch.float32
        torch.testing.assert_close(param.grad.double(), wanted, rtol=3e-7, atol=1e-6 * float(wanted.abs().max()))
    plan = plan_of(Call(losses=losses(), has_rule=False))
    weights = {id(block[1].weight) for block in model.blocks}
    assert weights <= set(plan.copies)


def test_sums_under_autocast_are_in_the_parameters_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches add up in float32, and so do the losses of a parameter that is not aggregated."""
    torch.manual_seed(0)
    model = Residual()
    batches = torch.randn(8, 5, 6)
    every: list[Callable[[], list[Tensor]]] = []
    for batch in batches:

        def losses(batch: Tensor = batch) -> list[Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                return model(batch)

        every.append(losses)
    with pg.accumulate(model) as acc:
        for each in every:
            acc.add(each())
        acc.step(pg.Mean())
    weight = model.blocks[0][1].weight  # type: ignore[index]
    wanted = sum(torch.autograd.grad(sum(each()) / 3, weight)[0].double() for each in every)  # type: ignore[arg-type]
    exact = [torch.autograd.grad(loss, weight, retain_graph=True)[0].double() for each in every for loss in each()]
    torch.testing.assert_close(weight.grad.double(), sum(exact) / 3, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))
    weight.grad = None
    pg.backward(every[0](), pg.UPGrad(), model, specific=[weight])
    torch.testing.assert_close(weight.grad.double(), sum(exact[:3]), rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))
