"""Which parameters `backward` fills, and how: heads, restrictions, overrides, groups, losses that share nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.backward import compare, slowly, untouched
from support.models import MODELS, mlp, task_heads
from torch import Tensor, nn

import paretograd as pg

engines = pytest.mark.parametrize("engine", ["gramian", "jacobian"])


def test_heads_get_the_gradient_of_their_own_loss() -> None:
    problem = task_heads()
    losses = problem.losses()
    pg.backward(losses, pg.UPGrad(), retain_graph=True)
    for k, loss in enumerate(losses):
        own = problem.params[2 + 2 * k : 4 + 2 * k]
        for param, grad in zip(own, torch.autograd.grad(loss, own, retain_graph=True), strict=True):
            assert torch.equal(param.grad, grad)


@engines
def test_params_restricts(engine: str) -> None:
    """The Gramian is that of the parameters given, and all others keep their ``.grad``."""
    problem = mlp()
    before = torch.ones_like(problem.params[0])
    problem.params[0].grad = before
    chosen = problem.params[1:3]
    losses = problem.losses()
    expected = slowly(losses, chosen, pg.UPGrad())
    compare(chosen, expected, pg.backward(losses, pg.UPGrad(), chosen, engine=engine))
    assert problem.params[0].grad is before
    assert torch.equal(before, torch.ones_like(before))
    assert all(p.grad is None for p in problem.params[3:])


@engines
def test_shared_overrides(engine: str) -> None:
    """A head given as shared takes part in the Gramian and in the direction."""
    problem = task_heads()
    losses, head = problem.losses(), problem.params[2]
    rows = [torch.autograd.grad(loss, problem.params[:3], retain_graph=True, allow_unused=True) for loss in losses]
    J = torch.stack([torch.cat([torch.zeros(12) if g is None else g.flatten() for g in row]) for row in rows])
    step = pg.backward(losses, pg.UPGrad(), shared=[head], engine=engine)
    assert torch.allclose(step.gramian, J @ J.T, rtol=1e-12, atol=1e-14)
    assert torch.allclose(head.grad, step.weights[0] * rows[0][2], rtol=1e-12, atol=1e-14)


@engines
def test_specific_overrides(engine: str) -> None:
    """A shared parameter given as specific gets the sum of the gradients, and leaves the Gramian."""
    problem = mlp()
    losses = problem.losses()
    expected = slowly(losses, problem.params[1:], pg.UPGrad())
    (total,) = torch.autograd.grad(sum(losses), problem.params[:1], retain_graph=True)
    step = pg.backward(losses, pg.UPGrad(), specific=[problem.params[0]], engine=engine)
    compare(problem.params[1:], expected, step)
    assert torch.allclose(problem.params[0].grad, total, rtol=1e-12, atol=1e-14)


def test_overrides_leave_alone_what_no_loss_reaches() -> None:
    """An expert that this batch does not use, or a frozen layer, in shared or specific: as in params."""
    problem, idle = mlp(), nn.Linear(2, 2)
    idle.bias.requires_grad_(False)
    idle.weight.grad = torch.ones(2, 2)
    plain = pg.backward(problem.losses(), pg.UPGrad(), retain_graph=True)
    for given in ({"shared": idle}, {"specific": idle}, {"shared": idle.weight, "specific": idle.bias}):
        step = pg.backward(problem.losses(), pg.UPGrad(), **given)
        assert torch.equal(step.gramian, plain.gramian)
    assert torch.equal(idle.weight.grad, torch.ones(2, 2))
    assert idle.bias.grad is None


def test_groups_are_aggregated_apart(engine_of_every_way: str) -> None:
    """A list of lists: each group has the Gramian and the weights that it would have alone."""
    problem = mlp()
    losses = problem.losses()
    groups = [problem.params[:2], problem.params[2:]]
    expected = [slowly(losses, group, pg.UPGrad()) for group in groups]
    pg.backward(losses, pg.UPGrad(), groups, engine=engine_of_every_way)
    for group, want in zip(groups, expected, strict=True):
        compare(group, want)


def test_frozen_and_unused_parameters_are_left_alone() -> None:
    for name in ("frozen_middle", "unused_parameter", "half_frozen_layers"):
        problem = MODELS[name]()
        pg.backward(problem.losses(), pg.MGDA(), problem.params)
        idle = [p for p in problem.params if p.grad is None]
        assert idle, name
        assert all(not p.requires_grad for p in idle) or name == "unused_parameter"


def test_nothing_is_shared() -> None:
    """Every loss has its own parameters: each gets its gradient, whatever the rule."""
    params = [nn.Parameter(torch.arange(3.0) + k) for k in range(3)]
    pg.backward([p.square().sum() for p in params], pg.UPGrad())
    for p in params:
        assert torch.equal(p.grad, 2.0 * p.detach())


def probed(probes: int = 1) -> tuple[nn.Module, list[Tensor]]:
    """A trunk with two tasks, and probes on features that are detached: no shared parameter is theirs."""
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(3, 4), *(nn.Linear(4, 1) for _ in range(2 + probes))])
    z = net[0](torch.randn(5, 3)).tanh()
    tasks = [(head(z) - k).square().mean() for k, head in enumerate(net[1:3])]
    return net, [*tasks, *(head(z.detach()).square().mean() for head in net[3:])]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_loss_that_reaches_nothing_shared_is_named(vector: bool, hidden: bool) -> None:
    """It is an objective all the same, whose gradient is zero; the warning points to the call."""
    net, losses = probed()
    call = (
        torch.compiler.disable(pg.backward) if hidden else pg.backward
    )  # with a frame of torch's between, and without
    with pytest.warns(UserWarning, match=r"losses\[2\] reaches no parameter.*zero.*loss\.backward\(\)") as caught:
        step = call(torch.stack(losses) if vector else losses, pg.MGDA())
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    assert step.weights.tolist() == [0.0, 0.0, 1.0]
    assert not net[0].weight.grad.any()
    assert net[3].weight.grad.any()


def test_all_such_losses_are_named() -> None:
    _, losses = probed(3)
    with pytest.warns(UserWarning, match=r"losses\[0\], losses\[2\] and losses\[4\] reach no parameter"):
        pg.backward([losses[2], losses[0], losses[3], losses[1], losses[4]], pg.UPGrad())
    _, losses = probed(12)
    with pytest.warns(UserWarning, match=r"losses\[2\], .*losses\[8\], losses\[9\] and 4 more reach no parameter"):
        pg.backward(losses, pg.UPGrad())


def test_as_an_error_it_comes_before_any_gradient() -> None:
    net, losses = probed()
    untouched(list(net.parameters()), lambda: pg.backward(losses, pg.MGDA()), UserWarning, "reaches no parameter")


def test_losses_that_share_nothing_need_no_warning() -> None:
    """Warnings are errors here. Nothing shared; one task and a probe; everything specific; a probe that is shared."""
    net, losses = probed()
    pg.backward(losses[1:], pg.MGDA(), retain_graph=True)
    pg.backward(losses, pg.MGDA(), specific=net[0], retain_graph=True)
    pg.backward(losses, pg.MGDA(), shared=net[3], retain_graph=True)
    pg.backward(losses, pg.MGDA(), net[1:], retain_graph=True)
    pg.backward(losses[:2], pg.MGDA())
