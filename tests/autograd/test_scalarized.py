"""`backward` with a rule that sees the losses: the gradient of F by torch itself, and the semantics of `backward`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from support.backward import untouched
from support.models import MODELS, Losses, mlp, task_heads
from support.scalarizations import ROWS, SCALARIZATIONS
from torch import Tensor, nn

import paretograd as pg
from paretograd.federated import Server

#: One pass of torch against another over the same graph, in float64: rounding of sums in another order.
TOLERANCE = 1e-12

#: Rules that accept every finite loss, as the models of the table have them.
ANY_LOSS = {
    "weighted sum": lambda m: pg.WeightedSum([0.5 + k for k in range(m)]),
    "tchebycheff": lambda m: pg.Tchebycheff(),
    "stch": lambda m: pg.STCH(0.1),
    "pbi": lambda m: pg.PBI(),
    "rlw": lambda m: pg.RLW(seed=1),
}


def as_list(losses: Losses) -> list[Tensor]:
    return list(losses.values()) if isinstance(losses, dict) else list(losses)


def by_torch(losses: Losses, params: list[Tensor], weights: Tensor) -> list[Tensor | None]:
    """One call of torch for each loss, and the weighted sum; None for parameters that no loss reaches."""
    trainable = [param for param in params if param.requires_grad]
    total: dict[int, Tensor] = {}
    for loss, weight in zip(as_list(losses), weights, strict=True):
        found = torch.autograd.grad(loss, trainable, torch.ones_like(loss), retain_graph=True, allow_unused=True)
        for param, grad in zip(trainable, found, strict=True):
            if grad is not None:
                scaled = grad.to_dense() * float(weight)
                total[id(param)] = total[id(param)] + scaled if id(param) in total else scaled
    return [total.get(id(param)) for param in params]


def close(params: list[Tensor], want: list[Tensor | None], times: float = 1.0) -> None:
    scale = max(float(grad.abs().max()) for grad in want if grad is not None and grad.numel())
    for param, grad in zip(params, want, strict=True):
        if grad is None:  # a graph may end in a parameter without giving it a gradient: zero, if no pass was made
            assert param.grad is None or not param.grad.any()
        else:
            assert param.grad is not None
            assert param.grad.dtype == param.dtype
            assert float((param.grad.to_dense() - times * grad).abs().max()) <= TOLERANCE * max(scale, 1e-300)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rule", ANY_LOSS)
def test_every_model(model: str, rule: str) -> None:
    problem = MODELS[model]()
    losses = problem.losses()
    m = len(losses)
    step = pg.backward(losses, ANY_LOSS[rule](m), problem.params, retain_graph=True)
    assert torch.equal(
        step.weights, ANY_LOSS[rule](m).weights(torch.stack([loss.reshape(()) for loss in as_list(losses)]))
    )
    close(problem.params, by_torch(losses, problem.params, step.weights))


@pytest.mark.parametrize("name", SCALARIZATIONS)
def test_gradients_are_those_of_f(name: str) -> None:
    """Also those of the rule's own parameters, and twice: `.grad` is added to."""
    problem, rule = task_heads(), ROWS[name].make(4)
    losses = [loss.square() + 0.1 for loss in as_list(problem.losses())]
    own = list(rule.parameters())
    step = pg.backward(losses, rule, problem.params, retain_graph=True)
    pg.backward(losses, rule, problem.params)
    assert isinstance(rule, pg.Scalarization)
    value = rule(torch.stack([loss.square() + 0.1 for loss in as_list(problem.losses())]))
    want = list(torch.autograd.grad(value, [*problem.params, *own], allow_unused=True, materialize_grads=True))
    close([*problem.params, *own], want, times=2.0)
    assert math.isclose(float(step.value), float(value.detach()), rel_tol=1e-13)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_step_knows(name: str) -> None:
    problem, rule = task_heads(), ROWS[name].make(4)
    values = [loss.square() + 0.1 for loss in as_list(problem.losses())]
    losses = dict(zip(("depth", "edges", "labels", "normals"), values, strict=True))
    G = pg.gramian(losses, problem.params)
    step = pg.backward(losses, rule)
    assert step.gramian is None
    assert step.finite
    assert step.trusted
    assert torch.equal(step.losses, torch.stack(values).detach())
    metrics = step.metrics("train/")
    assert set(metrics) == {"train/value"} | {f"train/{kind}/{key}" for kind in ("weight", "loss") for key in losses}
    assert math.isclose(metrics["train/value"], float(step.value))
    assert str(step.how).startswith("one plain pass: ")
    for look in (lambda: step.gamma, lambda: step.certificate, step.of_update):
        with pytest.raises(pg.ParameterError, match=r"paretograd\.gramian\(losses, params\)"):
            look()
    certificate = pg.certify(G, step.weights, rule, names=step.names)
    assert certificate.keeps_promise is not False
    assert repr(step).startswith("Step(weights=[")


