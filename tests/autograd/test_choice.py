"""``engine="auto"``: it tries the ways in the first steps, each a valid one, and keeps the quickest."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.backward import compare, slowly
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import choice


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_KNOWN", {})


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 2) for _ in range(4))
        self.double()

    def losses(self, rows: int = 16) -> list[Tensor]:
        z = self.trunk(torch.randn(rows, 32, dtype=torch.float64))
        return [(head(z) - k).square().mean() for k, head in enumerate(self.heads)]


def checked_step(net: Tasks, rows: int = 16, **options: object) -> pg.Step:
    net.zero_grad()
    losses = net.losses(rows)
    expected = slowly(losses, list(net.parameters()), pg.UPGrad())
    step = pg.backward(losses, pg.UPGrad(), **options)  # type: ignore[arg-type]
    compare(net.parameters(), expected, step)
    return step


def test_the_first_steps_try_every_way_and_the_quickest_stays() -> None:
    net = Tasks()
    ways = [checked_step(net).how.way for _ in range(6)]  # type: ignore[union-attr]
    assert ways.count("jacobian") >= 2
    assert {"batched", "gramian"} <= set(ways)
    for _ in range(3):
        checked_step(net)
    (kind,) = choice._KNOWN.values()
    best = kind.best()
    assert best is not None
    assert min(kind.times[best]) <= min(min(times) for times in kind.times.values()) / 0.9
    how = checked_step(net, rows=20).how  # another batch size is the same kind
    assert how is not None
    assert how.way == best
    assert "quickest" in str(how)
    report = pg.engine_report()
    assert "4 losses" in report
    assert all(way in report for way in ("jacobian", "batched", "gramian"))


def test_a_way_that_auto_skips_can_be_asked_for() -> None:
    """Of parameters that are normalized before their use, say, few have a rule."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 600)), nn.Tanh(), nn.Linear(600, 2)).double()
    x = torch.randn(9, 8, dtype=torch.float64)
    reasons = [str(pg.backward(net(x).square().mean(0), pg.UPGrad()).how) for _ in range(4)]
    assert any("only" in reason and "have a rule for their layer" in reason for reason in reasons)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = pg.backward(net(x).square().mean(0), pg.UPGrad(), engine="gramian")
    assert step.how.way == "gramian"
    assert step.how.share < 0.5
    assert pg.backward(net(x).square().mean(0), pg.UPGrad(), max_memory=0).how.way != "gramian"


def test_the_report_says_why_nothing_is_tried() -> None:
    """Of a model that is small, say, there are no times."""
    net = nn.Linear(3, 2)
    assert pg.engine_report() == "no step has been taken with engine='auto'"
    pg.backward(net(torch.ones(4, 3)).square().mean(0), pg.UPGrad(), engine="batched")
    assert pg.engine_report() == "no step has been taken with engine='auto'"
    pg.backward(net(torch.ones(4, 3)).square().mean(0), pg.UPGrad())
    (line,) = pg.engine_report().splitlines()
    assert line.startswith("2 losses, 8 shared parameters on cpu: one plain pass for each loss")
    assert line.endswith("the model is small")


