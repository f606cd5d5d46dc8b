"""Habits of real models: leaves that are no parameters, checkpoints, compilers, sparse tables, named losses.

Each case was found with a model that people train, which stands here in its smallest form.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config
from support.backward import compare, slowly
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import paretograd as pg
from paretograd.autograd import batched, choice

ENGINES = ["auto", "jacobian", "batched", "gramian"]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts without findings of others."""
    monkeypatch.setattr(choice, "_KNOWN", {})


class Heads(nn.Module):
    """A trunk and three heads, in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 64), nn.LayerNorm(64))
        self.heads = nn.ModuleList(nn.Linear(64, k + 1) for k in range(3))
        self.double()

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.trunk(x)
        return [head(z) for head in self.heads]


def inputs(rows: int = 12) -> Tensor:
    return torch.randn(rows, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def squares(outputs: list[Tensor]) -> list[Tensor]:
    return [10.0**k * (out - 0.1 * k).square().mean() for k, out in enumerate(outputs)]


# ---- operations that torch batches wrongly ---------------------------------------------------------------------------


def distances(w: Tensor) -> list[Tensor]:
    x = torch.randn(6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    d = torch.cdist(x @ w, places)
    return [d[:, 0].mean(), d[:, 1].square().mean(), d[:, 2].exp().mean()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trusted", [False, True])
def test_distances_are_not_batched(engine: str, trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.vmap` returns the first row for all. Even if the operation were on the list, the check would find out."""
    if trusted:
        kinds = ("Cdist", "CdistBackward", "EuclideanDist")
        monkeypatch.setattr(batched, "VERIFIED", batched.VERIFIED | set(kinds))
    w = nn.Parameter(torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    for _ in range(4):
        w.grad = None
        losses = distances(w)
        expected = slowly(losses, [w], pg.UPGrad())
        step = pg.backward(losses, pg.UPGrad(), engine=engine)  # type: ignore[arg-type]
        compare([w], expected, step)
        assert step.how is not None
        assert step.how.way == "jacobian"


def test_a_refused_engine_says_why() -> None:
    w = nn.Parameter(torch.randn(16, 3, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"engine='batched' is not possible .* no verified batching rule"):
        pg.backward(distances(w), pg.UPGrad(), engine="batched")


# ---- leaves that are no parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_activation_that_requires_a_gradient_is_no_parameter(engine: str) -> None:
    """PEFT's hook for checkpoints makes the output of a frozen embedding such a leaf."""
    net = Heads()
    x = inputs().requires_grad_()
    losses = squares(net(x))
    expected = slowly(losses, list(net.parameters()), pg.MGDA())
    step = pg.backward(losses, pg.MGDA(), engine=engine)  # type: ignore[arg-type]
    compare(net.parameters(), expected, step)
    assert x.grad is None


def test_a_leaf_that_lives_on_is_reported() -> None:
    """It may be a tensor that an optimizer holds, which would silently not be trained."""
    net, scale = Heads(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    pg.backward(list(scale * torch.stack(squares(net(inputs())))), pg.MGDA())
    with pytest.warns(UserWarning, match=r"1 tensors that require gradients and are no nn.Parameter.*shape \(3,\)"):
        pg.backward(list(scale * torch.stack(squares(net(inputs())))), pg.MGDA())
    assert scale.grad is None
    pg.backward(list(scale * torch.stack(squares(net(inputs())))), pg.MGDA(), [*net.parameters(), scale])
    assert scale.grad is not None


def test_bare_tensors_are_parameters_if_there_are_no_others() -> None:
    w = torch.ones(3, requires_grad=True)
    pg.backward([w.sum(), -(w**2).sum()], pg.MGDA())
    assert w.grad is not None


# ---- passes ----------------------------------------------------------------------------------------------------------


class Counted(torch.autograd.Function):
    """The identity, which counts its backward passes."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Counted.passes += 1
        return grad


@pytest.mark.parametrize("form", ["list", "stack", "list of a stack"])
def test_each_domain_costs_its_own_pass(form: str) -> None:
    """One forward pass per loss: m passes in all, not m through each of m graphs."""
    net = nn.Sequential(nn.Linear(16, 80), nn.Tanh(), nn.Linear(80, 2)).double()
    for _ in range(3):
        net.zero_grad()
        losses: Any = [Counted.apply(net(inputs(4 + k))).square().mean() for k in range(4)]
        if form != "list":
            losses = torch.stack(losses)
        if form == "list of a stack":
            losses = list(losses)
        expected = slowly(losses, list(net.parameters()), pg.UPGrad())
        Counted.passes = 0
        step = pg.backward(losses, pg.UPGrad())
        assert Counted.passes == 4
        compare(net.parameters(), expected, step)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_is_computed_once_for_each_pass(engine: str) -> None:
    class Block(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

        def forward(self, x: Tensor) -> Tensor:
            Block.calls += 1
            return x + self.down(self.up(self.norm(x)).tanh())

    torch.manual_seed(0)
    blocks, heads = nn.ModuleList(Block() for _ in range(2)).double(), [nn.Linear(64, 1).double() for _ in range(3)]
    params = [*blocks.parameters(), *(param for head in heads for param in head.parameters())]
    for _ in range(3):
        x = torch.randn(8, 64, dtype=torch.float64)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        losses = [head(x).square().mean() for head in heads]
        expected = slowly(losses, params, pg.UPGrad())
        for param in params:
            param.grad = None
        Block.calls = 0
        compare(params, expected, pg.backward(losses, pg.UPGrad(), engine=engine))  # type: ignore[arg-type]
        assert Block.calls <= 2 * 3


# ---- compilers -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_heads_of_a_compiled_model_are_found(engine: str) -> None:
    """To torch, every output of a compiled model depends on all its parameters."""
    torch.compiler.reset()
    net = Heads()
    expected = slowly(squares(net(inputs())), list(net.parameters()), pg.MGDA())
    step = pg.backward(squares(torch.compile(net, backend="aot_eager")(inputs())), pg.MGDA(), engine=engine)
    compare(net.parameters(), expected, step)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_heads_of_a_compiled_model_are_found_over_micro_batches() -> None:
    """One micro-batch has nothing for the first head, whose gradients are then all zero."""
    torch.compiler.reset()
    net = Heads()
    forward = torch.compile(net, backend="aot_eager")

    def losses(outputs: list[Tensor], last: bool) -> list[Tensor]:
        first, *others = squares(outputs)
        return [0.0 * first if last else first, *others]

    halves = inputs().chunk(2)
    parts = [losses(net(half), last) for half, last in zip(halves, (False, True), strict=True)]
    expected = slowly([sum(each) for each in zip(*parts, strict=True)], list(net.parameters()), pg.MGDA())
    with torch._functorch.config.patch(donated_buffer=False), pg.accumulate(net) as acc:
        for half, last in zip(halves, (False, True), strict=True):
            acc.add(losses(forward(half), last))
        step = acc.step(pg.MGDA())
    compare(net.parameters(), expected, step)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_rule_that_differentiates_one_loss_needs_the_names_of_heads() -> None:
    """All other losses have no rows, so that the trunk would look like a head."""
    torch.compiler.reset()
    net = Heads()
    pg.backward(squares(net(inputs())), pg.MConFIG())
    expected = [None if param.grad is None else param.grad.clone() for param in net.trunk.parameters()]
    net.zero_grad()
    with torch._functorch.config.patch(donated_buffer=False):
        forward = torch.compile(net, backend="aot_eager")
        with pytest.raises(pg.ParameterError, match="Name these in specific"):
            pg.backward(squares(forward(inputs())), pg.MConFIG())
        assert all(param.grad is None for param in net.parameters())
        pg.backward(squares(forward(inputs())), pg.MConFIG(), specific=net.heads)
    for param, grad in zip(net.trunk.parameters(), expected, strict=True):
        assert grad is not None
        torch.testing.assert_close(param.grad, grad, rtol=1e-10, atol=1e-12)


# ---- sparse tables ---------------------------------------------------------------------------------------------------


def test_sparse_gradients_stay_sparse() -> None:
    table, heads = nn.Embedding(1000, 8, sparse=True), [nn.Linear(8, 1), nn.Linear(8, 1)]
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        losses = [head(table(torch.tensor([1, 2, 3 + k, 1]))).square().mean() for k, head in enumerate(heads)]
        expected = slowly(losses, [table.weight], pg.UPGrad())
        pg.backward(losses, pg.UPGrad())
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        assert sorted(table.weight.grad.coalesce().indices()[0].tolist()) == [1, 2, 3, 4]
        error = (table.weight.grad.to_dense() - expected.grads[id(table.weight)]).abs().max()
        assert float(error) <= 1e-6 * expected.scale
        optimizer.step()


# ---- names -----------------------------------------------------------------------------------------------------------


def test_losses_may_have_names() -> None:
    net = Heads()
    names = ("seg", "depth", "normals")
    values = squares(net(inputs()))
    expected = slowly(values, list(net.parameters()), pg.UPGrad())
    step = pg.backward(dict(zip(names, values, strict=True)), pg.UPGrad())
    compare(net.parameters(), expected, step)
    assert step.names == names
    assert {f"mo/weight/{name}" for name in names} <= set(step.metrics())
    assert step.certificate.names == names
    assert "slopes <d, g_k>           seg: " in str(step.certificate)
    gramian = pg.gramian(dict(zip(names, squares(net(inputs())), strict=True)), net.trunk)
    assert torch.allclose(gramian, step.gramian, rtol=1e-12)


def test_messages_use_the_names() -> None:
    net, lone = Heads(), nn.Linear(16, 1).double()
    a, b, c = squares(net(inputs()))
    with pytest.raises(pg.NonFiniteGradientError, match="objective 'depth'") as caught:
        pg.backward({"seg": a, "depth": b * torch.nan, "normals": c}, pg.UPGrad())
    assert caught.value.objectives == [1]
    a, b, _ = squares(net(inputs()))
    with pytest.warns(UserWarning, match=r"losses\['probe'\] reaches no parameter"):
        pg.backward({"seg": a, "depth": b, "probe": lone(inputs()).square().mean()}, pg.UPGrad())
    a, b, _ = squares(net(inputs()))
    with pytest.raises(pg.InputError, match=r"losses\['depth'\] has no graph"):
        pg.backward({"seg": a, "depth": b.detach()}, pg.UPGrad())
