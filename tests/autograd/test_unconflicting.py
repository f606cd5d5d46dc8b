"""`Unconflicting`: no update of any optimizer increases a loss, and the projection is the least change."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import by_layers

#: Every optimizer of torch, with options that make it move and remember.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adam": lambda p: torch.optim.Adam(p, lr=3e-3),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=3e-3, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=3e-3, amsgrad=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Muon": lambda p: torch.optim.Muon([param for param in p if param.ndim == 2], lr=1e-2),
    "L-BFGS": lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=4),
}


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    return nn.Sequential(*layers).to(dtype)


def losses_of(net: nn.Module, seed: int) -> list[Tensor]:
    """A physics-informed network for Burgers' equation: residual, initial and boundary values."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(net.parameters()).dtype
    points = torch.rand(64, 2, generator=generator).to(dtype) * torch.tensor([2.0, 1.0]).to(dtype)
    points = (points - torch.tensor([1.0, 0.0]).to(dtype)).requires_grad_(True)
    u = net(points)
    slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    curve = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)[0][:, 0]
    residual = slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 / math.pi * curve
    x, t = torch.rand(2, 32, 1, generator=generator).to(dtype)
    start = net(torch.cat([2 * x - 1, 0 * x], dim=1)) + torch.sin(math.pi * (2 * x - 1))
    ends = net(torch.cat([torch.ones_like(t), t], dim=1)), net(torch.cat([-torch.ones_like(t), t], dim=1))
    return [residual.square().mean(), start.square().mean(), (ends[0].square() + ends[1].square()).mean()]


def flat(values: Any) -> Tensor:
    return torch.cat([value.detach().reshape(-1).double() for value in values])


def rows_of(net: nn.Module, seed: int) -> Tensor:
    return torch.cat(
        [part.flatten(1) for part in pg.jacobian(losses_of(net, seed), list(net.parameters()))], 1
    ).double()


def total(losses: list[Tensor]) -> float:
    return sum(loss.item() for loss in losses)


def train(net: nn.Module, optimizer: pg.Unconflicting, steps: range) -> list[float]:
    """Train, and return the lowest cosine of each update with a gradient."""
    found = []
    for t in steps:
        J, before = rows_of(net, t), flat(net.parameters())
        if isinstance(optimizer.optimizer, torch.optim.LBFGS):
            optimizer.step(lambda t=t: losses_of(net, t))
        else:
            optimizer.zero_grad()
            optimizer.backward(losses_of(net, t))
            optimizer.step()
        u = before - flat(net.parameters())
        found.append(float((J @ u / (J.norm(dim=1) * u.norm()).clamp(min=1e-300)).min()))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_update_conflicts(name: str) -> None:
    net = network()
    optimizer = pg.Unconflicting(OPTIMIZERS[name](net.parameters()), pg.UPGrad())
    start = total(losses_of(net, 1000))
    cosines = train(net, optimizer, range(60))
    assert min(cosines) >= -1e-6
    assert not optimizer.last.conflicts
    assert total(losses_of(net, 1000)) < start


@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.ConFIG(), pg.MGDA(), pg.Mean()], ids=repr)
def test_rules(rule: pg.Aggregator) -> None:
    """Without the projection, most updates of Adam conflict."""
    net = network()
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=3e-3), rule)
    proposed = 0
    for t in range(80):
        assert min(train(net, optimizer, range(t, t + 1))) >= -1e-6
        proposed += bool(optimizer.last.proposed)
        assert optimizer.metrics()["mo/proposed_conflicts"] == len(optimizer.last.proposed)
        assert optimizer.metrics()["mo/update_conflicts"] == 0.0
    assert proposed > 30


