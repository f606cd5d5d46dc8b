"""A small task with two heads, for tests of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from paretograd.bench import Batch, Data, Metric, Task


class TwoHeads(nn.Module):
    """A trunk with a head for each target."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(5, 1), nn.Linear(5, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [head(features)[:, 0] for head in self.heads]


class Toy(Task):
    """Two regressions that disagree."""

    name = "toy"
    title = "Toy"
    summary = "Two regressions that disagree."
    objectives = ("first", "second")
    metrics = (Metric("first error", 0, higher=False, unit=""), Metric("second error", 1, higher=False, unit=""))
    steps = 30
    batch_size = 16
    dtype = torch.float32

    def load(self, data_dir: str | Path | None = None) -> Data:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
        y = torch.stack([x[:, 0].sin() + x[:, 1], -x[:, 0] + 0.3 * x[:, 2]], dim=1)
        x, y = x.to(self.dtype), y.to(self.dtype)
        return Data((x[:100], y[:100]), (x[100:150], y[100:150]), (x[150:], y[150:]))

    def network(self) -> nn.Module:
        return TwoHeads()

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        x, y = batch
        return [(answer - y[:, k]).square().mean() for k, answer in enumerate(network(x))]

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        return [float(loss) for loss in self.losses(network, rows)]


class Toy64(Toy):
    """The same in float64."""

    dtype = torch.float64


class Other(Toy):
    """The same under another name."""

    name = "other"
    title = "Another toy"
