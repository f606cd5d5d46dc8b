"""CIFAR-10 as ten binary tasks: is the image of this class, or of another?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from paretograd.bench.auc import auc
from paretograd.bench.task import Batch, Data, Metric, Source, Task
from paretograd.problems.cifar10 import load_cifar10
from paretograd.problems.cifar10.data import BINARY, FILES, Images
from paretograd.problems.networks import normalized

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

#: Training images that serve for validation: the last ones.
_VALIDATION = 5_000
#: Rows of each part of the small variant and of made data.
_SMALL, _MADE = (5_000, 1_000, 1_000), (1_000, 500, 500)
#: Images that `scores` evaluates at once; bounds the memory.
_CHUNK = 1_000


class CIFAR10(Task):
    """Ten objectives on one small residual network.

    **Set-up.** One class against the rest (Rifkin and Klautau, 2004), with one trunk for all classes. The trunk is the
    residual network of He et al. (2016) for CIFAR-10, cut to one block for each of the widths 16, 32 and 64, with a
    stride of two in its first layer, and with GroupNorm (Wu and He, 2018) instead of BatchNorm, whose running
    statistics are no parameters. Each class has a linear head. The network is far from the state of the
    art: ten backward passes a step, for many rules and seeds, must stay cheap.

    **Losses.** The binary cross entropy of each class. One row in ten is positive. Positive rows are not weighted: the
    share is the same for every class, so weights would not change the balance between objectives, and without them the
    logits of different classes can be compared. The heads start at the logit of 1/10, as in Lin et al. (2017): the
    first steps would otherwise only learn the biases.

    **Metrics.** The area under the ROC curve of each class, which needs no threshold, and the accuracy of the class
    with the highest logit among all ten. No single loss determines the latter, and it does not choose
    hyper-parameters.

    **Rows.** 45,000 of the 50,000 training images; the last 5,000 of them, half of the fifth file, for validation; the
    10,000 test images. Images are in random order. Training images are mirrored at random.

    **Data.** The authors state no licence; they ask to cite Krizhevsky (2009). `paretograd.problems.cifar10` verifies
    the records.
    """

    name = "cifar10"
    title = "CIFAR-10"
    summary = "Ten classes, one against the rest, on a small residual network."
    sources = (
        Source(
            title="CIFAR-10",
            folder=BINARY,
            files=FILES,
            licence="none stated; cite the technical report",
            citation="Krizhevsky (2009). Learning multiple layers of features from tiny images. University of Toronto",
        ),
    )

    def __init__(self, *, small: bool = False) -> None:
        super().__init__(small=small)
        self.objectives = CLASSES
        areas = (Metric(f"{name}, AUC", objective) for objective, name in enumerate(CLASSES))
        self.metrics = (*areas, Metric("ten classes, accuracy", None))
        self.steps, self.batch_size = (100, 16) if small else (1_000, 128)

    def load(self, data_dir: str | Path | None = None) -> Data:
        train, test = load_cifar10(data_dir)
        cut = len(train.labels) - _VALIDATION
        data = Data(tuple(part[:cut] for part in train), tuple(part[cut:] for part in train), tuple(test))
        return Data(*map(_first, data, _SMALL)) if self.small else data

    def made(self) -> Data:
        """Return noisy stripes, whose direction and colour depend on the class."""
        generator = torch.Generator().manual_seed(0)
        return Data(*(tuple(_stripes(count, generator)) for count in _MADE))

    def network(self) -> nn.Module:
        return ResNet(width=4 if self.small else 16)

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        pixels, labels = batch
        logits = network(pixels)
        return [binary_cross_entropy_with_logits(one, (labels == own).to(one)) for own, one in enumerate(logits)]

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        pixels, labels = rows
        logits = torch.cat([torch.stack(network(part), dim=1) for part in torch.split(pixels, _CHUNK)])
        right = (logits.argmax(dim=1) == labels).double().mean()
        areas = (auc(column, labels == own) for own, column in enumerate(logits.unbind(dim=1)))
        return [*areas, 100.0 * float(right)]

    def batch(self, data: Data, generator: torch.Generator, network: nn.Module) -> Batch:
        pixels, labels = super().batch(data, generator, network)
        mirrored = torch.rand(len(labels), generator=generator, device="cpu") < 0.5
        chosen = mirrored.to(pixels.device, non_blocking=True).view(-1, 1, 1, 1)
        return torch.where(chosen, pixels.flip(-1), pixels), labels

    def quality(self, scores: Sequence[float]) -> float:
        """Return the mean area of the ten classes."""
        return statistics.fmean(scores[: len(CLASSES)])


class ResNet(nn.Module):
    """A residual network for uint8 images of shape ``(N, 3, 32, 32)``, with a logit of shape ``(N,)`` for each class.

    Args:
        width: channels of the first block; the second has twice, the third four times as many.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = _convolution(3, width, 2)
        self.blocks = nn.Sequential(
            _Block(width, width, 1), _Block(width, 2 * width, 2), _Block(2 * width, 4 * width, 2)
        )
        self.heads = nn.ModuleList(nn.Linear(4 * width, 1) for _ in CLASSES)
        for bias in (param for name, param in self.heads.named_parameters() if name.endswith("bias")):
            nn.init.constant_(bias, -math.log(len(CLASSES) - 1))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        dtype = next(self.parameters()).dtype
        features = torch.relu(self.stem(normalized(pixels).to(dtype)))
        features = self.blocks(features).mean(dim=(2, 3))
        return [head(features)[:, 0] for head in self.heads]


class _Block(nn.Module):
    """Two convolutions and a shortcut, which is a convolution itself if the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride)
        self.second = _convolution(outputs, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.shortcut(features) + self.second(torch.relu(self.first(features))))


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(4, outputs))


def _first(rows: Batch, count: int) -> Batch:
    return tuple(part[:count] for part in rows)


def _stripes(count: int, generator: torch.Generator) -> Images:
    """Draw images with stripes: five directions, in red or in blue."""
    labels = torch.randint(len(CLASSES), (count,), generator=generator, device="cpu")
    phase = 2.0 * math.pi * torch.rand((count, 1, 1), generator=generator, device="cpu")
    angle = math.pi / 8.0 * (labels // 2).view(-1, 1, 1)  # at most 90 degrees: no class is another one mirrored
    y, x = torch.meshgrid(*(torch.arange(32.0, device="cpu"),) * 2, indexing="ij")
    wave = torch.sin(0.8 * (torch.cos(angle) * x + torch.sin(angle) * y) + phase)
    noise = torch.randn((count, 3, 32, 32), generator=generator, device="cpu")
    colour = torch.eye(3, device="cpu")[2 * (labels % 2)].view(-1, 3, 1, 1)
    pixels = 128.0 + 20.0 * noise + 90.0 * wave.unsqueeze(1) * colour
    return Images(pixels.clamp(0.0, 255.0).to(torch.uint8), labels)