def test_losses_as_a_vector() -> None:
    problem = MODELS["vector_of_losses"]()
    step = pg.backward(problem.losses(), pg.STCH(), problem.params)
    close(problem.params, by_torch(problem.losses(), problem.params, step.weights))


def test_only_params_are_filled() -> None:
    problem = task_heads()
    rule = pg.UncertaintyWeighting(4)
    pg.backward(problem.losses(), rule, problem.params[:1])
    assert [param.grad is not None for param in problem.params] == [True] + [False] * (len(problem.params) - 1)
    assert rule.s.grad is not None


def test_losses_without_weight_cost_no_pass() -> None:
    """Tchebycheff differentiates the largest loss only; the heads of the others get zeros, as from torch."""
    problem = task_heads()
    visited = []

    def watched(loss: Tensor, k: int) -> Tensor:
        loss = loss * 1.0
        loss.register_hook(lambda grad: visited.append(k))
        return loss

    losses = [watched(loss, k) for k, loss in enumerate(as_list(problem.losses()))]
    step = pg.backward(losses, pg.Tchebycheff(), problem.params)
    assert visited == step.weights.nonzero().flatten().tolist()
    assert len(visited) == 1
    assert sum(param.grad is not None and not param.grad.any() for param in problem.params) == 6


def test_zero_weights_fill_zeros() -> None:
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    step = pg.backward([x[0].square(), x[1].square()], pg.PBI())  # at its ideal point
    assert step.weights.tolist() == [0.0, 0.0]
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


def test_hooks_are_called_once_with_what_goes_to_grad() -> None:
    problem, rule = mlp(), pg.IMTLL(3)
    seen: list[Tensor] = []
    for param in (problem.params[0], rule.s):
        param.register_hook(lambda grad: seen.append(grad.clone()) or 2.0 * grad)
        param.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad.clone()))
    pg.backward(problem.losses(), rule, problem.params)
    assert len(seen) == 4
    assert torch.equal(problem.params[0].grad, 2.0 * seen[0])


def test_the_graph_is_freed_unless_it_is_retained() -> None:
    problem = mlp()
    losses = problem.losses()
    for nonfinite in ("raise", "propagate"):
        losses = problem.losses()
        pg.backward(losses, pg.STCH(), problem.params, retain_graph=True, nonfinite=nonfinite)
        pg.backward(losses, pg.STCH(), problem.params, nonfinite=nonfinite)
        with pytest.raises(RuntimeError, match="second time"):
            pg.backward(losses, pg.STCH(), problem.params, nonfinite=nonfinite)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "gramian"}, "engine, chunk and max_memory"),
        ({"engine": "jacobian"}, "engine, chunk and max_memory"),
        ({"chunk": 2}, "engine, chunk and max_memory"),
        ({"max_memory": 10}, "engine, chunk and max_memory"),
        ({"keep_rows": True}, "metric and keep_rows"),
        ({"metric": torch.ones(2)}, "metric"),
        ({"per_sample": True}, "per_sample=True"),
        ({"shared": []}, "shared and specific"),
        ({"specific": []}, "shared and specific"),
        ({"params": "groups"}, "groups of params"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
    ],
)
def test_options_that_make_no_sense(options: dict, words: str) -> None:
    problem = mlp()
    if options.get("params") == "groups":
        options = {"params": [problem.params[:1], problem.params[1:]]}
    if "metric" in options:
        options = {"metric": {param: torch.ones_like(param) for param in problem.params}}
    rule = pg.RLW(seed=1)
    untouched(problem.params, lambda: pg.backward(problem.losses(), rule, **options), pg.ParameterError, words)
    assert int(rule.state_dict()["_steps"]) == 0


