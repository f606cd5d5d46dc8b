"""`backward` against the slow way, on every model of `support.models`, and what it does with wrong input.

Both work in float64 on the same graph, so that they differ by rounding only: 1e-10 of the largest gradient allows for
the condition of the weights (near-dependent gradients), not for an error in a rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch
from support.models import MODELS, Expected, Losses, Problem, slowly, three
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import products as products_module
from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError

TOLERANCE = 1e-10
RULES = {"upgrad": pg.UPGrad, "mgda": pg.MGDA}

#: Models of which a loss shares nothing, as `backward` says.
unshared = pytest.mark.filterwarnings("ignore:.* no parameter that the other losses share:UserWarning")
UNSHARED = ("loss_beside_the_trunk", "own_gradients_that_alias")

models = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=unshared if name in UNSHARED else ()) for name in MODELS]
)
engines = pytest.mark.parametrize("engine", ["gramian", "jacobian"])


def compare(params: Iterable[Tensor], expected: Expected, step: pg.Step | None = None, times: float = 1.0) -> None:
    """Every ``.grad`` is what the slow way found, ``times`` over, and None where it found nothing."""
    if step is not None:
        error = float((step.gramian - expected.gramian).abs().max())
        assert error <= TOLERANCE * float(expected.gramian.abs().max())
    for k, param in enumerate(params):
        want = expected.grads.get(id(param))
        if want is None:
            assert param.grad is None, k
            continue
        assert param.grad is not None, k
        assert (param.grad.dtype, param.grad.shape) == (param.dtype, param.shape)
        assert not param.grad.requires_grad
        error = float((param.grad.to_dense() - times * want).abs().max())
        assert error <= TOLERANCE * times * expected.scale, (k, tuple(param.shape), error / expected.scale)


def mlp() -> Problem:
    return MODELS["mlp"]()


def heads() -> Problem:
    """A trunk (the first two parameters) and four heads of two parameters each."""
    return MODELS["task_heads"]()


# ---- agreement with the slow way -------------------------------------------------------------------------------------


@models
@pytest.mark.parametrize("rule", RULES)
def test_agrees(name: str, rule: str, engine_of_every_way: str) -> None:
    problem = MODELS[name]()
    losses = problem.losses()
    expected = slowly(losses, problem.params, RULES[rule]())
    step = pg.backward(losses, RULES[rule](), problem.params, engine=engine_of_every_way)
    compare(problem.params, expected, step)
    assert (step.weights.dtype, step.gramian.dtype) == (torch.float64, torch.float64)
    assert torch.equal(step.weights, RULES[rule]().weights(step.gramian))


@models
def test_a_second_call_adds(name: str, engine_of_every_way: str) -> None:
    """On the same graph, which the first call keeps; a gradient that aliased another would be added to twice."""
    problem = MODELS[name]()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.MGDA())
    pg.backward(losses, pg.MGDA(), problem.params, engine=engine_of_every_way, retain_graph=True)
    pg.backward(losses, pg.MGDA(), problem.params, engine=engine_of_every_way)
    compare(problem.params, expected, times=2.0)


@models
@pytest.mark.parametrize("chunk", [1, 2, 3])
@engines
def test_chunks_agree(name: str, chunk: int, engine: str) -> None:
    problem = MODELS[name]()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.UPGrad())
    compare(problem.params, expected, pg.backward(losses, pg.UPGrad(), problem.params, engine=engine, chunk=chunk))


@models
def test_a_stack_is_a_list(name: str) -> None:
    """``torch.stack`` of scalars keeps the heads apart; any other vector is taken to reach all its parameters."""
    problem = MODELS[name]()
    losses = problem.losses()
    if isinstance(losses, Tensor) or losses[0].ndim:
        pytest.skip("no list of scalars")
    expected = slowly(losses, problem.params, pg.UPGrad())
    compare(problem.params, expected, pg.backward(torch.stack(losses), pg.UPGrad(), problem.params, engine="gramian"))


#: What may be done to each entry of a vector of losses, with the factor that it gives a loss of value ``f``.
ENTRY_BY_ENTRY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "weights": (lambda v: v * torch.arange(1.0, len(v) + 1.0), lambda f: f),
    "division": (lambda v: v / 2.0, lambda f: f / 2.0),
    "copy": (lambda v: v.float().double().clone(), lambda f: f.float().double()),
    "guards": (lambda v: v.nan_to_num().clamp(min=1e-12), lambda f: f),
    "logarithm": (lambda v: (v + 1.0).log(), lambda f: (f + 1.0).log()),
    "relative": (lambda v: v / v.detach(), lambda f: f / f.detach()),
    "powers": (lambda v: (1.0 - v.square()).exp().sqrt(), lambda f: (1.0 - f.square()).exp().sqrt()),
    "scaler": (torch.amp.GradScaler("cpu", init_scale=8.0).scale, lambda f: 8.0 * f),
    "same shape": (lambda v: v.reshape(-1).expand(len(v)), lambda f: f),
    "two of them": (lambda v: v + v.square() * (v > 0.0), lambda f: f + f.square()),
}


@pytest.mark.parametrize("change", ENTRY_BY_ENTRY)
@pytest.mark.parametrize("form", ["vector", "entries", "selected", "joined by cat"])
def test_a_stack_that_is_changed_entry_by_entry_is_a_list(change: str, form: str) -> None:
    """Heads stay heads: the Gramian, the step and every gradient are those of a list of the same losses."""
    problem, twin = heads(), heads()
    of_vector, of_one = ENTRY_BY_ENTRY[change]
    want = [of_one(loss) * (k + 1.0 if change == "weights" else 1.0) for k, loss in enumerate(twin.losses())]
    expected = pg.backward(want, pg.MGDA())
    losses = problem.losses()
    joined = torch.cat([loss.reshape(1) for loss in losses]) if form == "joined by cat" else torch.stack(losses)
    vector = of_vector(joined)
    given = {"entries": list(vector), "selected": [vector[k - len(vector)] for k in range(len(vector))]}
    step = pg.backward(given.get(form, vector), pg.MGDA())
    assert torch.allclose(step.gramian, expected.gramian, rtol=1e-6, atol=0.0)  # 1e-12 but for the copy in float32
    for param, other in zip(problem.params, twin.params, strict=True):
        assert torch.allclose(param.grad, other.grad, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("turned around", lambda v: v.flip(0)),
        ("summed up", lambda v: v.cumsum(0)),
        ("sorted", lambda v: v.sort().values),
        ("normalized", lambda v: v / v.sum()),
        ("softmax", lambda v: v.softmax(0)),
        ("mixed", lambda v: torch.ones(4, 4, dtype=v.dtype) @ v),
        ("in part", lambda v: v.clone().index_fill_(0, torch.tensor([0]), 1.0) * v.mean()),
    ],
)
def test_entries_that_may_depend_on_each_other_reach_everything(name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Heads are aggregated then, which is right whatever the operation does."""
    problem = heads()
    step = pg.backward(change(torch.stack(problem.losses())), pg.UPGrad(), retain_graph=True)
    twin = heads()
    vector = change(torch.stack(twin.losses()))
    rows = [torch.autograd.grad(loss, twin.params, retain_graph=True, materialize_grads=True) for loss in vector]
    J = torch.stack([torch.cat([grad.flatten() for grad in row]) for row in rows])
    assert torch.allclose(step.gramian, J @ J.T, rtol=1e-10, atol=1e-12), name


