"""`backward` in a metric: the Gramian is that of a slow reference, and the update keeps the rule's promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd.metric import OptimizerMetric

STEPS = 3

#: Optimizers of torch whose preconditioner is diagonal, with options.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adam": lambda p: torch.optim.Adam(p),
    "Adam, one by one": lambda p: torch.optim.Adam(p, foreach=False),
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RAdam, rectified": lambda p: torch.optim.RAdam(p, betas=(0.9, 0.5)),
    "Adamax": lambda p: torch.optim.Adamax(p),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def losses_of(net: nn.Module, seed: int = 0) -> list[Tensor]:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return list((net(x) - torch.tensor([1.0, -2.0, 0.5]).double()).square().mean(dim=0))


def flat(values: Any) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in values])


def rows_of(net: nn.Module, losses: list[Tensor]) -> Tensor:
    return torch.cat([block.flatten(1) for block in pg.jacobian(losses, list(net.parameters()))], dim=1)


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    net = network()
    optimizer = make(net.parameters())
    for t in range(STEPS):
        optimizer.zero_grad()
        pg.backward(losses_of(net, t), pg.UPGrad())
        optimizer.step()
    return net, optimizer


def diagonal(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> Tensor:
    roots = OptimizerMetric(optimizer).roots(params)
    pairs = zip(params, roots, strict=True)
    return flat([torch.ones_like(param) if root is None else root.square() for param, root in pairs])


#: Without momentum and decay, an update is P times the gradient, with the P after the step.
MEMORYLESS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, eps=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, betas=(0.0, 0.9), eps=1e-3),
    "AMSGrad": lambda p: torch.optim.Adam(p, betas=(0.0, 0.9), amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, betas=(0.0, 0.9), weight_decay=0.0),
    "NAdam": lambda p: torch.optim.NAdam(p, betas=(0.0, 0.9)),
    "RAdam": lambda p: torch.optim.RAdam(p, betas=(0.0, 0.9)),
    "RAdam, rectified": lambda p: torch.optim.RAdam(p, betas=(0.0, 0.5)),
    "Adamax": lambda p: torch.optim.Adamax(p, betas=(0.0, 0.9)),
}


@pytest.mark.parametrize("name", MEMORYLESS)
def test_the_metric_is_what_the_optimizer_multiplies_by(name: str) -> None:
    net, optimizer = trained(MEMORYLESS[name])
    params = list(net.parameters())
    before = flat(params)
    g = flat(param.grad for param in params)
    optimizer.step()
    update = before - flat(params)
    product = diagonal(optimizer, params) * g
    factor = torch.dot(update, product) / product.square().sum()
    torch.testing.assert_close(update, factor * product, rtol=1e-9, atol=1e-14)


def test_learning_rates_count() -> None:
    """A group with twice the rate moves twice as far. One that does not move has no part in the metric."""
    net = network()
    groups = [{"params": [param], "lr": lr} for param, lr in zip(net.parameters(), (0.1, 0.2, 0.0, 0.05), strict=True)]
    optimizer, losses = torch.optim.SGD(groups, lr=1.0), losses_of(net)
    J = rows_of(net, losses)
    P = flat(torch.full_like(group["params"][0], group["lr"] / 0.2) for group in groups)
    step = pg.backward(losses, pg.UPGrad(), net, metric=optimizer)
    torch.testing.assert_close(step.gramian, (J * P) @ J.T, rtol=1e-12, atol=1e-14)
    fewer = torch.optim.SGD([param for param in net.parameters() if param.ndim == 2], lr=0.1)
    step = pg.backward(losses_of(net), pg.UPGrad(), net, metric=fewer)
    P = flat(torch.full_like(param, float(param.ndim == 2)) for param in net.parameters())
    torch.testing.assert_close(step.gramian, (J * P) @ J.T, rtol=1e-12, atol=1e-14)


def test_before_the_first_step_the_metric_is_euclidean() -> None:
    found = []
    for metric in (True, False):
        net = network()
        optimizer = torch.optim.Adam(net.parameters())
        step = pg.backward(losses_of(net), pg.UPGrad(), net, metric=optimizer if metric else None)
        found.append((step.weights, step.gramian, flat(param.grad for param in net.parameters())))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("engine", ["auto", "jacobian", "batched"])
def test_the_gramian_is_exact(name: str, engine: Any) -> None:
    net, optimizer = trained(OPTIMIZERS[name])
    params, losses = list(net.parameters()), losses_of(net, 7)
    J, P = rows_of(net, losses), diagonal(optimizer, params)
    net.zero_grad()
    rule = pg.UPGrad()
    step = pg.backward(losses, rule, net, metric=optimizer, engine=engine)
    G = (J * P) @ J.T
    torch.testing.assert_close(step.gramian, G, rtol=1e-13, atol=1e-13 * float(G.diagonal().max()))
    d = rule.weights(G) @ J
    torch.testing.assert_close(flat(param.grad for param in params), d, rtol=1e-9, atol=1e-12)
    assert (J @ (P * d)).min() >= -1e-12  # P d does not conflict
    assert step.certificate.keeps_promise


@pytest.mark.parametrize("form", ["tensor", "list", "dictionary", "function"])
def test_a_metric_of_the_users_own(form: str) -> None:
    net = network()
    params, losses = list(net.parameters()), losses_of(net)
    diagonals = [torch.rand_like(param) + 0.1 for param in params]
    of = {param: diagonal.detach() for param, diagonal in zip(params, diagonals, strict=True)}
    given: Any = {
        "tensor": flat(diagonals),
        "list": diagonals,
        "dictionary": of,
        "function": lambda param, gradient: of[param] * gradient,
    }[form]
    J, P = rows_of(net, losses), flat(diagonals)
    step = pg.backward(losses, pg.UPGrad(), params, metric=given)
    torch.testing.assert_close(step.gramian, (J * P) @ J.T, rtol=1e-12, atol=1e-12)


def test_a_matrix_as_a_function() -> None:
    """A preconditioner with a full block for each parameter, as Shampoo's."""
    net = network()
    params, losses = list(net.parameters()), losses_of(net)
    blocks = {}
    for param in params:
        root = torch.randn(param.numel(), param.numel(), dtype=torch.float64)
        blocks[param] = root @ root.T + torch.eye(param.numel()).double()
    J, P = rows_of(net, losses), torch.block_diag(*blocks.values())
    step = pg.backward(losses, pg.UPGrad(), params, metric=lambda p, g: (blocks[p] @ g.reshape(-1)).view_as(g))
    torch.testing.assert_close(step.gramian, J @ P @ J.T, rtol=1e-12, atol=1e-10)
    d = flat(param.grad for param in params)
    assert (J @ P @ d).min() >= -1e-10


