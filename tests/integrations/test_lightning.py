"""`MultiObjectiveModule`: the same parameters as a plain loop with `pg.accumulate`, and exact resuming."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.agreement import agree
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg

lightning = pytest.importorskip("lightning", reason="comes with the extra: pip install 'paretograd[lightning]'")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from paretograd.integrations.lightning import MultiObjectiveModule  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.heads = nn.ModuleDict({"near": nn.Linear(8, 1), "far": nn.Linear(8, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.trunk(x)
        return {name: head(features)[:, 0] for name, head in self.heads.items()}


def net_losses(net: Net, x: Tensor) -> dict[str, Tensor]:
    found = net(x)
    return {
        "near": (found["near"] - x[:, 0]).square().mean(),
        "far": (found["far"] + 3 * x[:, 0] - x[:, 1]).square().mean(),
    }


class Module(MultiObjectiveModule):
    def __init__(self, rule: Any) -> None:
        super().__init__(rule=rule)
        torch.manual_seed(0)
        self.net = Net()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.losses(net_losses(self.net, batch[0]))

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("validated", sum(net_losses(self.net, batch[0]).values()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)


def batches(count: int = 7) -> DataLoader:
    """Return batches of four samples, without shuffling."""
    return DataLoader(
        TensorDataset(torch.randn(4 * count, 5, generator=torch.Generator().manual_seed(1))), batch_size=4
    )


def fit(module: Module, folder: Path, count: int = 7, **options: Any) -> Module:
    defaults = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "default_root_dir": folder}
    trainer = lightning.Trainer(**QUIET | defaults | options)
    trainer.fit(module, batches(count))
    return module


def train_plainly(rule: pg.Aggregator, count: int, parts: int, clip: float, epochs: int = 2) -> Net:
    """Train with `pg.accumulate`: every ``parts`` micro-batches are a step, and so are those left at an epoch's end."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        loader = [x for (x,) in batches(count)]
        for start in range(0, count, parts):
            optimizer.zero_grad()
            with pg.accumulate() as rows:
                for x in loader[start : start + parts]:
                    rows.add({name: loss / parts for name, loss in net_losses(net, x).items()})
                rows.step(rule)
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    return net


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("rule", [pg.UPGrad, pg.GradVac, pg.NashMTL, pg.MoCo])
@pytest.mark.parametrize(("parts", "clip"), [(1, 0.0), (3, 0.0), (3, 0.2)])
def test_takes_the_steps_of_a_plain_loop(rule: Callable[[], Any], parts: int, clip: float, tmp_path: Path) -> None:
    """Seven batches leave one over for the last step of an epoch. Its loss is divided by three, as Lightning does."""
    options = {"accumulate_grad_batches": parts, "gradient_clip_val": clip or None}
    module = fit(Module(rule()), tmp_path, **options)
    agree(module.net, train_plainly(rule(), 7, parts, clip))


def test_accumulation_is_one_step_of_the_rule(tmp_path: Path) -> None:
    """MGDA of the mean differs from the mean of MGDA, so this would fail if the rule saw each micro-batch."""
    module = fit(Module(pg.MGDA()), tmp_path, 6, accumulate_grad_batches=3, max_epochs=1)
    agree(module.net, train_plainly(pg.MGDA(), 6, 3, 0.0, epochs=1))
    assert module.trainer.global_step == 2
    separate = train_plainly(pg.MGDA(), 6, 1, 0.0, epochs=1)
    assert not torch.allclose(module.net.trunk[0].weight, separate.trunk[0].weight, rtol=1e-3)


@pytest.mark.parametrize("parts", [1, 2])
def test_bfloat16(parts: int, tmp_path: Path) -> None:
    module = fit(Module(pg.UPGrad()), tmp_path, 6, precision="bf16-mixed", accumulate_grad_batches=parts)
    assert module.net.trunk[0].weight.dtype is torch.float32
    agree(module.net, train_plainly(pg.UPGrad(), 6, parts, 0.0), rtol=0.1, atol=0.02)  # bfloat16 has 8 bits


