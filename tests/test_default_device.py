"""Torch's default device is the user's: what the library makes for itself lies where it is needed all the same.

``meta`` stands in for a GPU: what is made there without a device meets tensors of the CPU and fails, or holds nothing.
Inputs lie on the CPU, and all results must lie there, and be what they are without a default device, bit by bit.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import ROOT
from support.fairness import made_adult
from support.models import MODELS
from support.scalarizations import ROWS
from torch import Tensor, nn

import paretograd as pg
from paretograd import descent
from paretograd import subproblem as sp
from paretograd.experiments.fairness import FairnessStudy
from paretograd.experiments.fairness.training import Training
from paretograd.experiments.federated import FederatedStudy
from paretograd.federated import Server, attacks, combine_updates
from paretograd.federated.baselines import BASELINES
from paretograd.problems import hypervolume, non_dominated
from paretograd.problems.cifar10 import cnn
from paretograd.problems.fairness import classifier

SOURCE = ROOT / "src" / "paretograd"

#: What makes tensors on the default device, as torch.utils._device lists it, less what nobody uses.
MAKERS = {
    *("arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace"),
    *("logspace", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "sparse_coo_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros"),
}


def same(make: Callable[[], Any]) -> None:
    """That the default device changes nothing: neither numbers, nor where they lie."""
    plain = make()
    with torch.device("meta"):
        found = make()
    torch.testing.assert_close(found, plain, rtol=0.0, atol=0.0, equal_nan=True)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_every_maker_is_told_where() -> None:
    """Also in what takes several processes, or a GPU, to run."""
    untold = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS:
                of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
                if of_torch and not {"device", None} & {keyword.arg for keyword in node.keywords}:
                    untold.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    assert not untold, "\n".join(untold)


# ---- rules -----------------------------------------------------------------------------------------------------------

POOL = [pg.MGDA(), pg.UPGrad()]
DESIGNED: dict[str, Callable[[], pg.Aggregator]] = {
    "blend": lambda: pg.Blend(POOL, [0.5, 0.5]),
    "mixed": lambda: pg.Mixed(POOL, pg.Random()),
    "smooth": lambda: pg.Subproblem(lambda x: torch.logsumexp(-x, dim=0) - torch.logsumexp(0.0 * x, dim=0)),
    "radial": lambda: pg.Subproblem(sp.CVaR(eps=0.5), sp.Radial(lambda rho: rho**2 / 2 + rho**4 / 4)),
    "conjugate": lambda: pg.Subproblem(sp.Linear(), sp.Radial(lambda rho: rho**2, lambda rho: rho**2 / 4)),
    "from the Gramian": lambda: pg.Subproblem(
        sp.FromGramian(lambda G: sp.Linear(1.0 / G.diagonal().sqrt())), strict=False
    ),
}
RULES: dict[str, Callable[[], pg.Aggregator]] = {
    **{name: partial(pg.get, name) for name in [*pg.names(), "mas-rand", "mas-rr(2)"] if name != "capped-mgda"},
    "capped-mgda": partial(pg.CappedMGDA, cap=0.6),
    "starred": lambda: pg.RGW().normalized(),
    **DESIGNED,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_rules(name: str, dtype: torch.dtype) -> None:
    """On a Jacobian that numpy multiplies, on one that torch does, and on a batch; and by the Gramian."""
    jacobians = [drawn(*shape, dtype=dtype) for shape in ((3, 5), (3, 6000), (2, 3, 5))]

    def run() -> list[Tensor]:
        torch.manual_seed(0)  # for the rules that draw their own seed
        rule = RULES[name]()
        found = [rule(J) for J in jacobians]
        G = pg.gramian(jacobians[0])
        state = rule.state_dict()
        found += [rule.weights(G), rule.weights(G.to(dtype)), rule.solve(pg.gramian(jacobians[2])).weights]
        rule.load_state_dict(state)
        return [*found, rule.weights(G.to(dtype))]

    same(run)


def test_a_seed_from_a_generator() -> None:
    G = pg.gramian(drawn(3, 5))
    same(lambda: pg.RGW(generator=torch.Generator().manual_seed(3)).weights(G))


def test_certificates() -> None:
    G, weights = pg.gramian(drawn(3, 5)), torch.full((3,), 1 / 3, dtype=torch.float64)

    def run() -> list[float | Tensor]:
        found = pg.certify(G, weights, F=weights)
        exact = RULES["smooth"]().solve(G)
        return [found.gamma, found.norm, found.alignment, pg.stationarity(G), exact.multipliers, exact.alignment_gap]

    same(run)


@pytest.mark.parametrize("name", ROWS)
def test_rules_that_see_the_losses(name: str) -> None:
    """Learned weights lie on the default device, as the parameters of any module, and are made before."""
    made = ROWS[name].make(3)
    theta, losses = drawn(3, seed=1).abs().requires_grad_(), drawn(3).abs()

    def run() -> list[Tensor]:
        rule = copy.deepcopy(made) if list(made.parameters()) else ROWS[name].make(3)
        theta.grad = None
        found = [rule.weights(losses), rule.weights([1.0, 2.0, 3.0]), *rule.state_dict().values()]
        if isinstance(rule, pg.FAMO):
            rule.update([0.5, 1.0, 2.0])
        step = pg.backward(list(theta.square() + 0.1), rule)
        return [*found, step.weights, step.value, theta.grad]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FAMO took two steps")
        same(run)


# ---- losses ----------------------------------------------------------------------------------------------------------


class Tasks(nn.Module):
    """A trunk, and a head for each of three tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(6, 2) for _ in range(3)])

    def losses(self, x: Tensor) -> list[Tensor]:
        return [(k + head(self.trunk(x))).square().mean() for k, head in enumerate(self.heads)]

    def groups(self) -> list[list[nn.Parameter]]:
        return [list(layer.parameters()) for layer in (self.trunk, self.heads)]