def test_learned_weights_of_a_stack() -> None:
    """Uncertainty weighting: the heads stay heads, and every loss reaches the vector of weights."""
    problem, twin = heads(), heads()
    logs, others = (nn.Parameter(torch.linspace(-1.0, 1.0, 4, dtype=torch.float64)) for _ in range(2))
    step = pg.backward(torch.stack(problem.losses()) * torch.exp(-logs) + logs, pg.UPGrad())
    expected = pg.backward([f * torch.exp(-others[k]) + others[k] for k, f in enumerate(twin.losses())], pg.UPGrad())
    assert torch.allclose(step.gramian, expected.gramian, rtol=1e-10, atol=1e-14)
    for param, other in zip([*problem.params, logs], [*twin.params, others], strict=True):
        assert torch.allclose(param.grad, other.grad, rtol=1e-10, atol=1e-14)


def test_vectors_of_samples_may_be_scaled() -> None:
    """There is nothing to see through: each loss counts as reaching all that the vector depends on."""
    net, x = nn.Linear(3, 1).double(), torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).reshape(5, 3)
    expected = pg.backward(net(x)[:, 0].square(), pg.UPGrad())
    for per_sample in (False, True):
        step = pg.backward(net(x)[:, 0].square() * 2.0, pg.UPGrad(), per_sample=per_sample)
        assert torch.allclose(step.gramian, 4.0 * expected.gramian, rtol=1e-12, atol=0.0)