@pytest.mark.parametrize("parts", [1, 2])
def test_float16_with_a_scaler(parts: int, tmp_path: Path) -> None:
    """The scaler skips the first steps, whose gradients overflow, and then the steps are those of float32."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    options = {"accumulate_grad_batches": parts, "gradient_clip_val": 1e6, "max_epochs": 10}
    module = fit(Module(pg.UPGrad()), tmp_path, 6, plugins=[plugin], **options)
    assert scaler.get_scale() < 2.0**30
    values = sum(net_losses(module.net, batches(6).dataset[:][0]).values())
    start = sum(net_losses(Module(pg.UPGrad()).net, batches(6).dataset[:][0]).values())
    assert torch.isfinite(values)
    assert values < 0.5 * start


def test_a_scaler_scales_nothing_away(tmp_path: Path) -> None:
    """A scale of 2^4 overflows nothing, and float16 has eleven bits."""
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=16.0))
    module = fit(Module(pg.UPGrad()), tmp_path, 6, plugins=[plugin], accumulate_grad_batches=2)
    agree(module.net, train_plainly(pg.UPGrad(), 6, 2, 0.0), rtol=0.02, atol=4e-3)


@pytest.mark.parametrize("rule", [pg.NashMTL, pg.MoCo])
def test_refuses_rules_that_a_scaler_disturbs(rule: Callable[[], Any], tmp_path: Path) -> None:
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(pg.ParameterError, match="GradScaler cannot undo"):
        fit(Module(rule()), tmp_path, plugins=[plugin])


@pytest.mark.parametrize("rule", [lambda: pg.GradVac(beta=0.3), lambda: pg.RGW(seed=3), pg.MoCo, pg.DWA])
def test_resumes_exactly(rule: Callable[[], Any], tmp_path: Path) -> None:
    """The checkpoint has the state of the rule: two epochs and two more are four, bit by bit."""
    whole = fit(Module(rule()), tmp_path, max_epochs=4)
    half = fit(Module(rule()), tmp_path, max_epochs=2)
    half.trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Module(rule())
    trainer = lightning.Trainer(**QUIET, max_epochs=4, logger=False, enable_checkpointing=False)
    trainer.fit(resumed, batches(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    agree(resumed.net, whole.net, rtol=0.0, atol=0.0)


def test_logs_metrics_by_name_and_leaves_validation_alone(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="run", version=0)
    module = Module(pg.UPGrad())
    trainer = lightning.Trainer(**QUIET, max_epochs=1, logger=logger, log_every_n_steps=1, enable_checkpointing=False)
    trainer.fit(module, batches(), batches(3))
    header, first, *_ = (tmp_path / "run" / "version_0" / "metrics.csv").read_text().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    start = net_losses(Module(pg.UPGrad()).net, next(iter(batches()))[0])
    assert float(row["mo/loss/far"]) == pytest.approx(start["far"].item(), rel=1e-6)
    assert {"mo/gamma", "mo/conflicts", "mo/weight/near", "mo/weight/far", "validated"} <= set(row)
    assert module.step is not None
    assert module.step.certificate.non_conflicting
    with torch.no_grad():
        expected = torch.stack([sum(net_losses(module.net, x).values()) for (x,) in batches(3)]).mean()
    assert trainer.callback_metrics["validated"] == pytest.approx(expected.item(), rel=1e-6)


def test_learned_weights_are_in_the_checkpoint_and_the_optimizer(tmp_path: Path) -> None:
    class Learned(Module):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    module = fit(Learned(pg.UncertaintyWeighting(2)), tmp_path)
    assert any(name.startswith("rule.") for name in module.state_dict())
    assert all(param.abs().max() > 0 for param in module.rule.parameters())


class Changed(Module):
    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return 2 * super().training_step(batch, number) if number else self.net(batch[0])["near"].mean()


class Single(Module):
    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.losses(net_losses(self.net, batch[0])["near"])


class Manual(Module):
    def __init__(self, rule: Any) -> None:
        super().__init__(rule)
        self.automatic_optimization = False


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(pg.InputError, match="needed as a dictionary"):
        fit(Single(pg.UPGrad()), tmp_path)
    with pytest.raises(pg.InputError, match="is not the sum that stands for"):
        fit(Changed(pg.UPGrad()), tmp_path)
    with pytest.raises(pg.ParameterError, match="automatic_optimization is False"):
        fit(Manual(pg.UPGrad()), tmp_path)
    with pytest.raises(pg.ParameterError, match="needs several independent batches"):
        Module(pg.MoDo())
    with pytest.raises(pg.ParameterError, match=r"paretograd\.get"):
        Module("upgrad")
    with pytest.raises(pg.ParameterError, match="takes its weights from the losses of the whole batch"):
        fit(Module(pg.STCH(mu=0.1)), tmp_path, accumulate_grad_batches=2)