@pytest.mark.parametrize("name", ["momentum", "RMSprop", "Adagrad", "Adam", "AdamW", "Adamax"])
def test_the_projection_is_the_least_change(name: str) -> None:
    """In the norm of the inverse of P, against nonnegative least squares on the whole Jacobian."""
    net = network(torch.float64)
    params = list(net.parameters())
    optimizer = pg.Unconflicting(OPTIMIZERS[name](params), pg.UPGrad())
    projected = 0
    for t in range(40):
        J, before = rows_of(net, t), flat(params)
        optimizer.zero_grad()
        optimizer.backward(losses_of(net, t))
        other = copy.deepcopy(net)
        plain = type(optimizer.optimizer)(list(other.parameters()))
        plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for theirs, ours in zip(other.parameters(), params, strict=True):
            theirs.grad = None if ours.grad is None else ours.grad.clone()
        plain.step()
        optimizer.step()
        proposal = before - flat(other.parameters())
        roots = pg.autograd.metric.OptimizerMetric(plain).roots(list(other.parameters()))
        scale = flat([torch.ones_like(p) if r is None else r for p, r in zip(params, roots, strict=True)])
        # min |P^-1/2 (u - q)| subject to J u >= 0 has the dual min |(J P^1/2)' v + P^-1/2 q| over v >= 0.
        v, _ = nnls(((J * scale).T).numpy(), (-(proposal / scale)).numpy(), maxiter=1000)
        want = proposal + scale**2 * (J.T @ torch.from_numpy(v))
        size = float((proposal / scale).norm())
        assert float(((before - flat(params) - want) / scale).norm()) <= 1e-7 * size
        projected += bool(optimizer.last.proposed)
        if optimizer.last.proposed:
            change = float((want - proposal).norm() / proposal.norm())
            assert optimizer.last.change == pytest.approx(change, rel=1e-5, abs=1e-8)
    assert projected >= (name in ("momentum", "Adam", "AdamW"))


