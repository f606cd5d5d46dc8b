"""`MultiObjectiveModel`: the same parameters as a plain loop with `pg.backward`, and exact resuming."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["DDE_BACKEND"] = "pytorch"
dde = pytest.importorskip("deepxde")

import paretograd as pg  # noqa: E402
from paretograd.integrations.deepxde import MultiObjectiveModel  # noqa: E402


def problem(kind: type, **options: Any) -> Any:
    """Return a compiled model for u' = -c u, u(0) = 1 with an observation, where c is to be found, too."""
    dde.config.set_random_seed(0)
    c = dde.Variable(0.5)
    place = dde.geometry.TimeDomain(0, 1)
    start = dde.icbc.IC(place, lambda t: 1.0, lambda _, on_initial: on_initial)
    seen = dde.icbc.PointSetBC(torch.tensor([[1.0]]).numpy(), torch.tensor([[0.2]]).numpy())
    data = dde.data.PDE(place, lambda t, u: dde.grad.jacobian(u, t) + c * u, [start, seen], 20, 2)
    model = kind(data, dde.nn.FNN([1, 8, 1], "tanh", "Glorot uniform"))
    options = {"lr": 1e-2, "loss_weights": [1.0, 2.0, 3.0], "external_trainable_variables": c, "verbose": 0} | options
    model.compile("adam", **options)
    return model


def train_plainly(rule: pg.Aggregator, steps: int, decay: float = 1.0) -> Any:
    model = problem(dde.Model)
    params = [*model.net.parameters(), *model.external_trainable_variables]
    optimizer = torch.optim.Adam(params, lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, decay)
    for _ in range(steps):
        x, y, auxiliary = model.data.train_next_batch()
        losses = model.outputs_losses_train(x, y, auxiliary)[1]
        optimizer.zero_grad()
        pg.backward(losses, rule, params)
        optimizer.step()
        schedule.step()
    return model


def parameters(model: Any) -> list[torch.Tensor]:
    return [*model.net.parameters(), *model.external_trainable_variables]


@pytest.mark.parametrize("rule", [pg.UPGrad, pg.ConFIG, pg.GradVac, pg.MoCo])
def test_takes_the_steps_of_a_plain_loop(rule: Callable[[], Any]) -> None:
    """The same operations on one thread, so the parameters are the same bit by bit."""
    model = problem(MultiObjectiveModel, rule=rule(), decay=("step", 5, 0.5))
    model.train(iterations=12, display_every=12, verbose=0)
    expected = train_plainly(rule(), 12, 0.5)
    for found, param in zip(parameters(model), parameters(expected), strict=True):
        assert torch.equal(found, param)
    assert model.external_trainable_variables[0].item() != 0.5


def test_the_sum_is_deepxdes_own() -> None:
    """DeepXDE differentiates the sum, and weights of one do the same. float32 may add up in another order."""
    model = problem(MultiObjectiveModel, rule=pg.WeightedSum())
    model.train(iterations=12, display_every=12, verbose=0)
    theirs = problem(dde.Model)
    theirs.train(iterations=12, display_every=12, verbose=0)
    for found, param in zip(parameters(model), parameters(theirs), strict=True):
        torch.testing.assert_close(found, param, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", [lambda: pg.GradVac(beta=0.3), lambda: pg.RGW(seed=3), pg.MoCo, pg.DWA])
def test_resumes_exactly(rule: Callable[[], Any], tmp_path: Path) -> None:
    """DeepXDE saves the network and its optimizer. External variables it does not save, so there are none here."""
    options = {"external_trainable_variables": None}
    whole = problem(MultiObjectiveModel, rule=rule(), **options)
    whole.train(iterations=12, display_every=12, verbose=0)
    half = problem(MultiObjectiveModel, rule=rule(), **options)
    half.train(iterations=6, display_every=12, verbose=0, model_save_path=str(tmp_path / "model"))
    resumed = problem(MultiObjectiveModel, rule=rule(), **options)
    resumed.train(iterations=6, display_every=12, verbose=0, model_restore_path=str(tmp_path / "model-6.pt"))
    for found, param in zip(parameters(resumed), parameters(whole), strict=True):
        assert torch.equal(found, param)
    (tmp_path / "model-6.rule.pt").unlink()
    with pytest.warns(UserWarning, match="the rule starts anew"):
        resumed.restore(str(tmp_path / "model-6.pt"))


def test_names() -> None:
    model = problem(MultiObjectiveModel, rule=pg.UPGrad(), names=["equation", "start", "seen"])
    model.train(iterations=1, display_every=1, verbose=0)
    assert model.step.names == ("equation", "start", "seen")
    assert "mo/weight/seen" in model.step.metrics()


def test_learned_weights_are_trained() -> None:
    model = problem(MultiObjectiveModel, rule=pg.UncertaintyWeighting(3))
    model.train(iterations=3, display_every=3, verbose=0)
    assert all(param.abs().min() > 0 for param in model.rule.parameters())


def test_errors_say_what_to_do() -> None:
    with pytest.raises(pg.ParameterError, match="2 names for 3 losses"):
        problem(MultiObjectiveModel, rule=pg.UPGrad(), names=["equation", "start"]).train(iterations=1, verbose=0)
    model = problem(dde.Model)
    with pytest.raises(pg.ParameterError, match="needs the values of one function"):
        MultiObjectiveModel(model.data, model.net).compile("L-BFGS", rule=pg.UPGrad())
    code = "import paretograd as pg; from paretograd.integrations.deepxde import MultiObjectiveModel as M\n"
    code += "import deepxde.backend as b; b.backend_name = 'jax'; M(None, None).compile('adam', rule=pg.UPGrad())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DeepXDE's backend is jax; paretograd needs pytorch" in done.stderr