# ---- what is not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("named", [False, True])
def test_losses_that_are_not_finite(bad: int, value: float, named: bool) -> None:
    problem, rule = mlp(), pg.DWA()
    losses = problem.losses()
    losses[bad] = losses[bad] * value
    given = dict(zip("abc", losses, strict=True)) if named else losses
    words = f"the loss of objective {'abc'[bad]!r} " if named else f"the loss of objective {bad} "
    raised = untouched(problem.params, lambda: pg.backward(given, rule), pg.NonFiniteGradientError, words)
    assert raised.objectives == [bad]
    assert int(rule.state_dict()["_steps"]) == 0
    step = pg.backward(given, rule, problem.params, nonfinite="propagate")
    assert not step.finite
    assert bool(torch.isnan(step.weights).all())
    assert any(not bool(torch.isfinite(param.grad).all()) for param in problem.params)
    assert math.isnan(step.metrics()["mo/value"])
    assert int(rule.state_dict()["_steps"]) == 0


def root_of_zero(loss: Tensor, w: Tensor) -> Tensor:
    """A finite loss whose gradient is not."""
    return loss + (w - w.detach()).sum().sqrt()


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("head", [False, True])
def test_gradients_that_are_not_finite(bad: int, head: bool) -> None:
    problem, rule = task_heads(), pg.UncertaintyWeighting(4)
    weight = problem.params[2 + 2 * bad if head else 0]
    losses = as_list(problem.losses())
    losses[bad] = root_of_zero(losses[bad], weight)
    call = lambda: pg.backward(losses, rule, problem.params)  # noqa: E731
    raised = untouched([*problem.params, rule.s], call, pg.NonFiniteGradientError, f"gradient of objective {bad} ")
    assert raised.objectives == [bad]
    for param in problem.params:
        param.grad = None
    losses = as_list(problem.losses())
    losses[bad] = root_of_zero(losses[bad], weight)
    step = pg.backward(losses, rule, problem.params, nonfinite="propagate")
    assert not step.finite
    assert not bool(torch.isfinite(weight.grad).all())


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_compiled_model() -> None:
    """Its graph is freed by the pass; all losses that reach a bad parameter are named."""
    torch.compiler.reset()
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    head = nn.Linear(3, 1).double()
    compiled = torch.compile(net, backend="aot_eager")
    x = torch.randn(4, 3, dtype=torch.float64)

    def losses(forward: nn.Module) -> list[Tensor]:
        return [*(forward(x) - 1.0).square().mean(dim=0), head(x).square().mean()]

    params = [*net.parameters(), *head.parameters()]
    step = pg.backward(losses(compiled), pg.STCH(), params)
    close(params, by_torch(losses(net), params, step.weights))
    bad = losses(compiled)
    bad[0] = root_of_zero(bad[0], net.weight)
    raised = untouched(params, lambda: pg.backward(bad, pg.STCH(), params), pg.NonFiniteGradientError, "gradient")
    assert raised.objectives == [0, 1]


def test_a_gradient_without_weight_may_be_infinite() -> None:
    """Tchebycheff does not look at it."""
    problem = mlp()
    losses = problem.losses()
    largest = max(range(3), key=lambda k: float(losses[k].detach()))
    other = (largest + 1) % 3
    losses[other] = root_of_zero(losses[other], problem.params[0])
    pg.backward(losses, pg.Tchebycheff(), problem.params)
    assert all(bool(torch.isfinite(param.grad).all()) for param in problem.params)


def test_losses_outside_the_domain_are_named() -> None:
    problem = mlp()
    losses = dict(zip(("a", "b", "c"), problem.losses(), strict=True))
    losses["b"] = losses["b"].square() * 0.0 - 2.0
    losses["c"] = losses["c"].square()
    losses["a"] = losses["a"].square()
    for rule in (pg.GLS(), pg.LogSum(), pg.PNorm(), pg.FAMO()):
        untouched(
            problem.params, lambda rule=rule: pg.backward(losses, rule), pg.InputError, "got -2 for objective 'b'"
        )


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-5, 1.0, 100.0])
def test_short_dtypes(dtype: torch.dtype, size: float) -> None:
    """Weights of 1e5 exceed float16; they are scaled on the way."""
    w = torch.tensor([0.5, 1.0], dtype=dtype, requires_grad=True)
    losses = [(w[0] * size).abs(), (w[1] * size).abs()]
    step = pg.backward(losses, pg.LogSum())
    want = torch.tensor([2.0, 1.0], dtype=torch.float64)  # the gradient of log |w size| is 1 / w
    assert torch.allclose(w.grad.double(), want, rtol=4 * torch.finfo(dtype).eps)
    assert step.weights.dtype == torch.float64


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_extreme_losses(scale: float) -> None:
    problem = mlp()
    for rule in (pg.GLS(), pg.LogSum(), pg.PNorm(3), pg.STCH(scale), pg.PBI(), pg.FAMO()):
        losses = [scale * (loss.square() + 0.1) for loss in problem.losses()]
        for param in problem.params:
            param.grad = None
        step = pg.backward(losses, rule, problem.params)
        again = [scale * (loss.square() + 0.1) for loss in problem.losses()]
        close(problem.params, by_torch(again, problem.params, step.weights))


