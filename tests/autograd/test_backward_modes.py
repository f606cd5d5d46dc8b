"""`backward` in the settings that training runs use: precisions, scaling, dropout, checkpoints, compilers, loops.

The reference is the slow way on the same graph (`support.backward`): one pass per loss, products in float64.
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from support.backward import Expected, slowly
from support.models import three
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import paretograd as pg


@pytest.fixture
def engine(engine_of_every_way: str) -> str:
    """Rows of the Jacobian, gradients of outputs, or nothing kept at all, whatever the model's size."""
    return engine_of_every_way


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(7)
    hidden = (nn.Linear(10, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 16), nn.Tanh())
    return nn.Sequential(*hidden, nn.Linear(16, 3))


def batch(rows: int = 12) -> tuple[Tensor, Tensor]:
    """Inputs, and targets of three tasks."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(rows, 10, generator=generator)
    return x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2], x.mean(dim=1)], dim=1)


def task_losses(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """One mean squared error per column; its weights and Gramian are well-conditioned."""
    return list((net(x).to(y.dtype) - y).square().mean(dim=0).unbind())


def close(net: nn.Module, expected: Expected, step: pg.Step, tolerance: float) -> None:
    """Gramian and gradients agree, each relative to its largest entry."""
    assert float((step.gramian - expected.gramian).abs().max() / expected.gramian.abs().max()) <= tolerance
    for param in net.parameters():
        assert param.grad.dtype is param.dtype
        error = float((param.grad.double() - expected.grads[id(param)].double()).abs().max())
        assert error <= tolerance * expected.scale, (tuple(param.shape), error / expected.scale)


def run(net: nn.Module, losses: list[Tensor], engine: str, tolerance: float) -> pg.Step:
    expected = slowly(losses, list(net.parameters()), pg.UPGrad())
    step = pg.backward(losses, pg.UPGrad(), net.parameters(), engine=engine)
    close(net, expected, step, tolerance)
    return step


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),  # 100 roundings of 1.2e-7
        (torch.float16, 2e-2),  # rounding 1e-3: a batched pass sums in another order than m single ones
        (torch.bfloat16, 8e-2),  # rounding 8e-3
    ],
)
def test_precisions(dtype: torch.dtype, tolerance: float, engine: str) -> None:
    net, (x, y) = network().to(dtype), batch()
    step = run(net, task_losses(net, x.to(dtype), y.to(dtype)), engine, tolerance)
    assert (step.gramian.dtype, step.weights.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("name", pg.names())
def test_dependent_gradients_in_single_precision(name: str, engine: str) -> None:
    """Sums, copies and opposites of losses make a singular Gramian, which rounding must not make indefinite."""
    rule = pg.get(name, **({"cap": 0.6} if name.startswith("capped") else {}))
    for seed in range(2):
        net = network()
        x = torch.randn(64, 10, generator=torch.Generator().manual_seed(seed))
        a, b, c = task_losses(net, x, torch.zeros(64, 3))
        step = pg.backward([a, b, c, a + b, a - b, -(b + c), a.clone(), -a], rule, engine=engine)
        assert torch.isfinite(step.weights).all()


@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_gradients_whose_squares_leave_single_precision(factor: float, engine: str) -> None:
    """``pg.gramian(J)`` multiplies float32 rows in float64, so that norms of 1e-25 and 1e25 are alike; here, too."""
    net, (x, y) = network(), batch()
    a, b, c = task_losses(net, x, y)
    run(net, [a, b * factor, c], engine, 1e-5)


@pytest.mark.parametrize("factors", [(1e-25, 1e-25, 1e-25), (1e-25, 1e-21, 1e-25), (1e25, 1e25, 1e25)])
def test_so_may_all_of_them(factors: tuple[float, ...], engine: str) -> None:
    """Where all squares underflow, the Gramian is zero at first; the gradients are not."""
    net, (x, y) = network(), batch()
    losses = [factor * loss for factor, loss in zip(factors, task_losses(net, x, y), strict=True)]
    run(net, losses, engine, 1e-5)


def test_no_gradient_at_all(engine: str) -> None:
    net, (x, y) = network(), batch()
    step = pg.backward([0.0 * loss for loss in task_losses(net, x, y)], pg.UPGrad(), engine=engine)
    assert not step.gramian.any()
    assert all(not param.grad.any() for param in net.parameters())


def test_autocast(engine: str) -> None:
    """Products in bfloat16, rounding 8e-3, in another order than the reference's; LayerNorm in float32."""
    net, (x, y) = network(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = task_losses(net, x, y)
    run(net, losses, engine, 2e-2)


def test_autocast_of_convolutions(engine: str) -> None:
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 3)).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = three(net(torch.randn(4, 3, 8, 8)).float())
    run(net, losses, engine, 2e-2)


