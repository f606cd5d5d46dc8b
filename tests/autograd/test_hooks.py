"""Hooks of users, what is freed, and gradients that are there already: in one process."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import paretograd as pg

ENGINES = ["jacobian", "gramian"]


class Net(nn.Module):
    """A trunk, and a head for each of two tasks."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(6, 3, sparse=sparse)
        self.trunk, self.heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 2) for _ in range(2)])

    def features(self) -> Tensor:
        return self.trunk(self.words(torch.tensor([0, 1, 3]))).tanh()

    def losses(self, z: Tensor | None = None) -> list[Tensor]:
        z = self.features() if z is None else z
        return [self.heads[0](z).square().mean(), (self.heads[1](z) - 1.0).abs().mean()]


def grads(net: nn.Module) -> list[Tensor]:
    return [param.grad.to_dense() for param in net.parameters() if param.grad is not None]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_hook_of_a_parameter_sees_what_goes_to_grad(engine: str) -> None:
    plain, net = Net(), Net()
    want = pg.backward(plain.losses(), pg.UPGrad(), engine=engine)
    shown: dict[str, list[Tensor]] = {name: [] for name, _ in net.named_parameters()}
    for name, param in net.named_parameters():
        param.register_hook(lambda grad, name=name: shown[name].append(grad.clone()))
        param.register_hook(lambda grad: 2.0 * grad)
    got = pg.backward(net.losses(), pg.UPGrad(), engine=engine)
    assert torch.equal(pg.gramian(net.losses(), engine=engine), pg.gramian(plain.losses(), engine=engine))
    assert torch.equal(got.weights, want.weights)
    for (name, param), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        assert len(shown[name]) == 1
        assert torch.equal(shown[name][0], other.grad)
        assert torch.equal(param.grad, 2.0 * other.grad)


def test_a_hook_may_be_removed_after_a_step() -> None:
    net = Net()
    handle = net.trunk.weight.register_hook(lambda grad: 2.0 * grad)
    pg.backward(net.losses(), pg.UPGrad())
    handle.remove()
    first = net.trunk.weight.grad.clone()
    net.zero_grad()
    pg.backward(net.losses(), pg.UPGrad())
    torch.testing.assert_close(first, 2.0 * net.trunk.weight.grad)


def test_a_hook_may_return_a_tensor_that_is_kept() -> None:
    net = Net()
    kept = torch.ones_like(net.trunk.bias)
    net.trunk.bias.register_hook(lambda grad: kept)
    pg.backward(net.losses(), pg.UPGrad())
    net.trunk.bias.grad.zero_()
    assert torch.equal(kept, torch.ones_like(kept))


def test_hooks_of_activations_and_modules_take_part_in_the_passes(engine: str) -> None:
    """Each sees gradients only, never the None of a pass without any."""
    seen: list[object] = []
    net, half = Net(), Net()
    z = net.features()
    z.register_hook(lambda grad: seen.append(grad) or 2.0 * grad)
    net.heads[0].register_full_backward_hook(lambda module, below, above: seen.extend([*above]))
    pg.backward(net.losses(z), pg.Mean(), engine=engine)
    pg.backward(half.losses(), pg.Mean(), engine=engine)
    assert seen
    assert all(isinstance(grad, Tensor) for grad in seen)
    torch.testing.assert_close(net.trunk.weight.grad, 2.0 * half.trunk.weight.grad)
    torch.testing.assert_close(net.heads[0].weight.grad, half.heads[0].weight.grad)


def test_a_hook_that_cannot_be_batched() -> None:
    net, other, norms = Net(), Net(), []
    z = net.features()
    z.register_hook(lambda grad: norms.append(float(grad.norm())))
    pg.backward(net.losses(z), pg.UPGrad())
    pg.backward(other.losses(), pg.UPGrad())
    assert norms
    for got, want in zip(grads(net), grads(other), strict=True):
        torch.testing.assert_close(got, want)


def test_an_optimizer_in_the_backward_pass_makes_one_step(engine: str) -> None:
    net, other = Net(), Net()
    for param in net.parameters():
        optimizer = torch.optim.SGD([param], lr=0.1)
        param.register_post_accumulate_grad_hook(lambda _, o=optimizer: (o.step(), o.zero_grad()))
    pg.backward(net.losses(), pg.UPGrad(), engine=engine)
    pg.backward(other.losses(), pg.UPGrad(), engine=engine)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert not grads(net)
    for got, want in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, want)


def test_what_the_graph_saved_is_freed(engine: str) -> None:
    """Also what a function in Python saved; and it is an error to ask for it again."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, saved: Tensor) -> Tensor:
            ctx.save_for_backward(saved)
            return 2.0 * x

        @staticmethod
        def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
            return 2.0 * grad + 0.0 * ctx.saved_tensors[0].sum(), None

    net, saved, factor = Net(), torch.ones(5), torch.ones(3, 4)
    alive = [weakref.ref(saved), weakref.ref(factor)]
    z = Double.apply(net.features() * factor, saved)
    losses = [*net.losses(z), torch.linalg.multi_dot([z, z.T, z]).mean()]
    del saved, factor
    pg.backward(losses, pg.UPGrad(), engine=engine, retain_graph=True)
    assert all(reference() is not None for reference in alive)
    pg.backward(losses, pg.UPGrad(), engine=engine)
    assert all(reference() is None for reference in alive)
    with pytest.raises(RuntimeError, match="second time"):
        losses[0].backward()


def test_the_older_checkpoint_is_refused() -> None:
    net = Net()
    x = torch.ones(2, 3, requires_grad=True)
    for call in (lambda losses: pg.backward(losses, pg.UPGrad(), net), lambda losses: pg.gramian(losses, net)):
        with pytest.raises(pg.ParameterError, match="use_reentrant=False"):
            call(net.losses(checkpoint(net.trunk, x, use_reentrant=True)))
    pg.backward(net.losses(checkpoint(net.trunk, x, use_reentrant=False)), pg.UPGrad(), net)
    assert net.trunk.weight.grad is not None


def test_a_sparse_gradient_that_is_there_already() -> None:
    net, other = Net(sparse=True), Net()
    for each in (net, other):
        sum(each.losses()).backward()
        pg.backward(each.losses(), pg.UPGrad())
    for got, want in zip(grads(net), grads(other), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", [{"engine": "bogus"}, {"chunk": 0}])
def test_gramian_refuses_what_backward_refuses(options: dict[str, object]) -> None:
    for call in (
        lambda losses: pg.backward(losses, pg.UPGrad(), **options),
        lambda losses: pg.gramian(losses, **options),
    ):
        with pytest.raises(pg.ParameterError, match=f"{next(iter(options))}="):
            call(Net().losses())