with torch.random.fork_rng():
    torch.manual_seed(0)
    TASKS = Tasks()

#: Options of `backward`, and what becomes of the losses before it.
CALLS: dict[str, tuple[Callable[[Tasks], dict[str, Any]], Callable[[list[Tensor]], Any]]] = {
    "list": (lambda model: {}, list),
    "vector": (lambda model: {}, torch.stack),
    "rows": (lambda model: {"engine": "jacobian"}, list),
    "gramian": (lambda model: {"engine": "gramian"}, torch.stack),
    "one at a time": (lambda model: {"chunk": 1}, list),
    "two at a time": (lambda model: {"chunk": 2, "retain_graph": True}, torch.stack),
    "groups": (lambda model: {"params": model.groups()}, list),
    "module": (lambda model: {"params": model, "parallel": "data"}, list),
    "shared": (lambda model: {"shared": model.groups()[0]}, list),
    "specific": (lambda model: {"specific": list(model.trunk.parameters())[:1]}, list),
    "samples": (lambda model: {"samples": 8}, list),
    "samples of each": (lambda model: {"samples": [8, 8, 8]}, list),
    "not finite": (
        lambda model: {"nonfinite": "propagate"},
        lambda losses: [losses[0] * torch.nan, *losses[1:]],
    ),
    "not finite, groups": (
        lambda model: {"nonfinite": "propagate", "params": model.groups()},
        lambda losses: torch.stack(losses) * torch.inf,
    ),
    "tiny": (lambda model: {}, lambda losses: [1e-18 * loss for loss in losses]),
}


def seen(step: pg.Step, params: list[Tensor]) -> list[Tensor | float]:
    grads = [p.grad for p in params if p.grad is not None]
    return [step.weights, step.gramian, *grads, step.gamma, *step.metrics().values()]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rule", ["upgrad", "rgw", "mixed", "smooth"])
def test_backward(call: str, rule: str) -> None:
    options_of, prepare = CALLS[call]
    x = drawn(8, 4, dtype=torch.float32)

    def run() -> list[Any]:
        torch.manual_seed(0)
        model, aggregator = copy.deepcopy(TASKS), RULES[rule]()
        found: list[Any] = []
        for _ in range(2):
            step = pg.backward(prepare(model.losses(x)), aggregator, **options_of(model))
            found += seen(step, list(model.parameters()))
        options = {name: value for name, value in options_of(model).items() if name in ("chunk", "samples", "engine")}
        return [*found, pg.gramian(model.losses(x), **options)]

    same(run)


@pytest.mark.parametrize("engine", ["jacobian", "gramian"])
@pytest.mark.filterwarnings("ignore:.* no parameter that the other losses share:UserWarning")  # true of two models
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_layer(name: str, engine: str) -> None:
    def run() -> list[Any]:
        with torch.device("cpu"):  # the user's part
            problem = MODELS[name]()
            torch.manual_seed(0)  # some have a dropout
            losses = problem.losses()
        params = [param for param in problem.params if param.requires_grad]
        return seen(pg.backward(losses, pg.UPGrad(), params, engine=engine), params)

    same(run)


@pytest.mark.parametrize("groups", [False, True])
def test_losses_of_single_samples(groups: bool) -> None:
    x = drawn(8, 4, dtype=torch.float32)

    def run() -> list[Any]:
        model = copy.deepcopy(TASKS)
        losses = model.heads[0](model.trunk(x)).square().mean(dim=1)
        params = [list(layer.parameters()) for layer in (model.trunk, model.heads[0])]
        chosen = params if groups else [param for group in params for param in group]
        return seen(pg.backward(losses, pg.UPGrad(), chosen, per_sample=True), list(model.parameters()))

    same(run)