@pytest.mark.parametrize("engine", ["jacobian", "batched", "gramian"])
def test_layers_with_heads(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions, normalizations, embeddings and heads, with the gradients that each engine keeps."""
    monkeypatch.setattr(by_layers, "_KEPT_SHARE", math.inf)  # the model is small
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 12), nn.Tanh()
    )
    net = nn.ModuleDict(
        {"trunk": trunk, "table": nn.Embedding(5, 12), "heads": nn.ModuleList(nn.Linear(12, 1) for _ in range(3))}
    )
    net = net.double()
    params = list(net.parameters())
    optimizer = pg.Unconflicting(torch.optim.Adam(params, lr=3e-3), pg.UPGrad())

    def losses(t: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(t)
        x = torch.randn(7, 3, 8, 8, generator=generator, dtype=torch.float64)
        z = net["trunk"](x) + net["table"](torch.randint(5, (7,), generator=generator))
        return [(head(z) - (-1.0) ** k * x[:, 0, 0, :1]).square().mean() for k, head in enumerate(net["heads"])]

    proposed = 0
    for t in range(25):
        J = torch.cat([part.flatten(1) for part in pg.jacobian(losses(t), params)], dim=1)
        before = flat(params)
        optimizer.zero_grad()
        step = optimizer.backward(losses(t), engine=engine)
        with step.of_update() as update:
            optimizer.step()
        u = before - flat(params)
        cosines = J @ u / (J.norm(dim=1) * u.norm())
        assert cosines.min() >= -1e-6
        assert update.cosines == pytest.approx(cosines.tolist(), abs=1e-9)
        proposed += bool(optimizer.last.proposed)
        assert step.how is not None
        assert step.how.way == engine
        if engine == "gramian":
            with pytest.raises(pg.ParameterError, match="compared with one before"):
                step.of_update()
    assert proposed


def test_updates_without_conflict_are_left_alone() -> None:
    """With SGD, P is the identity, and UPGrad does not conflict: the parameters are those of plain training."""
    ours, plain = network(torch.float64), network(torch.float64)
    wrapped = pg.Unconflicting(torch.optim.SGD(ours.parameters(), lr=0.02), pg.UPGrad())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.02)
    train(ours, wrapped, range(20))
    for t in range(20):
        optimizer.zero_grad()
        pg.backward(losses_of(plain, t), pg.UPGrad())
        optimizer.step()
    assert wrapped.last == pg.Projection()
    torch.testing.assert_close(flat(ours.parameters()), flat(plain.parameters()), rtol=1e-12, atol=1e-14)


def test_where_nothing_is_left_the_parameters_stay() -> None:
    """Beyond the front of two bowls, momentum increases both losses, and the projection of its update is zero."""
    theta = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = pg.Unconflicting(torch.optim.SGD([theta], lr=0.5, momentum=0.9), pg.MGDA())
    for _ in range(30):
        optimizer.zero_grad()
        optimizer.backward([(theta - torch.tensor([0.0, y])).square().sum() / 2 for y in (1.0, -1.0)], [theta])
        before = theta.detach().clone()
        optimizer.step()
        if optimizer.last.proposed == (0, 1):
            assert torch.equal(theta, before)
            assert optimizer.last.change == 1.0
            break
    else:
        pytest.fail("momentum did not carry the run beyond the front")


def test_weight_decay() -> None:
    """Decoupled decay may conflict by itself. Exempt, it is made in full; included, it is projected as well."""
    for decay in ("included", "exempt"):
        net = network(torch.float64)
        inner = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=5.0)
        optimizer = pg.Unconflicting(inner, pg.UPGrad(), decay=decay)
        lowest = []
        for t in range(20):
            J, before = rows_of(net, t), flat(net.parameters())
            train(net, optimizer, range(t, t + 1))
            u = before - flat(net.parameters())
            rest = u - 1e-2 * 5.0 * before
            lowest.append([float((J @ v / (J.norm(dim=1) * v.norm())).min()) for v in (u, rest)])
        whole, part = zip(*lowest, strict=True)
        assert (min(whole) >= -1e-6) == (decay == "included")
        assert min(part) >= -1e-6 or decay == "included"


def test_state_is_that_of_the_optimizer() -> None:
    """A run that is interrupted, saved and loaded, even into the plain optimizer, goes on as if it were not."""
    net = network()
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=3e-3), pg.UPGrad())
    train(net, optimizer, range(10))
    saved, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, range(10, 20))
    other = network()
    other.load_state_dict(saved)
    again = pg.Unconflicting(torch.optim.Adam(other.parameters()), pg.UPGrad())
    again.load_state_dict(state)
    again._noise = 0.0
    assert again.param_groups is again.optimizer.param_groups
    assert again.param_groups[0]["lr"] == 3e-3
    train(other, again, range(10, 20))
    torch.testing.assert_close(flat(other.parameters()), flat(net.parameters()), rtol=0, atol=1e-6)
    plain = torch.optim.Adam(network().parameters())
    plain.load_state_dict(state)
    assert plain.state_dict()["state"].keys() == state["state"].keys()
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert isinstance(clone, pg.Unconflicting)
        assert len(clone.param_groups) == 1
        clone.zero_grad()


def test_schedulers_groups_and_hooks() -> None:
    net = network()
    params = list(net.parameters())
    optimizer = pg.Unconflicting(torch.optim.AdamW([{"params": params[:2], "lr": 1e-2}], lr=1e-3), pg.UPGrad())
    optimizer.add_param_group({"params": params[2:]})
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: t / 4),  # begins with a rate of zero
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        ],
        milestones=[4],
    )
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for t in range(16):
        assert min(train(net, optimizer, range(t, t + 1))) >= -1e-6
        scheduler.step()
    assert len(seen) == 16
    assert scheduler.get_last_lr()[0] < 1e-2


def test_clipping() -> None:
    net = network()
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=3e-3), pg.UPGrad())
    for t in range(20):
        J, before = rows_of(net, t), flat(net.parameters())
        optimizer.zero_grad()
        optimizer.backward(losses_of(net, t))
        nn.utils.clip_grad_norm_(net.parameters(), 1e-2)
        assert flat(param.grad for param in net.parameters()).norm() <= 1e-2 + 1e-6
        optimizer.step()
        u = before - flat(net.parameters())
        assert (J @ u / (J.norm(dim=1) * u.norm())).min() >= -1e-6


def test_grad_scaler() -> None:
    """A step whose gradients overflow is skipped, and the next one is made."""
    net = network()
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=3e-3), pg.UPGrad())
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38, growth_interval=1000)
    moved = []
    for t in range(60):
        J, before = rows_of(net, t), flat(net.parameters())
        optimizer.zero_grad()
        losses = losses_of(net, t)
        optimizer.backward([scaler.scale(10.0 * loss) for loss in losses], nonfinite="propagate")
        scaler.step(optimizer)
        scaler.update()
        u = before - flat(net.parameters())
        moved.append(bool(u.norm() > 0))
        assert (J @ u / (J.norm(dim=1) * u.norm()).clamp(min=1e-300)).min() >= -1e-6
    assert not moved[0]
    assert moved[-1]


def test_closures_return_the_losses() -> None:
    net = network()
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=3e-3), pg.UPGrad())
    for t in range(10):
        J, before = rows_of(net, t), flat(net.parameters())
        want = total(losses_of(net, t))
        found = optimizer.step(lambda t=t: dict(zip("abc", losses_of(net, t), strict=True)))
        assert float(found) == pytest.approx(want)
        u = before - flat(net.parameters())
        assert (J @ u / (J.norm(dim=1) * u.norm())).min() >= -1e-6


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(12, 3, sparse=True)
    optimizer = pg.Unconflicting(torch.optim.SparseAdam(table.parameters(), lr=0.1), pg.UPGrad())
    for t in range(30):
        chosen = torch.randint(12, (8,), generator=torch.Generator().manual_seed(t))

        def losses(chosen: Tensor = chosen) -> list[Tensor]:
            y = table(chosen)
            return [(y - 1.0).square().mean(), (y + 1.0).square().mean(), y[:, 0].sin().mean()]

        J = pg.jacobian(losses(), [table.weight])[0].flatten(1).double()
        before = table.weight.detach().double().flatten()
        optimizer.zero_grad()
        optimizer.backward(losses())
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        optimizer.step()
        u = before - table.weight.detach().double().flatten()
        assert (J @ u / (J.norm(dim=1) * u.norm()).clamp(min=1e-300)).min() >= -1e-6


def test_parameters_of_another_optimizer_do_not_move() -> None:
    net = network()
    params = list(net.parameters())
    optimizer = pg.Unconflicting(torch.optim.Adam(params[:4], lr=1e-2), pg.UPGrad())
    fixed = flat(params[4:])
    assert min(train(net, optimizer, range(20))) >= -1e-6
    assert torch.equal(flat(params[4:]), fixed)


def test_bfloat16_parameters_report_what_is_left() -> None:
    """An update in bfloat16 is rounded by up to 0.4% of each parameter. What conflicts then is reported."""
    net = network(torch.bfloat16)
    optimizer = pg.Unconflicting(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), pg.UPGrad())
    for t in range(10):
        x = torch.randn(16, 2, generator=torch.Generator().manual_seed(t)).bfloat16()
        optimizer.zero_grad()
        optimizer.backward([(net(x) - y).square().mean() for y in (1.0, -1.0, 0.5)])
        optimizer.step()
        assert set(optimizer.last.conflicts) <= {0, 1, 2}
    assert all(torch.isfinite(param).all() for param in net.parameters())


def test_errors() -> None:
    net = network()
    adam = torch.optim.Adam(net.parameters())
    with pytest.raises(pg.ParameterError, match="give an optimizer"):
        pg.Unconflicting(net, pg.UPGrad())  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="give a rule"):
        pg.Unconflicting(adam, "upgrad")  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="maximize"):
        pg.Unconflicting(torch.optim.SGD(net.parameters(), maximize=True), pg.UPGrad())
    with pytest.raises(pg.ParameterError, match="decay"):
        pg.Unconflicting(adam, pg.UPGrad(), decay="no")  # type: ignore[arg-type]
    optimizer = pg.Unconflicting(adam, pg.UPGrad())
    before = flat(net.parameters())
    with pytest.raises(pg.ParameterError, match="call backward"):
        optimizer.step()
    optimizer.backward(losses_of(net, 0))
    with pytest.raises(pg.ParameterError, match="twice"):
        optimizer.backward(losses_of(net, 0))
    optimizer.zero_grad()
    with pytest.raises(pg.ParameterError, match="call backward"):
        optimizer.step()
    with pytest.raises(pg.NonFiniteGradientError):
        optimizer.backward([loss * math.inf for loss in losses_of(net, 0)])
    optimizer.backward(losses_of(net, 0))
    net[0].weight.grad[0, 0] = math.nan  # type: ignore[union-attr]
    with pytest.raises(pg.ParameterError, match="update that is not finite"):
        optimizer.step()
    assert torch.equal(flat(net.parameters()), before)
    assert "Unconflicting(Adam" in repr(optimizer)