def test_backward_within_autocast_is_no_less_exact(engine: str) -> None:
    """Inner products of gradients are no layers: autocast must not round them, wherever `backward` is called."""
    grams = []
    for inside in (False, True):
        net, (x, y) = network(), batch()
        losses = task_losses(net, x, y)  # in float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            grams.append(pg.backward(losses, pg.UPGrad(), engine=engine).gramian)
    assert float((grams[0] - grams[1]).abs().max() / grams[0].abs().max()) <= 1e-6


@pytest.mark.parametrize("rule", [pg.UPGrad, pg.MGDA, pg.Mean])
def test_scaled_losses(rule: type[pg.Aggregator], engine: str) -> None:
    """A rule of degree one commutes with torch's scaler; a power of two leaves every digit as it was."""
    wanted, net, (x, y) = network().double(), network().double(), batch()
    pg.backward(task_losses(wanted, x.double(), y.double()), rule(), engine=engine)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = task_losses(net, x.double(), y.double())
    pg.backward([scaler.scale(loss) for loss in losses], rule(), engine=engine)
    scaler.unscale_(optimizer)
    for param, other in zip(net.parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(param.grad, other.grad, rtol=1e-12, atol=1e-14)
    scaler.step(optimizer)
    scaler.update()


# ---- dropout, checkpoints, compilers ---------------------------------------------------------------------------------


def test_dropout_has_one_mask(engine: str) -> None:
    net, (x, y) = network(dropout=0.5).double().train(), batch()
    run(net, task_losses(net, x.double(), y.double()), engine, 1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpoints(dropout: float, engine: str) -> None:
    """Segments that are computed again in every backward pass, with the mask of the first time.

    A plain pass comes first: its graph has the same operations, and can be batched, while dropout that is computed
    again cannot.
    """
    net, (x, y) = network(dropout).double().train(), batch()
    first, last = net[:5], net[5:]
    pg.backward(task_losses(net, x.double(), y.double()), pg.UPGrad(), engine=engine)
    net.zero_grad()
    outputs = last(checkpoint(first, x.double(), use_reentrant=False))
    run(net, list((outputs - y).square().mean(dim=0).unbind()), engine, 1e-12)


def test_activations_kept_elsewhere(engine: str) -> None:
    """Hooks on saved tensors: rules read what they unpack."""
    net, (x, y) = network().double(), batch()
    with torch.autograd.graph.save_on_cpu():
        losses = task_losses(net, x.double(), y.double())
    run(net, losses, engine, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled(backend: str, engine: str) -> None:
    """No C++ compiler is needed for these; ``aot_eager`` makes the model one operation with its own backward."""
    torch.compiler.reset()
    net, (x, y) = network().double(), batch()
    compiled = torch.compile(net, backend=backend)
    run(net, task_losses(compiled, x.double(), y.double()), engine, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("default")  # the compiler's own, which it hides
def test_compiled_around_the_call(backend: str, recwarn: pytest.WarningsRecorder) -> None:
    """The compiler does not look into `backward` and `gramian`: it breaks its graph there, and says no word."""
    torch.compiler.reset()
    net, (x, y) = network().double(), batch()

    def step(x: Tensor, y: Tensor, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
        losses = task_losses(net, x, y)[:count]
        gramian = pg.gramian(losses, net)
        step = pg.backward(losses, pg.UPGrad(), net)
        return gramian, 2.0 * step.weights, torch.stack(losses).detach() + 1.0

    compiled = torch.compile(step, backend=backend)
    for count in (3, 3, 1):
        net.zero_grad()
        wanted = step(x.double(), y.double(), count)
        grads = [param.grad for param in net.parameters()]
        net.zero_grad()
        for found, want in zip(compiled(x.double(), y.double(), count), wanted, strict=True):
            assert torch.allclose(found, want, rtol=1e-10, atol=1e-14)
        for param, grad in zip(net.parameters(), grads, strict=True):
            assert torch.allclose(param.grad, grad, rtol=1e-10, atol=1e-14)
    assert not recwarn.list


def test_the_compiler_is_not_imported() -> None:
    """It takes longer to import than torch; nor does a step need it."""
    code = (
        "import sys, torch, paretograd as pg; w = torch.ones(2, requires_grad=True); "
        "pg.backward([w.sum(), w.prod()], pg.MGDA()); print('torch._dynamo' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False"]


# ---- loops -----------------------------------------------------------------------------------------------------------


def test_gradients_add_up_over_small_batches(engine: str) -> None:
    """Each part is aggregated on its own, as four calls on a fresh model would."""
    net, (x, y) = network().double(), batch()
    totals = [torch.zeros_like(p) for p in net.parameters()]
    for part in torch.arange(12).chunk(4):
        losses = task_losses(net, x[part].double(), y[part].double())
        expected = slowly(losses, list(net.parameters()), pg.UPGrad())
        for total, param in zip(totals, net.parameters(), strict=True):
            total += expected.grads[id(param)]
        pg.backward(losses, pg.UPGrad(), engine=engine)
    for total, param in zip(totals, net.parameters(), strict=True):
        assert torch.allclose(param.grad, total, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_every_loss_falls(fused: bool, engine: str) -> None:
    """MGDA's direction descends on every objective, so that small steps lower all three losses."""
    net, (x, y) = network(), batch(64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, fused=fused)
    first = [loss.item() for loss in task_losses(net, x, y)]
    for _ in range(50):
        optimizer.zero_grad()
        step = pg.backward(task_losses(net, x, y), pg.MGDA(), engine=engine)
        assert step.certificate.non_conflicting
        optimizer.step()
    last = [loss.item() for loss in task_losses(net, x, y)]
    assert all(after < before for after, before in zip(last, first, strict=True)), (first, last)


def test_gradients_are_set_to_zero_and_filled_again(engine: str) -> None:
    """``zero_grad(set_to_none=False)`` keeps the tensors: the same ones are added to."""
    net, (x, y) = network().double(), batch()
    losses = task_losses(net, x.double(), y.double())
    pg.backward(losses, pg.UPGrad(), engine=engine)
    held = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none=False)
    step = run(net, task_losses(net, x.double(), y.double()), engine, 1e-12)
    assert all(p.grad is grad for p, grad in zip(net.parameters(), held, strict=True))
    assert step.weights.shape == (3,)


def test_gradients_with_a_graph_of_their_own_do_not_grow_it() -> None:
    """What ``backward(create_graph=True)`` left in ``.grad`` is added to, as plain ``backward`` would: no new graph."""
    w = nn.Parameter(torch.ones(3))
    (w.grad,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
    losses = three(w * 2.0)
    expected = slowly(losses, [w], pg.MGDA())
    before = w.grad.detach().clone()
    pg.backward(losses, pg.MGDA())
    assert torch.allclose(w.grad, before + expected.grads[id(w)])
    w.grad = None  # the cycle of a parameter and a gradient with a graph


def test_a_scaler_sees_what_is_not_finite_and_skips_the_step() -> None:
    """With nonfinite="propagate" a loss scale that is too large is lowered, as in a loop with plain torch."""
    torch.manual_seed(0)
    net, x = nn.Linear(8, 4), torch.randn(6, 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = [param.detach().clone() for param in net.parameters()]
    losses = [scaler.scale(1e3 * loss) for loss in net(x).square().mean(dim=0)]
    step = pg.backward(losses, pg.UPGrad(), nonfinite="propagate")
    assert bool(step.weights.isnan().all())
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert scaler.get_scale() == 2.0**126
    with pytest.raises(pg.ParameterError, match="'raise' or 'propagate'"):
        pg.backward(losses, pg.UPGrad(), nonfinite="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_logged_run_goes_through_skipped_steps(grouped: bool) -> None:
    """float16 with a scale that is too large at first: what a skipped step does not know is NaN, and no error."""
    net, (x, y) = network(), batch(64)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    params = [list(net[:5].parameters()), list(net[5:].parameters())] if grouped else None
    first = [loss.item() for loss in task_losses(net, x, y)]
    log, finite, skipped = [], [], []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            losses = task_losses(net, x, y)
        step = pg.backward([scaler.scale(loss) for loss in losses], pg.UPGrad(), params, nonfinite="propagate")
        log.append({**step.metrics(), "gamma": step.gamma})
        finite.append(step.finite)
        if not step.finite:
            for part in step.groups or [step]:
                with pytest.raises(pg.ParameterError, match=r"not finite.*nothing to certify.*step\.finite"):
                    _ = part.certificate
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < scale)
    assert 10 < sum(skipped) < 50
    assert [not seen for seen in finite] == skipped
    for row, known in zip(log, finite, strict=True):
        assert row.keys() == log[0].keys()
        assert all(type(value) is float and math.isnan(value) != known for value in row.values()), row
    last = [loss.item() for loss in task_losses(net, x, y)]
    assert all(after < before for after, before in zip(last, first, strict=True)), (first, last)


@pytest.mark.parametrize("engine", ["gramian", "jacobian"])
def test_float16_overflow_is_seen(engine: str) -> None:
    """Gradients that overflow in float16 are not finite, however much smaller the losses could be made."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 80), nn.Tanh(), nn.Linear(80, 80)), torch.randn(6, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = [1e6 * loss.float() for loss in net(x).square().mean(dim=0)[:3]]
    with pytest.raises(pg.NonFiniteGradientError):
        pg.backward(losses, pg.UPGrad(), engine=engine, retain_graph=True)
    assert all(param.grad is None for param in net.parameters())
    pg.backward(losses, pg.UPGrad(), engine=engine, nonfinite="propagate")
    assert not all(bool(param.grad.isfinite().all()) for param in net.parameters())