@pytest.mark.parametrize("kind", ["contiguous", "channels-last", "complex", "sparse", "bfloat16"])
def test_other_parameters(kind: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    net: nn.Module = nn.Conv2d(3, 3, 3).double()
    if kind == "channels-last":
        net = net.to(memory_format=torch.channels_last)
    if kind == "complex":
        net, x = nn.Linear(8, 3, dtype=torch.complex128), x.to(torch.complex128)
    if kind == "sparse":
        net, x = nn.Embedding(20, 3, sparse=True, dtype=torch.float64), torch.tensor([[1, 4, 4], [7, 1, 3]])
    if kind == "bfloat16":
        net, x = net.bfloat16(), x.bfloat16()
    params = list(net.parameters())
    make = torch.optim.SparseAdam if kind == "sparse" else torch.optim.Adam

    def losses() -> list[Tensor]:
        y = net(x).abs() if kind == "complex" else net(x)
        y = y.movedim(1, -1) if y.ndim == 4 and kind != "complex" else y
        return [(y[..., k] - k).square().mean() for k in range(3)]

    optimizer = make(params)
    pg.backward(losses(), pg.UPGrad(), params)
    optimizer.step()
    P = diagonal(optimizer, params)
    real = [torch.view_as_real(block) if block.is_complex() else block for block in pg.jacobian(losses(), params)]
    J = torch.cat([block.flatten(1).double() for block in real], dim=1)
    step = pg.backward(losses(), pg.UPGrad(), params, metric=optimizer)
    rtol = 0.02 if kind == "bfloat16" else 1e-12  # the state of bfloat16 parameters is in bfloat16
    torch.testing.assert_close(step.gramian, (J * P.double()) @ J.T, rtol=rtol, atol=rtol * float(step.gramian.max()))


def test_groups_and_heads() -> None:
    """Each group has its own Gramian; parameters of one loss alone are in none."""
    torch.manual_seed(0)
    trunk, heads = nn.Linear(4, 6).double(), nn.ModuleList(nn.Linear(6, 1).double() for _ in range(2))
    params = [*trunk.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(params)

    def losses() -> list[Tensor]:
        z = trunk(torch.ones(3, 4).double()).tanh()
        return [(head(z) - k).square().mean() for k, head in enumerate(heads)]

    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    P = diagonal(optimizer, list(trunk.parameters()))
    J = torch.cat([block.flatten(1) for block in pg.jacobian(losses(), list(trunk.parameters()))], dim=1)
    optimizer.zero_grad()
    step = pg.backward(losses(), pg.UPGrad(), metric=optimizer)
    torch.testing.assert_close(step.gramian, (J * P) @ J.T, rtol=1e-12, atol=1e-14)
    parts = pg.backward(losses(), pg.UPGrad(), [[trunk.weight], [trunk.bias]], metric=optimizer)
    torch.testing.assert_close(parts.gramian, (J * P) @ J.T, rtol=1e-12, atol=1e-14)
    assert len(parts.groups) == 2


def test_rows_that_overflow_are_multiplied_again() -> None:
    net = nn.Linear(3, 2)
    losses = [1e25 * net(torch.ones(3)).square().sum(), net(torch.ones(3)).sum()]
    step = pg.backward(losses, pg.MGDA(), net, metric=[torch.full_like(param, 0.5) for param in net.parameters()])
    assert torch.isfinite(step.gramian).all()


def test_errors() -> None:
    net = network()

    def call(metric: Any, **options: Any) -> None:
        pg.backward(losses_of(net), pg.UPGrad(), net, metric=metric, **options)

    for metric, text in [
        ("adam", "metric is a str"),
        (torch.ones(3), "metric has shape"),
        ([torch.ones(3)], "metric has 1 tensors"),
        ([-torch.ones_like(param) for param in net.parameters()], "positive"),
        ({}, "no entries"),
        (lambda param, gradient: gradient.sum(), "returned"),
        (torch.optim.LBFGS(net.parameters()), "not known"),
    ]:
        with pytest.raises(pg.ParetogradError, match=text):
            call(metric)
    with pytest.raises(pg.ParameterError, match="belongs to params"):
        pg.backward(losses_of(net), pg.UPGrad(), metric=torch.ones(3))
    with pytest.raises(pg.ParameterError, match="per_sample"):
        pg.backward(
            torch.stack(losses_of(net)), pg.UPGrad(), net, metric=torch.optim.SGD(net.parameters()), per_sample=True
        )
    assert all(param.grad is None for param in net.parameters())


def test_the_gramian_engine_needs_rows() -> None:
    net = network()
    with pytest.warns(UserWarning, match="needs rows"):
        step = pg.backward(losses_of(net), pg.UPGrad(), net, metric=torch.optim.SGD(net.parameters()), engine="gramian")
    assert step.how is not None
    assert step.how.way == "jacobian"