# ---- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pg.problems())
@pytest.mark.parametrize("many", [False, True])
def test_problems(name: str, many: bool) -> None:
    def run() -> list[Any]:
        problem = pg.problem(name, **({"m": 4} if many and name.startswith(("dtlz", "maf", "quadratic")) else {}))
        x = problem.starts([0, 1], torch.float64)
        found = [problem.lower, problem.upper, x, problem.starts([]), problem(x), *problem.jacobian(x)]
        found += [problem.inside(x), list(problem.least), problem.smoothness or 0.0]
        return [*found, problem.pareto_set(5), problem.pareto_front(5)]

    same(run)


def test_problems_of_one_s_own() -> None:
    def run() -> list[Tensor]:
        made = pg.Problem(
            name="own",
            label="Own",
            objectives=lambda x: torch.stack([x.square().sum(-1), (x - 1.0).square().sum(-1)], -1),
            m=2,
            lower=[-1.0, -1.0],
            upper=[2.0, 2.0],
            least=(0.0, 0.0),
        )
        single = pg.problem("quadratic", m=1, n=2, spectrum=[1.0, 0.5])
        line = pg.problem("quadratic", n=1, angle=180.0)
        return [made.lower, made.start(1), *made.jacobian(made.start(1)), single.pareto_set(1), line.pareto_set(3)]

    same(run)


def test_sets_of_losses() -> None:
    losses = drawn(20, 3)
    same(lambda: [non_dominated(losses), non_dominated(losses[:0]), hypervolume(losses, [4.0, 4.0, 4.0])])


# ---- whole runs ------------------------------------------------------------------------------------------------------


STEPS = [descent.Smooth(), descent.Aligned(), descent.Monotone(), descent.Armijo()]
RUNS = [*((rule, 0.05) for rule in ("rgw", "mixed", "smooth", "radial")), *(("upgrad", lr) for lr in STEPS)]


@pytest.mark.parametrize(("rule", "lr"), RUNS)
def test_descent(rule: str, lr: Any) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        problem = pg.problem("quadratic", m=3, n=6)
        found = pg.descend(problem, RULES[rule](), lr, 5, seeds=(0, 1))
        checks = [(check.bound, check.measured) for check in pg.certify_run(found, problem=problem).checks]
        norm = found.certificate(problem, 2).norm
        return [found.points, found.losses, found.gamma, found.weights, norm, *checks]

    same(run)


def test_descent_from_given_points_and_from_a_state() -> None:
    def begin() -> pg.Descent:
        starts = [[0.3, -0.2], [1.0, 1.0]]
        return pg.Descent(pg.problem("vlmop2", n=2), pg.RGW(seed=0), 0.1, 6, starts=starts, dtype=torch.float32)

    def run() -> list[Any]:
        begun, resumed = begin(), begin()
        begun.advance(3)
        resumed.load_state_dict(begun.state_dict())
        resumed.advance(3)
        return [resumed.trajectory().points, resumed.trajectory().losses]

    same(run)


# ---- federated learning, and studies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["none", "normalize", "clip"])
@pytest.mark.parametrize("rule", ["mgda", "rgw", *BASELINES])
def test_federated(rule: str, bound: Any) -> None:
    """With every attack that leaves numbers to combine."""
    honest = drawn(6, 10)

    def run() -> list[Any]:
        torch.manual_seed(0)
        made = BASELINES.get(rule) or RULES[rule]()
        attacked = [attack(honest, torch.Generator().manual_seed(1)) for attack in attacks.ON_UPDATES.values()]
        return [[*combine_updates(each, made, bound)] for each in attacked if bool(each.isfinite().all())]

    same(run)


def test_a_server() -> None:
    model = {"weight": drawn(3, 4).numpy(), "count": drawn(2).numpy()}
    replies = {node: {name: 0.5 * array + node for name, array in model.items()} for node in range(3)}

    def run() -> list[Any]:
        server = Server(pg.UPGrad(), momentum=0.5, averaged=["count"])
        return [list(server.step(model, replies).model.values()) for _ in range(2)]

    same(run)


@pytest.mark.parametrize("seed", [None, 3])
def test_networks(seed: int | None) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        return [param.detach() for made in (classifier(5, 4, seed), cnn(seed)) for param in made.parameters()]

    same(run)


def test_studies() -> None:
    study, rows = FairnessStudy(methods=("mas-rand",), seeds=(24, 100), steps=3, width=4), made_adult(300).train

    def run() -> list[Any]:
        FairnessStudy().rehearse()
        FederatedStudy(parts=("table",)).rehearse()
        training = Training(study.setting(), study.aggregator("mas-rand"), rows)
        training.advance(3)
        return [training.parameters(), training.records]

    same(run)
