"""`accumulate` in one process: samples, names and parameters. `test_choice` compares its sums with whole batches."""

from __future__ import annotations

import pytest
import torch
from support.backward import compare, slowly
from torch import Tensor, nn

import paretograd as pg


class Tasks(nn.Module):
    """A trunk, and a head for each of three tasks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double()
        self.heads = nn.ModuleList([nn.Linear(6, 1).double() for _ in range(3)])

    def losses(self, x: Tensor) -> list[Tensor]:
        z = self.trunk(x)
        return [(head(z) - k).square().mean() for k, head in enumerate(self.heads)]


def batch(count: int) -> Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 1, 3], [0, 7], [2, 0, 3]])
def test_samples_weight_micro_batches(sizes: list[int]) -> None:
    """Means over micro-batches of any size give the gradient of the mean over all samples."""
    net, x = Tasks(), batch(sum(sizes))
    expected = slowly(net.losses(x), list(net.parameters()), pg.UPGrad())
    with pg.accumulate(net) as acc:
        for part in x.split(sizes):
            losses = net.losses(part) if len(part) else [0.0 * loss for loss in net.losses(x)]
            acc.add(losses, samples=len(part))
        step = acc.step(pg.UPGrad())
    compare(net.parameters(), expected, step)


def test_samples_of_each_loss() -> None:
    """Each loss is a mean over samples of its own, of which some micro-batches have none."""
    net, x = Tasks(), batch(12)
    keep = torch.tensor([[(i + k) % 3 > 0 and not (i < 4 and k == 1) for k in range(3)] for i in range(12)])

    def losses(x: Tensor, keep: Tensor) -> list[Tensor]:
        z = net.trunk(x)
        return [
            (head(z)[:, 0].square() * keep[:, k]).sum() / keep[:, k].sum().clamp(min=1)
            for k, head in enumerate(net.heads)
        ]

    expected = slowly(losses(x, keep), list(net.parameters()), pg.MGDA())
    with pg.accumulate() as acc:
        for part, kept in zip(x.split(4), keep.split(4), strict=True):
            acc.add(losses(part, kept), samples=kept.sum(dim=0).tolist())
        step = acc.step(pg.MGDA())
    compare(net.parameters(), expected, step)


def test_a_failed_step_changes_nothing() -> None:
    """Rows and samples stay as they were, and more may be added."""
    net, x = Tasks(), batch(9)
    expected = slowly(net.losses(x), list(net.parameters()), pg.UPGrad())
    acc = pg.accumulate(net)
    for part in x.split([2, 3, 4]):
        acc.add(net.losses(part), samples=len(part))
        with pytest.raises(pg.ParameterError, match="give a rule"):
            acc.step("upgrad")  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            acc.step(Broken())
    compare(net.parameters(), expected, acc.step(pg.UPGrad()))


class Broken(pg.UPGrad):
    """A rule that fails."""

    def _outcome(self, *args: object) -> object:
        raise ZeroDivisionError


def test_micro_batches_must_match() -> None:
    net, x = Tasks(), batch(6)
    names = ("a", "b", "c")
    acc = pg.accumulate(net)
    acc.add(dict(zip(names, net.losses(x), strict=True)), samples=6)
    for losses, samples, words in (
        (dict(zip(names[::-1], net.losses(x), strict=True)), 6, "named .'c', 'b', 'a'., the ones before it .'a', 'b'"),
        (net.losses(x), 6, "named None"),
        (dict(zip(names, net.losses(x), strict=True)), None, "samples for every micro-batch or for none"),
        (dict(zip(names, net.losses(x), strict=True)), [6, 6], "2 numbers for 3 losses"),
        (dict(zip(names, net.losses(x), strict=True)), -1, "samples=-1"),
    ):
        with pytest.raises(pg.ParameterError, match=words):
            acc.add(losses, samples=samples)
    assert acc.count == 1
    step = acc.step(pg.UPGrad())
    assert step.names == names
    acc.add(net.losses(x), samples=[1, 0, 2])
    with pytest.raises(pg.ParameterError, match="no micro-batch has samples for objective 1"):
        acc.step(pg.UPGrad())
    groups = pg.accumulate([[net.trunk[0].weight], [net.trunk[0].bias]])
    with pytest.raises(pg.ParameterError, match="got 2 groups"):
        groups.add(net.losses(x))
    with pytest.raises(pg.ParameterError, match="use one of auto, none, data, objectives"):
        pg.accumulate(net, parallel="model").add(net.losses(x))  # type: ignore[arg-type]


def test_parameters_without_entries_get_a_gradient_without_entries() -> None:
    """As from torch's own backward pass."""
    weight, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 0))
    losses = [(weight * k).sum() + empty.sum() for k in (1.0, 2.0)]
    pg.backward(losses, pg.UPGrad(), engine="jacobian")
    assert empty.grad is not None
    assert empty.grad.shape == (2, 0)


@pytest.mark.parametrize("where", [0, 1], ids=["trunk", "head"])
def test_gradients_that_are_not_finite(where: int) -> None:
    """They raise an error and leave all as it was, or are passed on to ``.grad``, where a GradScaler sees them."""
    net, x = Tasks(), batch(6)
    params = net.trunk[0].weight, net.heads[1].weight

    def bad() -> list[Tensor]:
        losses = net.losses(x)
        losses[1] = losses[1] + (params[where] * torch.inf).sum()
        return losses

    acc = pg.accumulate(net)
    acc.add(net.losses(x))
    acc.add(bad())
    with pytest.raises(pg.NonFiniteGradientError, match="objective 1"):
        acc.step(pg.UPGrad())
    assert all(param.grad is None for param in net.parameters())
    acc = pg.accumulate(net, nonfinite="propagate")
    acc.add(net.losses(x))
    acc.add(bad())
    step = acc.step(pg.UPGrad())
    assert not step.finite
    assert params[where].grad is not None
    assert not params[where].grad.isfinite().all()
    net.zero_grad()
    acc.add(net.losses(x))
    assert acc.step(pg.UPGrad()).finite
