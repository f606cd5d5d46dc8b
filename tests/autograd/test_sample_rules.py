"""One objective for each sample: the layers that give all gradients in one pass, and the warning about others."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from support.backward import graph_of
from support.models.samples import CASES, build, per_sample_loss
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg
from paretograd.autograd import products
from paretograd.autograd.layers import products as layer_products
from paretograd.autograd.samples.way import SamplePullback, pull_samples

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def pulled(losses: Tensor) -> SamplePullback | str:
    graph = graph_of(losses)
    with torch.no_grad():
        return pull_samples(losses, graph.leaves, graph)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at_a_time", [1, 2**24])
@pytest.mark.parametrize("name", CASES)
def test_one_pass_agrees_with_plain_passes(
    name: str, at_a_time: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever steps the products are formed. Both work in float64 and differ by rounding only."""
    if device == "cuda" and name == "gated_recurrent_units":
        pytest.skip("cuDNN's kernel has no rule")
    monkeypatch.setattr(layer_products, "_AT_A_TIME", at_a_time)
    monkeypatch.setattr(products, "_SLICE", 8192 if at_a_time > 1 else 7)
    net, losses_of = build(name, device)
    losses = losses_of()
    params = [param for param in net.parameters() if param.requires_grad]
    rows = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
    J = torch.stack([torch.cat([grad.flatten() for grad in row]) for row in rows])
    found = pulled(losses)
    assert isinstance(found, SamplePullback)
    scale = float((J @ J.T).diagonal().max())
    assert (found.gramian - J @ J.T).abs().max() <= 1e-10 * scale
    weights = torch.linspace(0.5, 2.0, len(losses), dtype=torch.float64, device=device)
    grads = {id(param): grad for param, grad in found.combine(weights)}
    direction = torch.cat([grads[id(param)].flatten() for param in params])
    assert (direction - weights @ J).abs().max() <= 1e-10 * scale**0.5


@pytest.mark.parametrize("name", CASES)
def test_rows_of_samples_are_their_gradients(name: str) -> None:
    """`sample_rows` of each layer has the Gramian of `sample_gramian`, whichever way that takes."""
    _, losses_of = build(name)
    found = pulled(losses_of())
    assert isinstance(found, SamplePullback)
    for layer, grad, samples in (output for group in found._groups for output in group):
        rows = layer.sample_rows(grad, samples)
        assert [row.shape[1:] for row in rows] == [param.shape for param in layer.params]
        G = torch.stack([row.flatten(1) @ row.flatten(1).T for row in rows]).sum(dim=0)
        assert torch.allclose(layer.sample_gramian(grad, samples), G, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast(device: str) -> None:
    """Products in bfloat16, rounding 4e-3, in another order than those of plain passes."""
    torch.manual_seed(0)
    net, x = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True).to(device), torch.randn(4, 6, 32)
    with torch.autocast(device, dtype=torch.bfloat16):
        losses = per_sample_loss(net(x.to(device)).float())
    params = list(net.parameters())
    rows = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
    J = torch.stack([torch.cat([grad.double().flatten() for grad in row]) for row in rows])
    found = pulled(losses)
    assert isinstance(found, SamplePullback)
    assert (found.gramian - J @ J.T).abs().max() <= 2e-2 * (J @ J.T).max()


class Noise(torch.autograd.Function):
    """The identity, whose gradient changes in the last bit from pass to pass, as sums in another order do."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * (1.0 + torch.finfo(grads[0].dtype).eps * torch.rand_like(grads[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_kernels_that_are_not_deterministic(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    first, norm, last = nn.Linear(5, 4).to(dtype), nn.LayerNorm(4), nn.Linear(4, 3).to(dtype)
    x = torch.randn(6, 7, 5, dtype=dtype)
    hidden = norm(Noise.apply(first(x)).float())
    found = pulled(per_sample_loss(Noise.apply(last(Noise.apply(hidden.to(dtype)))).float()))
    assert isinstance(found, SamplePullback)


# ---- where one pass is not enough ------------------------------------------------------------------------------------


def agrees_with_a_warning(losses_of: Callable[[], Tensor], words: str) -> None:
    expected = pg.backward(losses_of(), pg.UPGrad(), engine="jacobian")
    with pytest.warns(UserWarning, match=words):
        step = pg.backward(losses_of(), pg.UPGrad(), per_sample=True)
    assert torch.allclose(step.gramian, expected.gramian, rtol=1e-6, atol=1e-6)


def test_a_layer_without_samples_is_named() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(5, 4), torch.randn(2, 5)
    words = r"Addmm with a parameter of shape \(4, 5\) keeps no 3 samples apart.* up to 3 backward passes"
    agrees_with_a_warning(lambda: net(x).square().sum(dim=0)[:3], words)


def test_a_parameter_without_a_rule_is_named() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Bilinear(3, 4, 5), torch.randn(6, 3), torch.randn(6, 4)
    words = r"Trilinear with a parameter of shape \(5, 3, 4\) has no rule for samples"
    agrees_with_a_warning(lambda: per_sample_loss(net(x, y)), words)


def test_an_output_for_all_samples_goes_the_long_way() -> None:
    """It has no gradient of a single sample; the model mixes none, all the same."""
    torch.manual_seed(0)
    table, x = nn.Embedding(4, 3), torch.randn(4, 4, 3)
    for places in (torch.arange(4), torch.arange(4)[None]):
        agrees_with_a_warning(lambda at=places: per_sample_loss(x * table(at).sin()), "samples were not found")


def test_no_shared_parameters() -> None:
    net, x = nn.Linear(3, 1), torch.randn(4, 3)
    step = pg.backward(net(x).square().flatten(), pg.Mean(), specific=net, per_sample=True)
    assert not step.gramian.any()


def test_samples_in_another_order_go_the_long_way() -> None:
    """No layout of samples and tokens is this permutation of both."""
    torch.manual_seed(0)
    net, x, order = nn.Linear(5, 3), torch.randn(12, 5), torch.randperm(12)
    agrees_with_a_warning(lambda: per_sample_loss(net(x)[order].unflatten(0, (4, 3))), "samples were not found")


def test_samples_that_cannot_be_told_apart_go_the_long_way() -> None:
    """A single row has a gradient, which belongs to one sample or to another with the same factor."""
    torch.manual_seed(0)
    net, x = nn.Linear(5, 3), torch.randn(40, 40, 5)
    known = []
    for active in range(40):
        only = functional.one_hot(torch.tensor(active), 40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pulled(per_sample_loss(net(x)[:, 3]) * only)
        if isinstance(found, SamplePullback):
            assert found.gramian.diagonal().nonzero().flatten().tolist() == [active]
            known.append(active)
    assert 20 < len(known) < 40


def test_mixed_tokens_go_the_long_way() -> None:
    """BatchNorm over samples and tokens."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(4)), torch.randn(6, 4, 5)
    agrees_with_a_warning(lambda: per_sample_loss(net(x)), r"Addmm with a parameter of shape .* samples were not found")
