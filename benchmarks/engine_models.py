"""Problems of the engine benchmark: a model, the data of one step, and the losses; models from plain torch layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Losses of the models in this file.
TASKS = 10

#: Outputs of each head.
OUTPUTS = 16

#: The dtype of autocast for each precision.
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


class Heads(nn.Module):
    """Linear heads with squared errors on the features of one shared trunk."""

    def __init__(self, trunk: nn.Module, width: int, tasks: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(nn.Linear(width, OUTPUTS) for _ in range(tasks))

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        features = self.trunk(inputs)
        pairs = zip(self.heads, targets, strict=True)
        return [functional.mse_loss(head(features), target) for head, target in pairs], features


@dataclass(frozen=True)
class Problem:
    """A model with the data of one step.

    Attributes:
        model: has a ``trunk`` that all losses share, and a list ``heads`` with one module per loss, or an empty one. It
            returns the losses, and the features from which the heads compute them, or None.
        inputs: the arguments of the model. The last one is on the device of the losses.
        precision: the autocast dtype of the forward pass; None for no autocast.
        scaler: scales the losses, for float16.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    precision: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None

    @property
    def device(self) -> torch.device:
        return self.inputs[-1].device

    @property
    def shared(self) -> list[nn.Parameter]:
        return [param for param in self.model.trunk.parameters() if param.requires_grad]

    @property
    def own(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each loss's head; an empty list if there are no heads."""
        return [list(head.parameters()) for head in self.model.heads]

    def forward(self, *inputs: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return one loss per task, and the shared features."""
        with torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            losses, features = self.model(*inputs)
        return losses if self.scaler is None else [self.scaler.scale(loss) for loss in losses], features

    def losses(self) -> list[Tensor]:
        return self.forward(*self.inputs)[0]

    def clear(self) -> None:
        for param in self.model.parameters():
            param.grad = None

    def direction(self) -> Tensor:
        """Return the ``.grad`` of the shared parameters after a step, as one vector."""
        return torch.cat([param.grad.reshape(-1).to(self.device) for param in self.shared])

    def copy(self) -> Problem:
        """Return a copy with separate parameters, so that methods do not share hooks or gradients.

        Frozen parameters are not copied.
        """
        frozen = {id(param): param for param in self.model.parameters() if not param.requires_grad}
        return replace(self, model=copy.deepcopy(self.model, frozen))

    def converted(self, dtype: torch.dtype) -> Problem:
        """Return a copy whose parameters and data have this dtype, without autocast."""
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.inputs)
        return Problem(copy.deepcopy(self.model).to(dtype), inputs)

    def in_precision(self, precision: str) -> Problem:
        """Return the same problem with autocast to this precision, which is also that of frozen parameters."""
        dtype = PRECISIONS[precision]
        for param in self.model.parameters() if dtype else ():
            if not param.requires_grad:
                param.data = param.data.to(dtype)
        return replace(self, precision=dtype)


def with_heads(trunk: nn.Module, width: int, inputs: Tensor, device: str, tasks: int = TASKS) -> Problem:
    """Add heads and targets to a trunk with the given number of features."""
    model = Heads(trunk, width, tasks)
    targets = torch.randn(tasks, len(inputs), OUTPUTS)
    return Problem(model.to(device), (inputs.to(device), targets.to(device)))


def mlp(width: int, batch: int, device: str) -> Problem:
    torch.manual_seed(0)
    widths = [512, width, width, width, width]
    layers = [layer for before, after in pairwise(widths) for layer in (nn.Linear(before, after), nn.ReLU())]
    return with_heads(nn.Sequential(*layers), width, torch.randn(batch, 512), device)


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
    return with_heads(Encoder(width, layers), width, torch.randn(batch, tokens, width), device)


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
    return with_heads(trunk, 512, torch.randn(batch, 3, pixels, pixels), device)


def small_cnn(device: str) -> Problem:
    """Convolutions with BatchNorm in training mode, for the correctness checks."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    )
    return with_heads(trunk, 256, torch.randn(32, 3, 16, 16), device)


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
    found = with_heads(nn.Sequential(below, Move(device), above), 64, inputs, device)
    below.to("cpu")  # `with_heads` moved the whole trunk to the device
    return replace(found, inputs=(inputs, found.inputs[1]))


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