def test_autocast_and_no_grad_of_the_caller_change_nothing() -> None:
    problem = mlp()
    losses = [loss.square() + 0.1 for loss in problem.losses()]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        step = pg.backward(losses, pg.STCH(0.3), problem.params, retain_graph=True)
    close(problem.params, by_torch(losses, problem.params, step.weights))
    assert torch.equal(step.weights, pg.STCH(0.3).weights(torch.stack(losses)))


# ---- the other entries -----------------------------------------------------------------------------------------------


def test_accumulate_refuses() -> None:
    problem = mlp()
    with pg.accumulate(problem.params) as acc:
        acc.add(problem.losses())
        with pytest.raises(pg.ParameterError, match="losses of the whole batch"):
            acc.step(pg.STCH())
        with pytest.raises(pg.ParameterError, match="constant weights"):
            acc.step(pg.WeightedSum([1.0, 2.0, 3.0]))
        assert acc.count == 1
        acc.step(pg.UPGrad())


def test_what_needs_gradients_refuses() -> None:
    problem = mlp()
    optimizer = torch.optim.SGD(problem.params, lr=0.1)
    with pytest.raises(pg.ParameterError, match="sees the losses"):
        pg.Unconflicting(optimizer, pg.STCH())
    with pytest.raises(pg.ParameterError):
        pg.Mixed([pg.STCH(), pg.MGDA()])
    with pytest.raises(pg.ParameterError, match="sees losses"):
        Server(pg.STCH())
    with pytest.raises(pg.ParameterError, match=r"paretograd\.scalarizer\('stch'\)"):
        pg.backward(problem.losses(), "stch")


@pytest.mark.parametrize("make", [lambda: pg.STCH(), lambda: pg.RLW(seed=2), lambda: pg.UncertaintyWeighting(2)])
def test_capture_runs_eagerly(make: Callable[[], pg.Weighting]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    other = copy.deepcopy(model)
    rule, same = make(), make()
    optimizer = torch.optim.SGD([*model.parameters(), *rule.parameters()], lr=0.1)
    step = pg.capture(lambda x: list(model(x).square().mean(dim=0)), rule, model, optimizer=optimizer)
    plain = torch.optim.SGD([*other.parameters(), *same.parameters()], lr=0.1)
    with pytest.warns(UserWarning, match="cannot be captured"):
        step(torch.ones(4, 3))
    for k in range(3):
        x = torch.randn(4, 3)
        plain.zero_grad()
        if k == 0:
            pg.backward(list(other(torch.ones(4, 3)).square().mean(dim=0)), same)
            plain.step()
            plain.zero_grad()
        want = pg.backward(list(other(x).square().mean(dim=0)), same)
        plain.step()
        found = step(x)
        assert torch.equal(found.weights, want.weights)
        assert found.losses is not None
    assert torch.equal(model.weight, other.weight)


def test_learned_weights_train_with_the_model() -> None:
    torch.manual_seed(0)
    model, rule = nn.Linear(3, 2), pg.UncertaintyWeighting(2)
    x, y = torch.randn(32, 3), torch.randn(32, 2) * torch.tensor([1.0, 100.0])
    optimizer = torch.optim.Adam([*model.parameters(), *rule.parameters()], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        step = pg.backward(list((model(x) - y).square().mean(dim=0)), rule)
        optimizer.step()
    assert step.losses is not None
    assert float(rule.s[1].detach()) > float(rule.s[0].detach()) + 5.0  # variances 1e4 apart


def test_famo_in_a_loop() -> None:
    torch.manual_seed(0)
    model, rule = nn.Linear(3, 2), pg.FAMO()
    x, y = torch.randn(32, 3), torch.randn(32, 2) * torch.tensor([1.0, 100.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def losses() -> list[Tensor]:
        return list((model(x) - y).square().mean(dim=0))

    before = torch.stack(losses()).detach()
    for _ in range(100):
        optimizer.zero_grad()
        step = pg.backward(losses(), rule)
        optimizer.step()
        rule.update(losses())
    assert math.isclose(float(step.weights.sum()), 1.0, rel_tol=1e-12)
    assert bool((torch.stack(losses()).detach() < before).all())
