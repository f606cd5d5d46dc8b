"""Accelerate's loop, as in `examples/accelerate_loop.py`: the steps of a plain loop, and exact resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg

accelerate = pytest.importorskip("accelerate", reason="comes with the extra: pip install 'paretograd[examples]'")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forgets the devices and the options that Accelerate keeps for the process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def losses(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    out = model(x)
    return [(out[:, 0] - x[:, 0]).square().mean(), (out[:, 1] + 3 * x[:, 0]).square().mean()]


def start() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(26, 4)  # the last of seven batches has two samples
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), DataLoader(TensorDataset(x), batch_size=4)


class Loop:
    """The loop of the example."""

    def __init__(self, rule: pg.Aggregator, parts: int) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=parts)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(*start())
        self.rule = rule.as_module()
        self.accelerator.register_for_checkpointing(self.rule)

    def train(self, epochs: int) -> Loop:
        rows = pg.accumulate()
        for _ in range(epochs):
            for (x,) in self.loader:
                with self.accelerator.accumulate(self.model):
                    rows.add(losses(self.model, x), samples=len(x))
                    if self.accelerator.sync_gradients:
                        rows.step(self.rule)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        return self


@pytest.mark.parametrize("parts", [1, 3])
def test_takes_the_steps_of_a_plain_loop_on_larger_batches(parts: int) -> None:
    """Micro-batches of four, four and two samples are one batch of ten. Sums of float32 differ in their order."""
    found = Loop(pg.UPGrad(), parts).train(2).model
    model, optimizer, loader = start()
    for _ in range(2):
        for group in torch.cat([x for (x,) in loader]).split(4 * parts):
            optimizer.zero_grad()
            pg.backward(losses(model, group), pg.UPGrad())
            optimizer.step()
    for name, param in model.named_parameters():
        torch.testing.assert_close(found.get_parameter(name), param, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [lambda: pg.GradVac(beta=0.3), lambda: pg.RGW(seed=3), pg.MoCo])
def test_resumes_exactly(rule: Callable[[], pg.Aggregator], tmp_path: Path) -> None:
    whole = Loop(rule(), 3).train(4)
    Loop(rule(), 3).train(2).accelerator.save_state(str(tmp_path))
    resumed = Loop(rule(), 3)
    resumed.accelerator.load_state(str(tmp_path))
    resumed.train(2)
    for name, param in whole.model.named_parameters():
        assert torch.equal(resumed.model.get_parameter(name), param)
