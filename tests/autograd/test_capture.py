"""``capture``: a captured step is an eager one, and what cannot be captured runs as `backward` does."""

from __future__ import annotations

import gc
import warnings
from collections import UserDict
from unittest.mock import Mock

import pytest
import torch
from support.backward import compare, slowly
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import call

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Tasks(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 16))
        self.heads = nn.ModuleList(nn.Linear(16, 2) for _ in range(3))

    def losses(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.trunk(x)
        return {f"task {k}": (head(z) - (k + 1) * y).square().mean() for k, head in enumerate(self.heads)}


def batch(rows: int = 16, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=generator).to(device), torch.randn(rows, 2, generator=generator).to(device)


def test_without_a_gpu_it_is_backward() -> None:
    net = Tasks().double()
    x, y = (part.double() for part in batch())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = pg.capture(net.losses, pg.UPGrad(), net, optimizer=optimizer)
    before = [param.detach().clone() for param in net.parameters()]
    expected = slowly(list(net.losses(x, y).values()), list(net.parameters()), pg.UPGrad())
    with pytest.warns(UserWarning, match=r"cannot be captured: .*GPU.*It runs as paretograd.backward does"):
        result = step(x, y)
    compare(net.parameters(), expected, result)
    assert result.names == ("task 0", "task 1", "task 2")
    assert result.losses is not None
    assert torch.allclose(result.losses, torch.stack(list(Tasks().double().losses(x, y).values())))
    for param, old in zip(net.parameters(), before, strict=True):
        assert torch.allclose(param, old - 0.1 * param.grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [float(step(x, y).losses.sum()) for _ in range(5)]  # type: ignore[union-attr]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_gradients_that_are_not_finite_leave_the_parameters_alone(device: str) -> None:
    net = Tasks().to(device)
    x, y = batch(device=device)
    fused = {"fused": True} if device == "cuda" else {}
    for kind in (torch.optim.Adam, torch.optim.SGD):
        step = pg.capture(net.losses, pg.MGDA(), net, optimizer=kind(net.parameters(), lr=1e-3, **fused))
        for _ in range(6):
            assert step(x, y).finite
        before = [param.detach().clone() for param in net.parameters()]
        assert not step(torch.full_like(x, torch.nan), y).finite
        assert all(torch.equal(param, old) for param, old in zip(net.parameters(), before, strict=True))
        assert step(x, y).finite


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
def test_a_step_reads_its_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Mock(wraps=call.Graph)
    monkeypatch.setattr(call, "Graph", graph)
    net = Tasks()
    pg.capture(net.losses, pg.UPGrad(), net)(*batch())
    assert graph.call_count == 1


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
@pytest.mark.parametrize("optimizer", [True, False])
def test_a_step_replaces_gradients(optimizer: bool) -> None:
    """Without an optimizer, parameters that the losses do not reach keep theirs, as in `backward`."""
    net = Tasks()
    x, y = batch()
    kept = torch.optim.SGD(net.parameters(), lr=0.0) if optimizer else None
    step = pg.capture(lambda heads: dict(list(net.losses(x, y).items())[:heads]), pg.UPGrad(), net, optimizer=kept)
    step(3)
    lone = net.heads[2].weight.grad.clone()
    step(2)
    found = [param.grad for param in (*net.trunk.parameters(), *net.heads[:2].parameters())]
    assert net.heads[2].weight.grad is None if optimizer else torch.equal(net.heads[2].weight.grad, lone)
    net.zero_grad()
    pg.backward(list(net.losses(x, y).values())[:2], pg.UPGrad(), net)
    expected = [param.grad for param in (*net.trunk.parameters(), *net.heads[:2].parameters())]
    assert all(torch.allclose(grad, want) for grad, want in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_scaler_skips_steps_that_overflow(device: str) -> None:
    """The recipe of the guide, against the same loop with `backward`."""
    net, twin = Tasks().to(device), Tasks().to(device)
    x, y = batch(device=device)
    scaler, other = (torch.amp.GradScaler(device, init_scale=2.0**40) for _ in range(2))
    optimizer, other_optimizer = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, twin))

    def scaled_losses(model: Tasks, scaler: torch.amp.GradScaler, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with torch.autocast(device, dtype=torch.float16):
            losses = model.losses(x, y)
        return {name: scaler.scale(loss) for name, loss in losses.items()}

    step = pg.capture(lambda x, y: scaled_losses(net, scaler, x, y), pg.UPGrad(), net)
    skipped = 0
    for _ in range(40):
        before = [param.detach().clone() for param in net.parameters()]
        result = step(x, y)
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(param, old) for param, old in zip(net.parameters(), before, strict=True))
        assert moved == result.finite
        skipped += not moved
        other_optimizer.zero_grad()
        pg.backward(scaled_losses(twin, other, x, y), pg.UPGrad(), twin, nonfinite="propagate")
        other.step(other_optimizer)
        other.update()
    assert 0 < skipped < 35
    assert result.finite
    assert scaler.get_scale() == other.get_scale() == 2.0 ** (40 - skipped)
    # Both round to float16 in the same places; only the sums of rows differ, by float32 rounding.
    for param, want in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(param, want, atol=1e-3)


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
def test_gradients_are_clipped_before_the_step() -> None:
    net = Tasks()
    step = pg.capture(
        net.losses, pg.UPGrad(), net, before_step=lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    )
    step(*batch())
    total = torch.cat([param.grad.flatten() for param in net.parameters()]).norm()
    assert float(total) == pytest.approx(0.01, rel=1e-3)


def test_wrong_arguments() -> None:
    net = Tasks()
    with pytest.raises(pg.ParameterError, match="give a rule"):
        pg.capture(net.losses, "upgrad", net)  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="warmup=0"):
        pg.capture(net.losses, pg.UPGrad(), net, warmup=0)
    with pytest.raises(pg.ParameterError, match="MoDo needs the losses of several batches"):
        pg.capture(net.losses, pg.MoDo(), net)


