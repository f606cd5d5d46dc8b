"""`TrainingLosses`, which the adapters share, and what they say if their framework is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import paretograd as pg
from paretograd.integrations.training import TrainingLosses


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def losses(model: nn.Linear, number: int = 0) -> dict[str, torch.Tensor]:
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    return {"a": model(x).square().mean(), "b": (model(x) - 3.0).square().mean()}


def test_factors_between_the_sum_and_backward_reach_every_loss(model: nn.Linear) -> None:
    """The framework divides by 3 and a scaler multiplies by 8: two exact factors and one rounding."""
    used = TrainingLosses(pg.UPGrad())
    total = used.total(losses(model))
    assert total.item() == pytest.approx(sum(loss.item() for loss in losses(model).values()), rel=1e-15)
    used.backward(total / 3 * 8, last=True, scaled=True)
    found = model.weight.grad.clone()
    model.zero_grad()
    step = pg.backward(losses(model), pg.UPGrad())
    torch.testing.assert_close(found, model.weight.grad * 8 / 3, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(used.step.weights, step.weights, rtol=1e-12, atol=0.0)
    assert used.metrics()["mo/loss/a"] == losses(model)["a"].item()  # without the factors


def test_a_large_factor_does_not_overflow_losses_in_float16(model: nn.Linear) -> None:
    """2^14 times the second loss exceeds float16, its gradient does not. A loss may have a dimension."""
    used = TrainingLosses(pg.UPGrad())
    halved = {name: loss.half().reshape(1) for name, loss in losses(model).items()}
    used.backward(used.total(halved) * 2.0**14, last=True, scaled=True)
    assert used.step.finite
    assert torch.isfinite(model.weight.grad).all()


def test_micro_batches_wait_for_the_last(model: nn.Linear) -> None:
    used = TrainingLosses(pg.GradVac())
    for number in range(3):
        assert used.count == number
        used.backward(used.total(losses(model, number)), last=number == 2, scaled=False)
        assert (model.weight.grad is None) == (number < 2)
    assert used.count == 0
    expected = torch.stack([losses(model, number)["b"] for number in range(3)]).mean().item()
    assert used.metrics()["mo/loss/b"] == pytest.approx(expected, rel=1e-15)


def test_evaluation_between_sum_and_backward_changes_nothing(model: nn.Linear) -> None:
    used = TrainingLosses(pg.UPGrad())
    total = used.total(losses(model))
    with torch.no_grad():
        used.total(losses(model, 1))
    used.backward(total, last=True, scaled=False)
    assert used.metrics()["mo/loss/a"] == losses(model)["a"].item()


def test_errors_leave_no_micro_batches(model: nn.Linear) -> None:
    used = TrainingLosses(pg.UPGrad())
    used.backward(used.total(losses(model)), last=False, scaled=False)
    renamed = {name.upper(): loss for name, loss in losses(model).items()}
    with pytest.raises(pg.ParameterError, match="losses named"):
        used.backward(used.total(renamed), last=True, scaled=False)
    assert used.count == 0
    assert model.weight.grad is None


def test_a_loss_that_is_not_finite_is_named(model: nn.Linear) -> None:
    used = TrainingLosses(pg.UPGrad())

    def bad() -> dict[str, torch.Tensor]:
        return losses(model) | {"b": losses(model)["b"] * float("nan")}

    with pytest.raises(pg.NonFiniteGradientError, match="objective 'b'"):
        used.backward(used.total(bad()), last=True, scaled=False)
    used.backward(used.total(bad()), last=True, scaled=True)  # a GradScaler sees it, and skips the step
    assert not used.step.finite
    assert not torch.isfinite(model.weight.grad).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got an empty dictionary"),
        (torch.ones(()), "got a Tensor"),
        ({"a": torch.ones(2)}, r"losses\['a'\] is no scalar tensor"),
        ({"a": 1.0}, r"losses\['a'\] is no scalar tensor"),
    ],
)
def test_what_is_no_dictionary_of_scalars_is_refused(given: object, message: str) -> None:
    with pytest.raises(pg.InputError, match=message):
        TrainingLosses(pg.UPGrad()).total(given)


MISSING = """
import importlib, sys
for name in ("transformers", "lightning", "deepxde"):
    sys.modules[name] = None
    try:
        importlib.import_module(f"paretograd.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_a_missing_framework_is_named_with_its_extra() -> None:
    """Frameworks are hidden, whether or not they are installed."""
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=False)
    for name, line in zip(("transformers", "lightning", "deepxde"), done.stdout.splitlines(), strict=True):
        assert f"needs {name}, which is not installed" in line
        assert f"pip install 'paretograd[{name}]'" in line