@models
def test_all_that_the_losses_reach_is_the_default(name: str) -> None:
    problem = MODELS[name]()
    if name == "physics_informed":
        pytest.skip("its losses reach the points, too, which require a gradient there: pass the parameters")
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.UPGrad())
    compare(problem.params, expected, pg.backward(losses, pg.UPGrad()))


@models
def test_long_rows_are_multiplied_in_slices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any length, which need not divide that of the row."""
    monkeypatch.setattr(products_module, "_SLICE", 7)
    problem = MODELS[name]()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.UPGrad())
    compare(problem.params, expected, pg.backward(losses, pg.UPGrad(), problem.params, engine="gramian"))


@engines
def test_one_loss_is_plain_backward(engine: str) -> None:
    """Weights of UPGrad and MGDA are 1 for m = 1."""
    problem, twin = mlp(), mlp()
    step = pg.backward([problem.losses()[0]], pg.MGDA(), engine=engine)
    assert step.weights.tolist() == [1.0]
    twin.losses()[0].backward()
    for param, other in zip(problem.params, twin.params, strict=True):
        assert torch.allclose(param.grad, other.grad, rtol=1e-12, atol=1e-14)


def test_losses_may_be_any_iterable() -> None:
    problem = mlp()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.MGDA())
    pg.backward(iter(losses), pg.MGDA(), iter(problem.params))
    compare(problem.params, expected)


# ---- which parameters, and how ---------------------------------------------------------------------------------------


def test_heads_get_the_gradient_of_their_own_loss() -> None:
    problem = heads()
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
    problem = heads()
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


# ---- the graph afterwards --------------------------------------------------------------------------------------------


@engines
def test_the_graph_is_kept_on_request(engine: str) -> None:
    problem = mlp()
    losses = problem.losses()
    pg.backward(losses, pg.MGDA(), engine=engine, retain_graph=True)
    first = [p.grad.clone() for p in problem.params]
    sum(losses).backward()
    assert all(not torch.equal(p.grad, g) for p, g in zip(problem.params, first, strict=True))


@engines
def test_the_graph_is_freed_otherwise(engine: str) -> None:
    """A second pass raises torch's own error and changes no ``.grad``, and later graphs are none the worse for it.

    The first pass over a new kind of graph may keep it, to find out how; so the pass is made twice.
    """
    problem = mlp()
    pg.backward(problem.losses(), pg.MGDA(), engine=engine)
    losses = problem.losses()
    pg.backward(losses, pg.MGDA(), engine=engine)
    before = [p.grad.clone() for p in problem.params]
    with pytest.raises(RuntimeError, match="second time"):
        pg.backward(losses, pg.MGDA(), engine=engine)
    assert all(torch.equal(p.grad, g) for p, g in zip(problem.params, before, strict=True))


def test_the_callers_grad_mode_does_not_matter() -> None:
    problem = mlp()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.UPGrad())
    with torch.no_grad():
        pg.backward(losses, pg.UPGrad())
    compare(problem.params, expected)


@unshared
@pytest.mark.parametrize("name", ["own_gradients_that_alias", "shared_gradients_that_alias"])
def test_later_changes_of_a_gradient_stay_its_own(name: str, engine_of_every_way: str) -> None:
    """Clipping scales ``.grad`` in place: no two gradients may share memory."""
    problem = MODELS[name]()
    pg.backward(problem.losses(), pg.MGDA(), engine=engine_of_every_way)
    pointers = [p.grad.data_ptr() for p in problem.params]
    assert len(set(pointers)) == len(pointers)
    nn.utils.clip_grad_norm_(problem.params, 1e-3)
    assert math.isclose(float(sum(p.grad.square().sum() for p in problem.params)) ** 0.5, 1e-3, rel_tol=1e-3)


# ---- the step --------------------------------------------------------------------------------------------------------


def test_the_step_knows_its_certificate() -> None:
    problem = mlp()
    losses = problem.losses()
    expected = slowly(losses, problem.params, pg.MGDA())
    step = pg.backward(losses, pg.MGDA(), problem.params)
    assert math.isclose(step.gamma, float(pg.stationarity(expected.gramian)), rel_tol=1e-9)
    assert step.certificate.in_hull
    assert step.certificate.non_conflicting
    assert "thm:cvg_nonconflict" in step.certificate.results
    direction = torch.cat([p.grad.flatten() for p in problem.params])
    assert math.isclose(step.certificate.norm, float(direction.norm()), rel_tol=1e-9)


def test_metrics_are_flat() -> None:
    step = pg.backward(heads().losses(), pg.UPGrad())
    metrics = step.metrics("train/")
    assert all(type(key) is str and type(value) is float for key, value in metrics.items())
    assert all(key.startswith("train/") for key in metrics)
    assert [metrics[f"train/weight/{k}"] for k in range(4)] == step.weights.tolist()
    norms = [metrics[f"train/gradient_norm/{k}"] for k in range(4)]
    assert norms == pytest.approx(step.gramian.diagonal().sqrt().tolist(), rel=1e-12)
    assert metrics["train/gamma"] == pytest.approx(step.gamma, rel=1e-9)
    assert repr(step).startswith("Step(weights=[")


# ---- wrong input: said clearly, with every .grad as it was -----------------------------------------------------------


def untouched(params: Sequence[Tensor], call: Callable[[], object], error: type[Exception], words: str) -> Exception:
    """The call raises, and every ``.grad`` is the same object with the same bits, None included."""
    for param in params[::2]:  # every other one has a gradient already
        param.grad = torch.randn_like(param)
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in params]
    with pytest.raises(error, match=words) as caught:
        call()
    for param, (grad, copy) in zip(params, before, strict=True):
        assert param.grad is grad
        assert grad is None or torch.equal(grad, copy)
    return caught.value


POISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nan factor": lambda loss, _: loss * math.nan,
    "infinite factor": lambda loss, _: loss * math.inf,
    "root of zero": lambda loss, w: loss + (w - w.detach()).sum().sqrt(),  # slope 1 / 0
    "log of zero": lambda loss, w: loss + (w - w.detach()).sum().log(),
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_a_gradient_that_is_not_finite_names_its_objective(
    engine_of_every_way: str, poison: str, bad: int, chunk: int | None
) -> None:
    """And no other: the objectives beside it must not pass through its slope, not even with a zero in front."""
    problem = mlp()
    losses = problem.losses()
    losses[bad] = POISONS[poison](losses[bad], problem.params[0])
    raised = untouched(
        problem.params,
        lambda: pg.backward(losses, pg.UPGrad(), engine=engine_of_every_way, chunk=chunk),
        pg.NonFiniteGradientError,
        "objective",
    )
    assert raised.objectives == [bad]


@pytest.mark.parametrize("poison", POISONS)
def test_so_does_one_in_a_head(engine_of_every_way: str, poison: str) -> None:
    problem = heads()
    losses = problem.losses()
    losses[1] = POISONS[poison](losses[1], problem.params[4])
    raised = untouched(
        problem.params,
        lambda: pg.backward(losses, pg.UPGrad(), engine=engine_of_every_way),
        pg.NonFiniteGradientError,
        "objective 1 ",
    )
    assert raised.objectives == [1]


def test_so_does_one_in_a_specific_parameter() -> None:
    """Which several losses reach: the one at fault is named, not all of them."""
    problem = mlp()
    losses = problem.losses()
    losses[1] = losses[1] * math.nan
    call = lambda: pg.backward(losses, pg.UPGrad(), specific=[problem.params[0]])  # noqa: E731
    assert untouched(problem.params, call, pg.NonFiniteGradientError, "objective").objectives == [1]


def test_wrong_losses() -> None:
    problem = mlp()
    a, b, _ = problem.losses()
    vector = torch.stack([a, b])
    cases: list[tuple[Losses, type[Exception], str]] = [
        ([], ShapeError, "empty"),
        ([a, torch.tensor(1.0)], InputError, r"losses\[1\] has no graph.*no_grad"),
        ([a.detach()], InputError, r"losses\[0\] has no graph"),
        (vector.detach(), InputError, "no graph"),
        ([a, vector], ShapeError, r"losses\[1\] has shape \(2,\).*\.mean\(\)"),
        (a, ShapeError, r"pass \[loss\]"),
        (vector.reshape(1, 2), ShapeError, r"shape \(1, 2\)"),
        ([a, torch.tensor(1)], DTypeError, r"losses\[1\] has dtype torch.int64"),
        ([a, 2.0], DTypeError, r"losses\[1\] is a float"),
        (3.0, DTypeError, "list of scalar tensors"),
        ({"a": a}, DTypeError, r"losses is a dict.*Pass list\(losses\.values\(\)\)"),
        (["a"], DTypeError, r"losses\[0\] is a str"),
    ]
    for losses, error, words in cases:
        untouched(problem.params, lambda given=losses: pg.backward(given, pg.MGDA()), error, words)


def test_wrong_arguments() -> None:
    problem = mlp()
    losses, first = problem.losses(), problem.params[0]
    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"params": [nn.Parameter(torch.ones(2))]}, ParameterError, "no loss reaches any of the 1 params"),
        ({"params": []}, ParameterError, "no loss reaches"),
        ({"params": [first * 2.0]}, ParameterError, "not a leaf"),
        ({"params": ["weight"]}, DTypeError, r"params\[0\] is a str"),
        ({"params": [first.detach()]}, ParameterError, "require gradients"),
        ({"shared": [first], "specific": [first]}, ParameterError, "both in shared and in specific"),
        (
            {"shared": problem.params[:2], "params": problem.params[1:]},
            ParameterError,
            rf"shared\[0\], shape {re.escape(str(tuple(first.shape)))}, is not in params",
        ),
        ({"specific": [first, first * 2.0]}, ParameterError, r"specific\[1\], shape .*, is not a leaf of the graph"),
        ({"shared": 3}, DTypeError, "shared holds a int; give parameters, or modules that have them"),
        ({"specific": ["weight"]}, DTypeError, "specific holds a str"),
        ({"specific": {"params": [first]}}, DTypeError, "specific holds a dict"),
        ({"specific": [None]}, DTypeError, "specific holds a NoneType"),
        ({"aggregator": "mgda"}, ParameterError, r"aggregator='mgda': give a rule, such as paretograd\.get\('mgda'\)"),
        ({"aggregator": pg.MGDA}, ParameterError, r"give a rule, such as paretograd\.UPGrad\(\)"),
        ({"engine": "fast"}, ParameterError, "auto.*gramian.*jacobian"),
        ({"chunk": 0}, ParameterError, "chunk"),
        ({"chunk": -1}, ParameterError, "chunk"),
        ({"chunk": 1.5}, ParameterError, "chunk"),
    ]
    for changes, error, words in cases:
        arguments = {"losses": losses, "aggregator": pg.MGDA(), "retain_graph": True, **changes}
        untouched(problem.params, lambda given=arguments: pg.backward(**given), error, words)


def test_one_tensor_is_one_parameter() -> None:
    """``shared`` and ``specific`` take a lone tensor as ``params`` does."""
    w, v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    pg.backward(three(w * v), pg.MGDA(), w, shared=w)
    assert w.grad is not None
    assert v.grad is None


def test_a_module_stands_for_its_parameters() -> None:
    """In ``shared`` and ``specific`` as in ``params``, alone or in a list; frozen parameters are left alone."""
    trunk, heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    trunk.bias.requires_grad_(False)

    def step(**chosen: object) -> tuple[list[Tensor | None], Tensor]:
        trunk.zero_grad()
        heads.zero_grad()
        z = trunk(torch.linspace(-1.0, 1.0, 6).reshape(2, 3)).tanh()
        taken = pg.backward([(head(z) - k).square().mean() for k, head in enumerate(heads)], pg.MGDA(), **chosen)
        return [param.grad for param in (*trunk.parameters(), *heads.parameters())], taken.gramian

    plain = step()[1]
    for argument in ("shared", "specific"):
        for module in (trunk, heads):
            lists = [param for param in module.parameters() if param.requires_grad]
            grads, gramian = step(**{argument: lists})
            forms = [module, [module], iter([module]), [lists], torch.optim.SGD(lists).param_groups[0]["params"]]
            for form in [*forms, *([list(heads), heads.parameters()] if module is heads else [])]:
                found, other = step(**{argument: form})
                assert torch.equal(other, gramian)
                for grad, want in zip(found, grads, strict=True):
                    assert (grad is None and want is None) or torch.equal(grad, want)
            assert torch.equal(gramian, plain) == ((argument == "shared") == (module is trunk))


def test_gramian_refuses_a_matrix_of_losses() -> None:
    """Neither losses nor a Jacobian: a matrix with a graph was taken for a Jacobian, and its rows for gradients."""
    w = torch.ones(3, requires_grad=True)
    losses = torch.outer(torch.arange(2.0), w).square()
    with pytest.raises(ShapeError, match=r"shape \(2, 3\) .*flatten.*detach"):
        pg.gramian(losses)
    with pytest.raises(ShapeError, match=r"shape \(2, 3\)"):
        pg.gramian(losses, [w])
    assert pg.gramian(losses.flatten()).shape == (6, 6)
    assert torch.equal(pg.gramian(losses.detach()), pg.gramian(losses.detach().clone().requires_grad_()))
    with pytest.raises(ShapeError, match=r"pass \[loss\]"):
        pg.gramian(losses.sum())
