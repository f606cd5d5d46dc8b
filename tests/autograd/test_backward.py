"""`backward` against the slow way, on every model of `support.models`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.backward import compare, slowly
from support.models import MODELS, mlp, task_heads
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import products as products_module
from paretograd.autograd.step import Step

RULES = {"upgrad": pg.UPGrad, "mgda": pg.MGDA}

#: Models of which a loss shares nothing, as `backward` says.
unshared = pytest.mark.filterwarnings("ignore:.* no parameter that the other losses share:UserWarning")
UNSHARED = ("loss_beside_the_trunk", "own_gradients_that_alias")

models = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=unshared if name in UNSHARED else ()) for name in MODELS]
)
engines = pytest.mark.parametrize("engine", ["gramian", "jacobian"])


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
@pytest.mark.parametrize("engine", ["batched", "auto"])
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
    problem, twin = task_heads(), task_heads()
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
    problem = task_heads()
    step = pg.backward(change(torch.stack(problem.losses())), pg.UPGrad(), retain_graph=True)
    twin = task_heads()
    vector = change(torch.stack(twin.losses()))
    rows = [torch.autograd.grad(loss, twin.params, retain_graph=True, materialize_grads=True) for loss in vector]
    J = torch.stack([torch.cat([grad.flatten() for grad in row]) for row in rows])
    assert torch.allclose(step.gramian, J @ J.T, rtol=1e-10, atol=1e-12), name


def test_learned_weights_of_a_stack() -> None:
    """Uncertainty weighting: the heads stay heads, and every loss reaches the vector of weights."""
    problem, twin = task_heads(), task_heads()
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
    step = pg.backward(task_heads().losses(), pg.UPGrad())
    metrics = step.metrics("train/")
    assert all(type(key) is str and type(value) is float for key, value in metrics.items())
    assert all(key.startswith("train/") for key in metrics)
    assert [metrics[f"train/weight/{k}"] for k in range(4)] == step.weights.tolist()
    norms = [metrics[f"train/gradient_norm/{k}"] for k in range(4)]
    assert norms == pytest.approx(step.gramian.diagonal().sqrt().tolist(), rel=1e-12)
    assert metrics["train/gamma"] == pytest.approx(step.gamma, rel=1e-9)
    assert repr(step).startswith("Step(weights=[")


@pytest.mark.parametrize("residual", [None, 1e-9, 2e-9, math.inf, math.nan])
def test_a_step_says_whether_its_weights_may_be_trusted(residual: float | None) -> None:
    G = torch.eye(2, dtype=torch.float64)
    step = Step(pg.MGDA().weights(G), G, pg.MGDA(), names=("seg", "depth"))
    grouped = Step.of_groups([Step(pg.MGDA().weights(G), G, pg.MGDA()) for _ in range(2)])
    step.residual = grouped.residual = None if residual is None else torch.tensor(residual)
    trusted = residual in (None, 1e-9)
    for part in (step, grouped, *grouped.groups):
        assert part.trusted is trusted
        assert ("trusted=False" in repr(part)) is not trusted
        found = [value for key, value in part.metrics().items() if key.endswith("/trusted")]
        assert found == ([] if residual is None else [float(trusted)] * max(1, len(part.groups)))
    assert step.certificate.non_conflicting


@pytest.mark.parametrize("residual", [None, 0.0])
def test_a_step_that_is_not_finite_is_not_trusted(residual: float | None) -> None:
    unknown = torch.full((2, 2), torch.nan, dtype=torch.float64)
    step = Step(unknown[0], unknown, pg.MGDA())
    step.residual = None if residual is None else torch.tensor(residual)
    assert not step.trusted
    assert residual is None or math.isnan(step.metrics()["mo/trusted"])


@pytest.mark.parametrize("engine", ["jacobian", "batched", "gramian"])
def test_weights_beyond_float32(engine: Any) -> None:
    """Gradients 40 orders of magnitude apart in float32: the shorter one's weight exceeds the range of float32."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 2), torch.randn(5, 4)

    def losses() -> list[Tensor]:
        y = net(x)
        return [y.mean() * 1e18 + y[:, 0].mean() * 3e17, -y.mean() * 1e-22 + y[:, 1].mean() * 1e-23]

    step = pg.backward(losses(), pg.UPGrad(), engine=engine)
    assert step.weights.max() > 1e39
    J = torch.cat([block.flatten(1).double() for block in pg.jacobian(losses(), list(net.parameters()))], dim=1)
    want = pg.UPGrad()(J)
    got = torch.cat([param.grad.flatten().double() for param in net.parameters() if param.grad is not None])
    assert (got - want).norm() <= 1e-6 * want.norm()  # the rounding of float32
