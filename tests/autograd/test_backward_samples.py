"""One objective for each sample: what one plain pass gives is what m passes give."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import paretograd as pg

#: Sums of float64 products, over layers of a few hundred numbers.
TOLERANCE = 1e-12


def per_sample_loss(out: Tensor) -> Tensor:
    return out.flatten(1).sin().square().mean(dim=1) + 0.1 * out.flatten(1).sum(dim=1)


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 7, bias=False), nn.ReLU(), nn.Linear(7, 3)), (
        torch.randn(6, 5)
    )


def cnn() -> tuple[nn.Module, Tensor]:
    layers = (
        *(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2, bias=False)),
        *(nn.BatchNorm2d(3).eval(), nn.Flatten(), nn.LayerNorm(27), nn.Linear(27, 2)),
    )
    return nn.Sequential(*layers), torch.randn(5, 2, 7, 7)


def named_padding() -> tuple[nn.Module, Tensor]:
    layers = (
        *(nn.Conv2d(2, 4, 3, padding="valid"), nn.Tanh(), nn.Conv2d(4, 3, (3, 5), padding="same", bias=False)),
        *(nn.Tanh(), nn.Conv2d(3, 4, 3, padding="same", dilation=2), nn.Tanh(), nn.Conv2d(4, 2, 2, padding="valid")),
    )
    return nn.Sequential(*layers), torch.randn(4, 2, 7, 6)


def tokens() -> tuple[nn.Module, Tensor]:
    """Linear layers on sequences: rows of tokens, not of samples."""
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(4, 3, 8)


@pytest.mark.parametrize("make", [mlp, cnn, named_padding, tokens])
@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.CappedMGDA(eps=0.5)], ids=repr)
def test_agrees_with_the_long_way(make: Callable[[], tuple[nn.Module, Tensor]], rule: pg.Aggregator) -> None:
    torch.manual_seed(0)
    net, x = make()
    net, x = net.double(), x.double()
    expected = pg.backward(per_sample_loss(net(x)), rule, engine="jacobian")
    grads = [param.grad for param in net.parameters()]
    net.zero_grad()
    step = pg.backward(per_sample_loss(net(x)), rule, per_sample=True)
    scale = float(expected.gramian.diagonal().max())
    assert (step.gramian - expected.gramian).abs().max() <= TOLERANCE * scale
    for param, grad in zip(net.parameters(), grads, strict=True):
        assert param.grad is not None
        assert grad is not None
        assert (param.grad - grad).abs().max() <= 1e-10 * max(float(grad.abs().max()), scale**0.5)


def test_mixed_samples_are_found_out() -> None:
    """BatchNorm in training mode: each loss depends on the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    losses = per_sample_loss(net(torch.randn(6, 5)))
    with pytest.raises(pg.ParameterError, match="for instance, mixes samples"):
        pg.backward(losses, pg.UPGrad(), per_sample=True)
    assert all(param.grad is None for param in net.parameters())


def test_a_list_is_no_batch() -> None:
    net = nn.Linear(5, 2)
    losses = list(per_sample_loss(net(torch.randn(3, 5))))
    with pytest.raises(pg.ParameterError, match="as a vector"):
        pg.backward(losses, pg.UPGrad(), per_sample=True)


def test_a_sample_that_is_not_finite_is_named() -> None:
    net, x = nn.Linear(5, 2), torch.randn(4, 5)
    x[2, 1] = torch.inf
    with pytest.raises(pg.NonFiniteGradientError) as caught:
        pg.backward(per_sample_loss(net(x)), pg.MGDA(), per_sample=True)
    assert caught.value.objectives == [2]
    assert net.weight.grad is None


# ---- the range of float32 --------------------------------------------------------------------------------------------


def in_one_pass(losses: Tensor) -> pg.Step:
    """The step, which fails if it goes the long way."""

    step = pg.backward(losses, pg.MGDA(), per_sample=True)
    assert step.how.way == "samples"
    return step


def exactly(make: Callable[[], tuple[nn.Module, Tensor]], factors: Tensor) -> tuple[nn.Module, Tensor, Tensor, pg.Step]:
    """A float32 model with its inputs and losses, and the step of the same in float64."""
    torch.manual_seed(0)
    net, x = make()
    exact = copy.deepcopy(net).double()
    expected = pg.backward(per_sample_loss(exact(x.double())) * factors, pg.MGDA(), engine="jacobian")
    return net, x, per_sample_loss(net(x)) * factors.float(), expected


def difference(gramian: Tensor, expected: Tensor) -> float:
    """The largest, relative to the norms of the two gradients."""
    norms = expected.diagonal().sqrt()
    return float(((gramian - expected) / norms / norms[:, None]).nan_to_num().abs().max())


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("factor", [1e-30, 1e-25, 1e-22, 1e-20, 1e-15, 1e15, 1e20, 1e25, 1e30])
def test_gradients_whose_squares_leave_single_precision(
    make: Callable[[], tuple[nn.Module, Tensor]], factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1e-5 allows for a hundred roundings of float32; weights amplify them."""
    net, x, losses, expected = exactly(make, torch.full((len(make()[1]),), factor, dtype=torch.float64))
    step = in_one_pass(losses)
    assert difference(step.gramian, expected.gramian) <= 1e-5
    assert (step.weights - expected.weights).abs().max() <= 1e-4
    found = [param.grad / factor for param in net.parameters()]
    wanted = torch.autograd.grad(per_sample_loss(net(x)) @ step.weights.float(), list(net.parameters()))
    scale = max(float(grad.abs().max()) for grad in wanted)
    assert all((a - b).abs().max() <= 1e-5 * scale for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("make", [mlp, cnn])
def test_samples_of_every_size(make: Callable[[], tuple[nn.Module, Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1e-30 to 1e30 in one batch, with one that has no gradient at all."""
    factors = torch.logspace(-30, 30, len(make()[1]), dtype=torch.float64)
    factors[1] = 0.0
    _, _, losses, expected = exactly(make, factors)
    step = in_one_pass(losses)
    assert difference(step.gramian, expected.gramian) <= 1e-5
    assert bool((step.gramian[1] == 0.0).all())


def test_gradients_that_leave_single_precision_themselves() -> None:
    """Finite at the output, but not at the weight: named as on the long way, and nothing is changed."""
    net = nn.Linear(3, 1)
    factors = torch.tensor([1.0, 1e30, 1.0])
    x = torch.tensor([[1.0, 2.0, 0.0], [1e10, 0.0, 0.0], [0.0, 1.0, 1.0]])
    for per_sample in (False, True):
        with pytest.raises(pg.NonFiniteGradientError) as caught:
            pg.backward(net(x).flatten() * factors, pg.UPGrad(), per_sample=per_sample)
        assert caught.value.objectives == [1]
        assert net.weight.grad is None
