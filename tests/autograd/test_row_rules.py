"""`backward` with rules that need the rows, the losses or several batches: as the rule on the Jacobian itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretograd as pg

#: The same sums in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


class Tasks(nn.Module):
    """A trunk, a parameter that only the first task reaches, and a head for each of three tasks."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6)).to(dtype)
        self.heads = nn.ModuleList([nn.Linear(6, 1).to(dtype) for _ in range(3)])

    def losses(self, step: int) -> list[Tensor]:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(self.trunk[0].weight.dtype)
        z = self.trunk(x)
        return [(head(z) - k).square().mean() for k, head in enumerate(self.heads)]


RULES: dict[str, Callable[[], pg.Aggregator]] = {
    "graddrop": lambda: pg.GradDrop(0.2, seed=3),
    "trimmed-mean": pg.TrimmedMean,
    "moco": pg.MoCo,
    "excess-mtl": pg.ExcessMTL,
    "db-mtl": pg.DBMTL,
    "gradnorm": pg.GradNorm,
}
rules = pytest.mark.parametrize("name", RULES)


def flat(params: Any, grads: bool = True) -> Tensor:
    return torch.cat([(param.grad if grads else param.detach()).reshape(-1) for param in params])


def blocks_as_rule_sees_them(rule: pg.Aggregator, J: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """Return the direction of each block, by a rule on one matrix; GradDrop draws by block."""
    if "losses" in rule.needs:
        rule.observe(torch.stack(values).detach())
    if isinstance(rule, pg.GradDrop):
        seed = int(rule._rng.integers(2**62))
        generators = [torch.Generator().manual_seed(seed + k) for k in range(len(J))]
        return [
            rule._masked(block, torch.rand(block.shape[1:], generator=generator, dtype=block.dtype))
            for block, generator in zip(J, generators, strict=True)
        ]
    d = rule(torch.cat([block.flatten(1) for block in J], dim=1))
    return [part.view(block.shape[1:]) for part, block in zip(d.split([b[0].numel() for b in J]), J, strict=True)]


@rules
def test_backward_is_the_rule_on_the_jacobian(name: str) -> None:
    """Over several steps of training. Heads get the gradients of their own losses."""
    net, twin = Tasks(), RULES[name]()
    rule = RULES[name]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for t in range(5):
        trunk = list(net.trunk.parameters())
        J = pg.jacobian(net.losses(t), trunk)
        want = blocks_as_rule_sees_them(twin, J, net.losses(t))
        own = [torch.autograd.grad(net.losses(t)[k], head.weight)[0] for k, head in enumerate(net.heads)]
        optimizer.zero_grad()
        step = pg.backward(net.losses(t), rule, net)
        for param, grad in zip(trunk, want, strict=True):
            torch.testing.assert_close(param.grad, grad, **CLOSE)
        for head, grad in zip(net.heads, own, strict=True):
            torch.testing.assert_close(head.weight.grad, grad, **CLOSE)
        matrix = torch.cat([block.flatten(1) for block in J], dim=1)
        torch.testing.assert_close(step.gramian, matrix @ matrix.T, **CLOSE)
        d = torch.cat([grad.flatten() for grad in want])
        if step.direction is None:
            torch.testing.assert_close(matrix.T @ step.weights, d, **CLOSE)
            assert step.certificate.in_cone
        else:
            torch.testing.assert_close(torch.tensor(step.direction.slopes, dtype=torch.float64), matrix @ d, **CLOSE)
            assert step.direction.norm == pytest.approx(float(d.norm()))
            with pytest.raises(pg.ParameterError, match=r"step\.direction"):
                _ = step.certificate
        metrics = step.metrics()
        assert metrics["mo/conflicts"] == sum((matrix @ d) < -1e-6 * matrix.norm(dim=1) * d.norm())
        assert step.finite
        assert step.kept is None
        assert "Step(" in repr(step)
        optimizer.step()


def test_m_config_differentiates_one_loss() -> None:
    """Its rows are those of one loss at a time; its direction is that of the formula."""
    net, rule, twin = Tasks(), pg.MConFIG(), pg.MConFIG()
    trunk = list(net.trunk.parameters())
    for t in range(7):
        net.zero_grad()
        passes = 0

        def count(grad: Tensor) -> None:
            nonlocal passes
            passes += 1

        losses = net.losses(t)
        for loss in losses:
            loss.register_hook(count)
        step = pg.backward(losses, rule, keep_rows=True)
        assert passes == 1
        _check_what_is_known(step, t % 3)
        with step.of_update() as update, torch.no_grad():
            for param in trunk:
                param -= 0.0 * param.grad
        assert update.certificate is not None
        assert update.certificate.unknown == step.direction.unknown
        J = torch.cat([block.flatten(1) for block in pg.jacobian(net.losses(t), trunk)], dim=1)
        torch.testing.assert_close(flat(trunk), twin(J), **CLOSE)
        heads = [head.weight.grad for head in net.heads]
        assert [grad is not None for grad in heads] == [k == t % 3 for k in range(3)]


def _check_what_is_known(step: pg.Step, k: int) -> None:
    """The step knows the slope of loss k, and reports nothing about the others."""
    others = [other for other in range(3) if other != k]
    assert step.finite
    assert step.direction is not None
    assert step.direction.unknown == tuple(others)
    assert not step.direction.non_conflicting
    assert "not differentiated" in str(step.direction)
    assert step.gramian[k, k] > 0.0
    assert step.gramian[others].isnan().all()
    metrics = step.metrics()
    assert metrics["mo/unknown"] == 2.0
    assert math.isnan(metrics["mo/gamma"])
    assert [math.isnan(metrics[f"mo/gradient_norm/{j}"]) for j in range(3)] == [j != k for j in range(3)]


@pytest.mark.parametrize("make", [pg.MoDo, pg.SDMGrad])
def test_batches(make: Callable[[], pg.CrossAggregator]) -> None:
    net, rule, twin = Tasks(), make(), make()
    trunk = list(net.trunk.parameters())
    for t in range(4):
        net.zero_grad()
        for count in (3, 2):
            Js = [
                torch.cat([block.flatten(1) for block in pg.jacobian(net.losses(10 * t + k), trunk)], dim=1)
                for k in range(count)
            ]
            net.zero_grad()
            step = pg.backward([net.losses(10 * t + k) for k in range(count)], rule)
            torch.testing.assert_close(flat(trunk), twin(Js), **CLOSE)
            torch.testing.assert_close(Js[-1].T @ step.weights, flat(trunk), **CLOSE)
            torch.testing.assert_close(
                net.heads[1].weight.grad, torch.autograd.grad(net.losses(10 * t + count - 1)[1], net.heads[1].weight)[0]
            )
    named = [dict(zip("abc", net.losses(k), strict=True)) for k in range(3)]
    assert pg.backward(named, rule).names == ("a", "b", "c")


def counted(batches: list[list[Tensor]]) -> list[list[int]]:
    """Return numbers of passes of all losses, which are zero until these are differentiated."""
    passes = [[0] * len(losses) for losses in batches]

    def count(k: int, j: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            passes[k][j] += 1

        return hook

    for k, losses in enumerate(batches):
        for j, loss in enumerate(losses):
            loss.register_hook(count(k, j))
    return passes


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("make", [pg.MoDo, pg.SDMGrad])
def test_each_batch_is_differentiated_once(make: Callable[[], pg.CrossAggregator], count: int) -> None:
    """And its graph is freed."""
    batches = [Tasks().losses(k) for k in range(count)]
    passes = counted(batches)
    step = pg.backward(batches, make(), engine="jacobian")
    assert passes == [[1] * 3] * count
    assert step.kept is None
    for losses in batches:
        with pytest.raises(RuntimeError, match="second time"):
            losses[0].backward()


def test_batches_by_layers() -> None:
    """The graphs hold what stands for the rows, and are freed after the step."""
    torch.manual_seed(0)
    net, rule, twin = nn.Linear(64, 64).double(), pg.MoDo(), pg.MoDo()

    def losses(k: int) -> list[Tensor]:
        y = net(torch.randn(2, 64, generator=torch.Generator().manual_seed(k), dtype=torch.float64))
        return [y.square().mean(), (y - 1.0).square().mean()]

    J = [torch.cat([b.flatten(1) for b in pg.jacobian(losses(k), list(net.parameters()))], dim=1) for k in range(2)]
    batches = [losses(k) for k in range(2)]
    step = pg.backward(batches, rule, engine="gramian")
    torch.testing.assert_close(flat(net.parameters()), twin(J), **CLOSE)
    assert step.how.way == "gramian"
    assert step.kept is None
    for each in batches:
        with pytest.raises(RuntimeError, match="freed"):
            each[0].backward()
    batches = [losses(k) for k in range(2)]
    assert pg.backward(batches, rule, keep_rows=True, retain_graph=True).kept is not None
    for each in batches:
        each[0].backward()


def test_batches_that_do_not_fit() -> None:
    net, rule = Tasks(), pg.MoDo()
    for given in (net.losses(0), [net.losses(0)], [net.losses(k) for k in range(4)], net.losses(0)[0]):
        with pytest.raises(pg.ParetogradError):
            pg.backward(given, rule)  # type: ignore[arg-type]
    groups = [[net.trunk[0].weight], [net.trunk[0].bias]]
    for options in ({"metric": torch.optim.Adam(net.parameters())}, {"params": groups}):
        with pytest.raises(pg.ParameterError, match="MoDo"):
            pg.backward([net.losses(0), net.losses(1)], rule, **options)  # type: ignore[arg-type]
    with pytest.raises(pg.ShapeError, match="3 and 2 losses"):
        pg.backward([net.losses(0), net.losses(1)[:2], net.losses(2)], rule)

    def bad() -> list[Tensor]:
        return [net.losses(2)[0] * torch.nan, *net.losses(2)[1:]]

    with pytest.raises(pg.NonFiniteGradientError):
        pg.backward([net.losses(0), net.losses(1), bad()], rule)
    with pytest.raises(pg.NonFiniteGradientError):
        pg.backward([net.losses(0), bad()], rule)
    assert rule.state_dict() == {"weights": None}
    assert all(param.grad is None for param in net.parameters())
    assert not pg.backward([net.losses(0), bad()], rule, nonfinite="propagate").finite
    assert rule.state_dict() == {"weights": None}


@rules
def test_a_failed_step_changes_nothing(name: str) -> None:
    net, rule = Tasks(), RULES[name]()
    pg.backward(net.losses(0), rule)
    state, before = repr(rule.state_dict()), flat(net.parameters()).clone()
    losses = net.losses(1)
    losses[1] = losses[1] * torch.inf
    with pytest.raises(pg.NonFiniteGradientError, match="objective 1"):
        pg.backward(losses, rule)
    assert repr(rule.state_dict()) == state
    assert torch.equal(flat(net.parameters()), before)
    losses = net.losses(1)
    losses[1] = losses[1] * torch.inf
    assert not pg.backward(losses, rule, nonfinite="propagate").finite


@rules
def test_options(name: str) -> None:
    """Chosen parameters, a closer look at the update, and options that make no sense."""
    net, rule = Tasks(), RULES[name]()
    trunk = list(net.trunk.parameters())
    optimizer = torch.optim.Adam(net.parameters())
    step = pg.backward(net.losses(0), rule, trunk, keep_rows=True, retain_graph=True)
    assert net.heads[0].weight.grad is None
    with step.of_update() as update:
        optimizer.step()
    assert len(update.slopes) == 3
    if isinstance(rule, pg.RowAggregator):
        for options in ({"metric": optimizer}, {"engine": "gramian"}, {"params": [trunk[:1], trunk[1:]]}):
            with pytest.raises(pg.ParameterError, match=rule.label):
                pg.backward(net.losses(0), rule, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["graddrop", "trimmed-mean", "moco", "excess-mtl"])
def test_micro_batches(name: str) -> None:
    """The rows add up, and the rule is applied once."""
    net, rule, other = Tasks(), RULES[name](), RULES[name]()
    for t in range(3):
        net.zero_grad()
        pg.backward([a + b for a, b in zip(net.losses(t), net.losses(t + 9), strict=True)], other, net)
        want = flat(net.parameters()).clone()
        net.zero_grad()
        with pg.accumulate(net) as acc:
            acc.add(net.losses(t))
            acc.add(net.losses(t + 9))
            step = acc.step(rule)
        torch.testing.assert_close(flat(net.parameters()), want, **CLOSE)
        assert step.kept is None


def test_micro_batches_have_no_losses() -> None:
    net, rule = Tasks(), pg.DBMTL()
    acc = pg.accumulate(net)
    acc.add(net.losses(0))
    with pytest.raises(pg.ParameterError, match=r"call rule\.observe\(losses\)"):
        acc.step(rule)
    rule.observe(torch.stack(net.losses(0)))
    acc.step(rule)
    acc.add(net.losses(0))
    with pytest.raises(pg.ParameterError, match="independent batches"):
        acc.step(pg.MoDo())


@pytest.mark.parametrize("name", ["graddrop", "trimmed-mean", "moco", "db-mtl"])
def test_kinds_of_parameters(name: str) -> None:
    """Embeddings with sparse gradients, complex parameters, channels-last ones, and some of half precision."""
    torch.manual_seed(0)
    table, conv = nn.Embedding(6, 3, sparse=True), nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    short = nn.Parameter(torch.randn(3).bfloat16())
    params = [table.weight, conv.weight, wave, short]

    def losses() -> list[Tensor]:
        y = table(torch.tensor([1, 4, 1])).mean(dim=0) + conv(torch.ones(1, 2, 3, 3)).reshape(3)
        y = y + (wave * (1 + 2j)).real + short.float()
        return [y.square().sum() + 1.0, (y - 1.0).square().sum() + 1.0, y.sin().sum() + 4.0]

    J = [block.to_dense() if block.is_sparse else block for block in pg.jacobian(losses(), params)]
    pg.backward(losses(), RULES[name](), params)
    for param, block in zip(params, J, strict=True):
        assert param.grad is not None
        assert param.grad.dtype is param.dtype
        assert param.grad.to_dense().isfinite().all()
        if name == "trimmed-mean":
            rows = torch.view_as_real(block) if block.is_complex() else block.float()
            want = rows.sort(dim=0).values[1]
            got = torch.view_as_real(param.grad) if param.is_complex() else param.grad.to_dense().float()
            torch.testing.assert_close(got, want, rtol=0.01, atol=1e-6)


def test_unconflicting_takes_them() -> None:
    net = Tasks(torch.float32)
    optimizer = pg.Unconflicting(torch.optim.Adam(net.parameters(), lr=1e-2), pg.GradDrop(seed=0))
    for t in range(10):
        optimizer.zero_grad()
        optimizer.backward(net.losses(t))
        optimizer.step()
        assert not optimizer.last.conflicts


def test_capture_runs_them_eagerly() -> None:
    net = Tasks(torch.float32)
    step = pg.capture(net.losses, pg.TrimmedMean(), net)
    with pytest.warns(UserWarning, match="capture"):
        found = step(0)
    assert found.direction is not None
