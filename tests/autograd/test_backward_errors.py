"""Wrong input to `backward`: a clear message, and every ``.grad`` as it was."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from support.backward import untouched
from support.models import Losses, mlp, task_heads, three
from torch import Tensor, nn

import paretograd as pg
from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError

POISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nan factor": lambda loss, _: loss * math.nan,
    "infinite factor": lambda loss, _: loss * math.inf,
    "root of zero": lambda loss, w: loss + (w - w.detach()).sum().sqrt(),  # slope 1 / 0
    "log of zero": lambda loss, w: loss + (w - w.detach()).sum().log(),
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("bad", [0, 2])
def test_a_gradient_that_is_not_finite_names_its_objective(engine_of_every_way: str, poison: str, bad: int) -> None:
    """And no other: the objectives beside it must not pass through its slope, not even with a zero in front."""
    problem = mlp()
    losses = problem.losses()
    losses[bad] = POISONS[poison](losses[bad], problem.params[0])
    raised = untouched(
        problem.params,
        lambda: pg.backward(losses, pg.UPGrad(), engine=engine_of_every_way),
        pg.NonFiniteGradientError,
        "objective",
    )
    assert raised.objectives == [bad]


@pytest.mark.parametrize("poison", POISONS)
def test_so_does_one_in_a_head(engine_of_every_way: str, poison: str) -> None:
    problem = task_heads()
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
        ({"depth": a, "seg": 2.0}, DTypeError, r"losses\['seg'\] is a float"),
        ({}, ShapeError, "empty"),
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
        (
            {"aggregator": "stch(mu=1)"},
            ParameterError,
            r"give a rule, such as paretograd\.scalarizer\('stch\(mu=1\)'\)",
        ),
        ({"aggregator": pg.MGDA}, ParameterError, r"give a rule, such as paretograd\.UPGrad\(\)"),
        ({"engine": "fast"}, ParameterError, "auto, jacobian, batched, gramian"),
        ({"engine": "gramian", "chunk": 2}, ParameterError, "all losses at a time.*engine='batched'"),
        ({"max_memory": -1}, ParameterError, "number of bytes"),
        ({"max_memory": 1e9}, ParameterError, "number of bytes"),
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
