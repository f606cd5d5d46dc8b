"""`MultiObjectiveTrainer`: the same parameters as a plain loop with `pg.accumulate`, and exact resuming."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from support.agreement import agree
from torch import Tensor, nn
from transformers import TrainingArguments

import paretograd as pg
from paretograd.integrations.transformers import MultiObjectiveTrainer


class Net(nn.Module):
    """A trunk with two heads. It accepts any keyword, from which `Trainer` may conclude that it scales its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x: Tensor, labels: Tensor | None = None, **_: Any) -> dict[str, Tensor]:
        features = self.trunk(x)
        return {"logits": torch.cat([head(features) for head in self.heads], dim=1)}


def net_losses(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    near, far = net(x)["logits"].unbind(dim=1)
    return {"near": (near - x[:, 0]).square().mean(), "far": (far + 3 * x[:, 0] - x[:, 1]).square().mean()}


class Recording(MultiObjectiveTrainer):
    """Keeps the batches of training, so that a plain loop can see the same."""

    def compute_loss(self, model: nn.Module, inputs: dict, return_outputs: bool = False, **_: Any) -> Any:
        x = inputs["x"]
        if model.training:
            vars(self).setdefault("seen", []).append(x.clone())
        losses = net_losses(model, x)
        return (losses, model(x)) if return_outputs else losses


def rows(count: int) -> list[dict[str, Tensor]]:
    """Return samples."""
    generator = torch.Generator().manual_seed(1)
    return [{"x": x, "labels": x[:2]} for x in torch.randn(count, 5, generator=generator)]


def trainer(rule: Any, folder: Path, count: int = 28, kind: type = Recording, **options: Any) -> Any:
    defaults = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05, "max_grad_norm": 0.0}
    defaults |= {"optim": "sgd", "lr_scheduler_type": "constant", "report_to": "none", "save_strategy": "no"}
    defaults |= {"use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False, "dataloader_pin_memory": False}
    args = TrainingArguments(str(folder), **defaults | options)
    return kind(model=Net(), args=args, train_dataset=rows(count), eval_dataset=rows(8), rule=rule)


def train_plainly(rule: Any, seen: list[Tensor], parts: int, clip: float, epochs: int = 2) -> Net:
    """Train with `pg.accumulate`: every ``parts`` micro-batches are a step, and so are those left at an epoch's end."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in torch.arange(len(seen)).chunk(epochs):
        for group in epoch.split(parts):
            optimizer.zero_grad()
            with pg.accumulate() as total:
                for number in group.tolist():
                    total.add({name: loss / len(group) for name, loss in net_losses(net, seen[number]).items()})
                total.step(rule)
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    return net


@pytest.mark.parametrize("rule", [pg.UPGrad, pg.GradVac, pg.NashMTL, pg.MoCo])
@pytest.mark.parametrize(("parts", "clip"), [(1, 0.0), (3, 0.0), (3, 0.2)])
def test_takes_the_steps_of_a_plain_loop(rule: Callable[[], Any], parts: int, clip: float, tmp_path: Path) -> None:
    """Seven batches leave one over for the last step of an epoch, a mean over one micro-batch."""
    used = trainer(rule(), tmp_path, gradient_accumulation_steps=parts, max_grad_norm=clip)
    used.train()
    assert used.state.global_step == 2 * -(-7 // parts)
    agree(used.model, train_plainly(rule(), used.seen, parts, clip))


def test_losses_that_are_divided_already(tmp_path: Path) -> None:
    class Divided(Recording):
        loss_is_scaled_for_ga = True

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return {name: loss / 7 for name, loss in super().compute_loss(*args, **kwargs).items()}

    used = trainer(pg.MGDA(), tmp_path, kind=Divided, gradient_accumulation_steps=7)
    used.train()
    agree(used.model, train_plainly(pg.MGDA(), used.seen, 7, 0.0))


@pytest.mark.parametrize("parts", [1, 3])
def test_bfloat16(parts: int, tmp_path: Path) -> None:
    used = trainer(pg.UPGrad(), tmp_path, bf16=True, gradient_accumulation_steps=parts)
    used.train()
    agree(used.model, train_plainly(pg.UPGrad(), used.seen, parts, 0.0), rtol=0.1, atol=0.02)  # bfloat16 has 8 bits


class Scaled(Recording):
    """Training in float16. Accelerate refuses it on a CPU, where torch has it, so precision and scaler are set here."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"

    scale = 16.0


class Overflowing(Scaled):
    scale = 2.0**30


@pytest.fixture
def precision() -> Iterator[None]:
    """Forgets the precision that Accelerate keeps for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("parts", [1, 3])
def test_float16_with_a_scaler(parts: int, tmp_path: Path) -> None:
    """Gradients are unscaled before they are clipped. float16 has eleven bits."""
    used = trainer(pg.UPGrad(), tmp_path, kind=Scaled, gradient_accumulation_steps=parts, max_grad_norm=0.2)
    used.train()
    agree(used.model, train_plainly(pg.UPGrad(), used.seen, parts, 0.2), rtol=0.02, atol=4e-3)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("parts", [1, 3])
def test_a_scaler_skips_steps_that_overflow(parts: int, tmp_path: Path) -> None:
    used = trainer(pg.UPGrad(), tmp_path, kind=Overflowing, gradient_accumulation_steps=parts, num_train_epochs=20)
    used.train()
    assert used.accelerator.scaler.get_scale() < Overflowing.scale
    x = torch.stack([row["x"] for row in rows(28)])
    assert sum(net_losses(used.model, x).values()) < 0.5 * sum(net_losses(Net(), x).values())


@pytest.mark.usefixtures("precision")
def test_a_scaler_refuses_rules_that_it_disturbs(tmp_path: Path) -> None:
    with pytest.raises(pg.ParameterError, match="GradScaler cannot undo"):
        trainer(pg.NashMTL(), tmp_path, kind=Scaled).train()


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (lambda: pg.GradVac(beta=0.3), 1),
        (lambda: pg.GradVac(beta=0.3), 3),
        (lambda: pg.RGW(seed=3), 3),
        (pg.MoCo, 3),
        (pg.DWA, 1),
    ],
)
def test_resumes_exactly(rule: Callable[[], Any], parts: int, tmp_path: Path) -> None:
    """The checkpoint has the state of the rule: a run that resumes at step 3 ends bit by bit where a whole one does."""
    options = {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": parts, "optim": "adamw_torch"}
    whole = trainer(rule(), tmp_path, **options)
    whole.train()
    assert (tmp_path / "checkpoint-3" / "rule.pt").exists()
    resumed = trainer(rule(), tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert len(resumed.seen) < len(whole.seen)
    agree(resumed.model, whole.model, rtol=0.0, atol=0.0)


def test_a_checkpoint_without_the_rule_warns(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 3}
    trainer(pg.GradVac(), tmp_path, **options).train()
    (tmp_path / "checkpoint-3" / "rule.pt").unlink()
    with pytest.warns(UserWarning, match=r"has no rule\.pt: the rule starts anew"):
        trainer(pg.GradVac(), tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_logs_metrics_by_name_and_evaluates_the_sum(tmp_path: Path) -> None:
    used = trainer(pg.UPGrad(), tmp_path, logging_steps=1, eval_strategy="epoch", gradient_accumulation_steps=7)
    used.train()
    first, second, *_ = [entry for entry in used.state.log_history if "loss" in entry]
    start = [net_losses(Net(), x) for x in used.seen[:7]]
    assert first["mo/loss/far"] == pytest.approx(
        torch.stack([losses["far"] for losses in start]).mean().item(), rel=1e-5
    )
    assert {"mo/gamma", "mo/conflicts", "mo/weight/near", "mo/weight/far", "grad_norm"} <= set(second)
    with torch.no_grad():
        x = torch.stack([row["x"] for row in rows(8)])
        assert used.evaluate()["eval_loss"] == pytest.approx(sum(net_losses(used.model, x).values()).item(), rel=1e-5)
        assert used.predict(rows(8)).predictions.shape == (8, 2)
    assert "mo/gamma" not in used.evaluate()
    assert used.step.certificate.non_conflicting


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    class Single(Recording):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)["near"]

    with pytest.raises(pg.InputError, match="needed as a dictionary"):
        trainer(pg.UPGrad(), tmp_path, kind=Single).train()
    with pytest.raises(pg.ParameterError, match="parameters of its own"):
        trainer(pg.UncertaintyWeighting(2), tmp_path)
    with pytest.raises(pg.ParameterError, match="takes its weights from the losses of the whole batch"):
        trainer(pg.DWA(), tmp_path, gradient_accumulation_steps=2).train()
    with pytest.raises(pg.ParameterError, match="updates the parameters during the backward pass"):
        trainer(pg.UPGrad(), tmp_path)._backward(torch.zeros(()), learning_rate=0.1)
    with pytest.raises(pg.ParameterError, match="auto_find_batch_size"):
        trainer(pg.UPGrad(), tmp_path, auto_find_batch_size=True, gradient_accumulation_steps=2).train()
    sharded = trainer(pg.UPGrad(), tmp_path)
    sharded.accelerator.state.distributed_type = DistributedType.FSDP
    try:
        with pytest.raises(pg.ParameterError, match="the Trainer uses FSDP"):
            sharded.train()
    finally:
        sharded.accelerator.state.distributed_type = DistributedType.NO


def test_two_processes() -> None:
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parent / "tests", here.parent / "src")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, str(here / "two_processes.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.count("2 processes agree with one") == 2, done.stderr