def test_deterministic_algorithms_leave_no_choice() -> None:
    net = Tasks()
    torch.use_deterministic_algorithms(True)
    try:
        hows = [checked_step(net).how for _ in range(9)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert {how.way for how in hows if how is not None} == {"jacobian"}


def test_little_memory_needs_no_rows() -> None:
    net = Tasks()
    how = checked_step(net, max_memory=1000).how
    assert how is not None
    assert how.way == "gramian"
    assert "rows would take" in how.reason


def test_a_way_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule for a layer: the first step finds out, and every step is right."""
    from paretograd.autograd.layers.linear import Affine

    part = Affine.part
    monkeypatch.setattr(Affine, "part", lambda self, grads: part(self, 2.0 * grads))
    net = Tasks()
    with pytest.warns(UserWarning, match="engine='gramian' is not possible .* differs from that of plain passes"):
        how = checked_step(net, engine="gramian").how
    assert how is not None
    assert how.way == "jacobian"
    assert {checked_step(net).how.way for _ in range(9)} <= {"jacobian", "batched"}  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["auto", "jacobian", "batched", "gramian"])
@pytest.mark.parametrize("step", [0, 2, 12])
def test_a_gradient_that_is_not_finite_is_named_at_any_step(engine: str, step: int) -> None:
    """Also by a way that frees the graph, once it is known to work."""
    net = Tasks()
    for _ in range(step):
        checked_step(net, engine=engine)
    net.zero_grad()
    losses = net.losses()
    losses[2] = losses[2] * torch.nan
    with pytest.raises(pg.NonFiniteGradientError) as caught:
        pg.backward(losses, pg.UPGrad(), engine=engine)  # type: ignore[arg-type]
    assert caught.value.objectives == [2]
    assert all(param.grad is None for param in net.parameters())
    losses = net.losses()
    losses[2] = losses[2] * torch.inf
    assert not pg.backward(losses, pg.UPGrad(), engine=engine, nonfinite="propagate").finite  # type: ignore[arg-type]
    assert not all(bool(param.grad.isfinite().all()) for param in net.parameters())
    checked_step(net, engine=engine)


def test_rows_to_look_at() -> None:
    net = Tasks()
    torch.manual_seed(3)
    losses = net.losses()
    rows = pg.jacobian(losses, net)
    assert isinstance(rows, dict)
    assert list(rows) == [name for name, _ in net.named_parameters()]
    for k, loss in enumerate(losses):
        grads = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True, allow_unused=True)
        for found, grad in zip(rows.values(), grads, strict=True):
            assert torch.equal(found[k], torch.zeros_like(found[k]) if grad is None else grad)
    (weight,) = pg.jacobian(losses, [net.trunk[0].weight])
    assert torch.equal(weight, rows["trunk.0.weight"])


# ---- micro-batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64, "device": "cpu"}])
def test_micro_batches_are_one_batch(options: dict[str, object]) -> None:
    """The rule is applied once to the sums of the rows, as for the whole batch."""
    net, x = Tasks(), torch.randn(16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def losses(part: Tensor) -> list[Tensor]:
        z = net.trunk(part)
        return [(head(z) - k).square().sum() / len(x) for k, head in enumerate(net.heads)]

    whole = losses(x)
    expected = slowly(whole, list(net.parameters()), pg.UPGrad())
    with pg.accumulate(net, **options) as acc:  # type: ignore[arg-type]
        for part in x.split(5):
            acc.add(losses(part))
        assert acc.count == 4
        step = acc.step(pg.UPGrad())
    compare(net.parameters(), expected, step)
    assert step.certificate.non_conflicting


def test_wrong_micro_batches() -> None:
    net = Tasks()
    with pg.accumulate(net) as acc:
        with pytest.raises(pg.ParameterError, match="no rows yet"):
            acc.step(pg.UPGrad())
        acc.add(net.losses())
        with pytest.raises(pg.ShapeError, match="3 losses, the ones before it 4"):
            acc.add(net.losses()[:3])
        with pytest.raises(pg.ParameterError, match="give a rule"):
            acc.step("upgrad")  # type: ignore[arg-type]
        bad = net.losses()
        bad[2] = bad[2] * torch.nan
        acc.add(bad)
        with pytest.raises(pg.NonFiniteGradientError) as caught:
            acc.step(pg.UPGrad())
        assert caught.value.objectives == [2]
    assert all(param.grad is None for param in net.parameters())


@pytest.mark.parametrize("engine", ["auto", "batched", "gramian"])
def test_an_activation_may_keep_its_gradient(engine: str) -> None:
    """Batched passes cannot provide it. One step finds out, warns and is right; the later ones take plain passes."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    heads = [nn.Linear(64, 2) for _ in range(3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            trunk.zero_grad()
            features = trunk(torch.randn(8, 64))
            features.retain_grad()
            losses = [head(features).square().mean() for head in heads]
            rows = [torch.autograd.grad(loss, list(trunk.parameters()), retain_graph=True) for loss in losses]
            features.grad = None
            step = pg.backward(losses, pg.UPGrad(), engine=engine)
            for param, *grads in zip(trunk.parameters(), *rows, strict=True):
                wanted = sum(w.float() * grad for w, grad in zip(step.weights, grads, strict=True))
                torch.testing.assert_close(param.grad, wanted)
    assert any("retain_grad" in str(one.message) for one in caught)
    assert features.grad is not None
    assert float(features.grad.norm()) > 0
