"""Models of the engine benchmark: ten tasks, each a small linear head with a squared error, on one shared trunk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

TASKS = 10

#: Outputs of each head.
OUTPUTS = 16


@dataclass(frozen=True)
class Problem:
    """A model with the data of one step.

    Attributes:
        trunk: shared by all tasks; returns one row of features per input.
        heads: one per task.
        inputs: the batch.
        targets: shape ``(tasks, batch, outputs)``.
        precision: the autocast dtype of the forward pass; None for no autocast.
        scaler: scales the losses, for float16.
    """

    trunk: nn.Module
    heads: nn.ModuleList
    inputs: Tensor
    targets: Tensor
    precision: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None

    @property
    def shared(self) -> list[nn.Parameter]:
        return list(self.trunk.parameters())

    def losses(self) -> tuple[list[Tensor], Tensor]:
        """Run the forward pass; return one loss per task, and the shared features."""
        with torch.autocast(self.inputs.device.type, self.precision, enabled=self.precision is not None):
            features = self.trunk(self.inputs)
            losses = [
                functional.mse_loss(head(features), target)
                for head, target in zip(self.heads, self.targets, strict=True)
            ]
        return losses if self.scaler is None else [self.scaler.scale(loss) for loss in losses], features

    def clear(self) -> None:
        for param in (*self.trunk.parameters(), *self.heads.parameters()):
            param.grad = None

    def direction(self) -> Tensor:
        """Return the ``.grad`` of the shared parameters after a step, as one vector."""
        return torch.cat([param.grad.reshape(-1).to(self.targets.device) for param in self.shared])

    def copy(self) -> Problem:
        """Return a copy with separate parameters, so that methods do not share hooks or gradients."""
        return replace(self, trunk=copy.deepcopy(self.trunk), heads=copy.deepcopy(self.heads))

    def double(self) -> Problem:
        own = self.copy()
        own.trunk.double()
        own.heads.double()
        return replace(own, inputs=self.inputs.double(), targets=self.targets.double(), precision=None, scaler=None)


def problem(trunk: nn.Module, width: int, inputs: Tensor, device: str) -> Problem:
    """Add heads and targets to a trunk with the given number of features."""
    heads = nn.ModuleList(nn.Linear(width, OUTPUTS) for _ in range(TASKS))
    targets = torch.randn(TASKS, len(inputs), OUTPUTS)
    return Problem(trunk.to(device), heads.to(device), inputs.to(device), targets.to(device))


def mlp(width: int, batch: int, device: str) -> Problem:
    torch.manual_seed(0)
    widths = [512, width, width, width, width]
    layers = [layer for before, after in pairwise(widths) for layer in (nn.Linear(before, after), nn.ReLU())]
    return problem(nn.Sequential(*layers), width, torch.randn(batch, 512), device)


class Encoder(nn.Module):
    """Transformer encoder that averages its tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(tokens).mean(dim=1)


def transformer(width: int, layers: int, batch: int, tokens: int, device: str) -> Problem:
    torch.manual_seed(0)
    return problem(Encoder(width, layers), width, torch.randn(batch, tokens, width), device)


class Block(nn.Module):
    """Two 3x3 convolutions with a skip connection."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.carry = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.carry(x))


def resnet_trunk() -> nn.Sequential:
    """ResNet-18 (He et al., 2016) without its classifier: 512 features, 11.2 million parameters."""
    stages = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(Block(*stage) for stage in (*stages, (512, 512, 1))),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def resnet(batch: int, pixels: int, device: str) -> Problem:
    torch.manual_seed(0)
    trunk = resnet_trunk().eval()  # BatchNorm with fixed statistics, so every method can differentiate it
    return problem(trunk, 512, torch.randn(batch, 3, pixels, pixels), device)


def small_cnn(device: str) -> Problem:
    """Convolutions with BatchNorm in training mode, for the correctness checks."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    )
    return problem(trunk, 256, torch.randn(32, 3, 16, 16), device)


class Move(nn.Module):
    """Move features to another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.device)


def two_devices(device: str) -> Problem:
    """Return a model with its first layers on the CPU, and all others and the heads on the device."""
    torch.manual_seed(0)
    below = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
    above = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
    inputs = torch.randn(32, 64)
    found = replace(problem(nn.Sequential(below, Move(device), above), 64, inputs, device), inputs=inputs)
    below.to("cpu")  # `problem` moved the whole trunk to the device
    return found


#: By device and name: the description of a model on the page, and the function that builds it.
MODELS: dict[str, dict[str, tuple[str, Callable[[], Problem]]]] = {
    "cpu": {
        "mlp": ("MLP 512 to 4 x 1,024, batch 64", lambda: mlp(1024, 64, "cpu")),
    },
    "cuda": {
        "mlp": ("MLP 512 to 4 x 2,048, batch 256", lambda: mlp(2048, 256, "cuda")),
        "transformer": (
            "Transformer encoder, 6 layers of width 512 with 8 heads, 32 x 64 tokens",
            lambda: transformer(512, 6, 32, 64, "cuda"),
        ),
        "resnet": ("ResNet-18, BatchNorm in eval mode, 64 images of 64 x 64", lambda: resnet(64, 64, "cuda")),
    },
}


def checks(device: str) -> dict[str, Problem]:
    """Return small problems on which the engines are compared with the naive loop before timing."""
    half = replace(mlp(256, 64, device), precision=torch.float16, scaler=torch.amp.GradScaler(device))
    return {
        "MLP": mlp(256, 64, device),
        "CNN, BatchNorm in training mode": small_cnn(device),
        "Transformer layer, bfloat16 autocast": replace(transformer(128, 1, 16, 32, device), precision=torch.bfloat16),
        "MLP, float16 autocast and GradScaler": half,
        "MLP, its first layer on the CPU": two_devices(device),
    }