@pytest.mark.filterwarnings("ignore:the step cannot be captured")
def test_losses_may_be_any_iterable() -> None:
    net = Tasks()
    step = pg.capture(lambda x, y: iter(net.losses(x, y).values()), pg.UPGrad(), net)
    assert torch.equal(step(*batch()).losses, pg.capture(net.losses, pg.UPGrad(), net)(*batch()).losses)


def test_an_input_whose_tensors_are_hidden_is_refused() -> None:
    """A graph would read the tensors of the first batch forever, or be captured for each batch and keep it."""

    class Batch(UserDict):
        """As the batches of transformers."""

    net = Tasks()
    step = pg.capture(lambda batch: net.losses(batch["x"], batch["y"]), pg.UPGrad(), net)
    x, y = batch()
    with pytest.warns(UserWarning, match="an input is a Batch, in which changes would not be seen; pass its tensors"):
        step(Batch(x=x, y=y))
    step = pg.capture(lambda batch, **_: net.losses(batch["x"], batch["y"]), pg.UPGrad(), net)
    with pytest.warns(UserWarning, match="there is no GPU" if not torch.cuda.is_available() else "not on the GPU"):
        step({"x": x, "y": y}, model=net, name="a", number=1, rate=0.5, nothing=None, dtype=torch.float32)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.MGDA(), pg.Mean(), pg.NashMTL(), pg.CAGrad(0.5)], ids=repr)
def test_a_captured_step_is_an_eager_one(rule: pg.Aggregator) -> None:
    net = Tasks().cuda()
    step = pg.capture(net.losses, rule, net)
    for rows in (16, 16, 16, 16, 24, 24, 24, 24, 16, 24):  # two shapes
        x, y = (part + torch.rand((), device="cuda") for part in batch(rows, "cuda"))
        result = step(x, y)
        found = [param.grad.clone() for param in net.parameters()]
        net.zero_grad()
        eager = pg.backward(net.losses(x, y), rule, net, engine="jacobian")
        assert torch.allclose(result.weights, eager.weights, rtol=1e-5)
        for grad, param in zip(found, net.parameters(), strict=True):
            assert torch.allclose(grad, param.grad, rtol=1e-4, atol=1e-6)
        assert result.residual is not None
        assert result.trusted
    assert step.reason is None
    assert len(step._graphs) == 2


@on_gpu
def test_schedules_dropout_and_autocast_work_in_a_graph() -> None:
    net = Tasks(dropout=0.2).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)

    def losses(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return net.losses(x, y)

    step = pg.capture(losses, pg.UPGrad(), net, optimizer=optimizer)
    values = [float(step(*batch(device="cuda")).losses.sum()) for _ in range(12)]  # type: ignore[union-attr]
    assert step.reason is None
    assert len(set(values)) == len(values)  # every step draws its own mask
    schedule.step()  # learning rate zero from now on
    before = [param.detach().clone() for param in net.parameters()]
    step(*batch(device="cuda"))
    assert all(torch.equal(param, old) for param, old in zip(net.parameters(), before, strict=True))


@on_gpu
def test_a_step_that_waits_is_not_captured() -> None:
    net = Tasks().cuda()

    def losses(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return net.losses(x * float(x.abs().max() > 0.0), y)

    step = pg.capture(losses, pg.UPGrad(), net)
    x, y = batch(device="cuda")
    for _ in range(3):
        step(x, y)
    with pytest.warns(UserWarning, match="CUDA refused to capture it"):
        step(x, y)
    assert step(x, y).finite


@on_gpu
def test_graphs_that_are_no_longer_used_do_not_spoil_a_capture() -> None:
    """An old graph in a reference cycle is freed whenever the garbage collector runs, but not during a capture."""
    x, y = batch(device="cuda")
    before = gc.get_threshold()
    for _ in range(3):
        net = Tasks().cuda()
        step = pg.capture(net.losses, pg.UPGrad(), net)
        try:
            gc.set_threshold(1)
            for _ in range(5):
                step(x, y)
        finally:
            gc.set_threshold(*before)
        assert step.reason is None
        step.itself = step  # type: ignore[attr-defined]


@on_gpu
def test_a_rule_that_changes_is_not_captured() -> None:
    net = Tasks().cuda()
    step = pg.capture(net.losses, pg.RGW(seed=0), net)
    with pytest.warns(UserWarning, match="changes from step to step"):
        step(*batch(device="cuda"))
