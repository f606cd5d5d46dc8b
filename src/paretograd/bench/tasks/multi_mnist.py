"""Multi-MNIST and Multi-Fashion-MNIST: two overlapping images in one, and a classifier for each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paretograd.bench.task import Batch, Data, Metric, Source, Task
from paretograd.problems.mnist import FASHION_FILES, FILES, Images, load_fashion, load_mnist

#: Pairs of each part, and of the small variant. The training and validation images are 60,000 together.
_PAIRS, _SMALL = (60_000, 10_000, 10_000), (4_000, 1_000, 1_000)
#: Images that are kept for validation, and images of each part of made data.
_HELD, _MADE = 10_000, (600, 200, 200)
#: Pixels of a side: of an image, and of the canvas for two; and where the second image begins.
_SIDE, _CANVAS, _SHIFT = 28, 36, 6
#: Rows and columns of the canvas that remain after scaling it to the side of one image, by the nearest pixel.
_KEPT = [int((place + 0.5) * _CANVAS / _SIDE) for place in range(_SIDE)]
#: Pairs that `scores` evaluates at once; bounds the memory.
_CHUNK = 2_000
_SEED = 0


class _Pairs(Task):
    """Pairs of images; the subclasses say which.

    Attributes:
        brightness: mean and standard deviation of the pixels of the training images, between 0 and 1.
    """

    brightness: ClassVar[tuple[float, float]]

    def __init__(self, *, small: bool = False) -> None:
        super().__init__(small=small)
        self.objectives = ("top left", "bottom right")
        self.metrics = tuple(Metric(f"{name}, accuracy", k) for k, name in enumerate(self.objectives))
        self.steps, self.batch_size = (200, 64) if small else (1_000, 256)

    @abstractmethod
    def images(self, data_dir: str | Path | None) -> tuple[Images, Images, Images]:
        """Return the images for training, validation and test."""

    def load(self, data_dir: str | Path | None = None) -> Data:
        return self._paired(self.images(data_dir), _SMALL if self.small else _PAIRS)

    def made(self) -> Data:
        """Return pairs of ten coarse patterns with noise."""
        generator = torch.Generator().manual_seed(_SEED)
        patterns = torch.rand((10, 7, 7), generator=generator, device="cpu") < 0.3
        bright = patterns.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
        parts = []
        for count in _MADE:
            labels = torch.arange(count, device="cpu") % 10
            noise = torch.randint(0, 64, (count, _SIDE, _SIDE), generator=generator, device="cpu")
            parts.append(Images((noise + 190 * bright[labels]).to(torch.uint8), labels))
        return self._paired(parts, _MADE)

    def _paired(self, parts: Sequence[Images], counts: Sequence[int]) -> Data:
        rng = np.random.default_rng(_SEED)
        return Data(*(pairs(images, count, rng) for images, count in zip(parts, counts, strict=True)))

    def network(self) -> nn.Module:
        return LeNet(self.brightness, (4, 8), 20) if self.small else LeNet(self.brightness)

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        pixels, labels = batch
        return [functional.cross_entropy(logits, labels[:, k]) for k, logits in enumerate(network(pixels))]

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        pixels, labels = rows
        answers = torch.cat([torch.stack(network(part), 1).argmax(dim=2) for part in torch.split(pixels, _CHUNK)])
        return [100.0 * float(share) for share in (answers == labels).double().mean(dim=0)]


class MultiMNIST(_Pairs):
    """Two handwritten digits in one image.

    **Set-up.** Sener and Koltun (2018), after Sabour, Frosst and Hinton (2017). Pairs are built as by the published
    code: on a canvas of 36 x 36 pixels, the first digit lies at the top left, the second one six pixels to the right
    and below, the brighter pixel wins, and the canvas is scaled to 28 x 28 by the nearest pixel. Every training image
    is the first of a pair, its partner is drawn at random. The network is theirs, too: convolutions of 5 x 5 with 10
    and 20 channels, a layer of 50, and for each digit a layer of 50 and one of ten logits.

    **What differs.** There is no dropout, since a loss is a function of network and batch here. They train for 100
    epochs, that is 23,400 steps of 256 pairs; here it is 1,000 steps, so that all rules can be tuned. Accuracies are
    therefore lower than theirs (uniform weights: 96.46 and 94.99). They report test accuracies and mention no
    validation rows.

    **Rows.** The 60,000 training images of MNIST are divided at random, by a fixed seed: 60,000 training pairs of
    50,000 images, so that 10,000 images come first twice, and 10,000 validation pairs of the other 10,000 images.
    10,000 test pairs of the test images.

    **Data.** MNIST (LeCun, Cortes and Burges), for which the authors state no licence. The checksums were computed
    from the original files.
    """

    name = "multi-mnist"
    title = "Multi-MNIST"
    summary = "Two overlapping handwritten digits, a classifier for each, on LeNet."
    sources = (
        Source(
            title="MNIST",
            folder="mnist",
            files=FILES,
            licence="none stated by the authors",
            citation="LeCun, Cortes and Burges. The MNIST database of handwritten digits",
        ),
    )
    brightness = (0.1307, 0.3081)

    def images(self, data_dir: str | Path | None) -> tuple[Images, Images, Images]:
        images, test = load_mnist(data_dir)
        order = torch.from_numpy(np.random.default_rng(_SEED).permutation(len(images.labels)))
        validation, train = (Images(*(part[own] for part in images)) for own in (order[:_HELD], order[_HELD:]))
        return train, validation, test


class MultiFashionMNIST(_Pairs):
    """Two garments in one image.

    **Set-up.** Lin et al. (2019, Pareto multi-task learning) build pairs of Fashion-MNIST like those of MNIST. Pairs,
    network and steps are those of `MultiMNIST`.

    **What differs.** Lin et al. keep 36 x 36 pixels, with a first convolution of 9 x 9 and heads of one layer.

    **Rows.** All 70,000 images in the order of the SHA-256 of class and pixels: the first 10,000 for test, the next
    10,000 for validation, and 50,000 for training. The publisher's division is not used, so that the same image has
    the same role whichever files it is read from. As in `MultiMNIST`, there are 60,000, 10,000 and 10,000 pairs.
    Equal images, of which there are a few dozen, are neighbours in this order and lie in the same part.

    **Data.** Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), MIT licence: the publisher's four files, or a merged
    copy, which is not quite the same. The checksums of the former are as published in several places, not computed
    here.
    """

    name = "multi-fashion-mnist"
    title = "Multi-Fashion-MNIST"
    summary = "Two overlapping garments, a classifier for each, on LeNet."
    sources = (
        Source(
            title="Fashion-MNIST",
            folder="fashion",
            files=FASHION_FILES,
            licence="MIT",
            citation="Xiao, Rasul and Vollgraf (2017). Fashion-MNIST. arXiv 1708.07747",
        ),
    )
    brightness = (0.2860, 0.3530)

    def images(self, data_dir: str | Path | None) -> tuple[Images, Images, Images]:
        images = load_fashion(data_dir)
        parts = (slice(2 * _HELD, None), slice(_HELD, 2 * _HELD), slice(_HELD))
        train, validation, test = (Images(*(part[own] for part in images)) for own in parts)
        return train, validation, test


class LeNet(nn.Module):
    """The network of Sener and Koltun for two classifiers with ten classes each, without their dropout.

    The input is uint8, shape ``(N, 28, 28)``; the logits of each classifier have shape ``(N, 10)``.

    Args:
        brightness: mean and standard deviation that standardise pixels between 0 and 1.
        channels: of the two convolutions.
        width: of the shared layer and of the hidden layer of each head.
    """

    def __init__(self, brightness: tuple[float, float], channels: tuple[int, int] = (10, 20), width: int = 50) -> None:
        super().__init__()
        self.brightness = brightness
        self.convolutions = nn.ModuleList((Convolution(1, channels[0], 5), Convolution(*channels, 5)))
        self.shared = nn.Linear(16 * channels[1], width)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)) for _ in range(2)
        )

    def forward(self, pixels: Tensor) -> list[Tensor]:
        mean, deviation = self.brightness
        features = (pixels.unsqueeze(1).to(self.shared.weight.dtype) / 255.0 - mean) / deviation
        for convolution in self.convolutions:
            features = torch.relu(functional.max_pool2d(convolution(features), 2))
        features = torch.relu(self.shared(features.flatten(1)))
        return [head(features) for head in self.heads]


class Convolution(nn.Conv2d):
    """A convolution without padding. On a GPU it is a product of matrices.

    Stacked networks make a grouped convolution, for whose gradients cuDNN takes up to two and a half times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if x.is_cuda else super().forward(x)

    def product(self, x: Tensor) -> Tensor:
        """Return the convolution as a product with the matrix of all windows."""
        size = self.kernel_size[0]
        windows = x.unfold(2, size, 1).unfold(3, size, 1)  # (N, channels, height, width, size, size)
        columns = windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
        assert self.bias is not None
        product = self.weight.flatten(1) @ columns + self.bias[:, None]
        return product.reshape(len(x), self.out_channels, *windows.shape[2:4])


def pairs(images: Images, count: int, rng: np.random.Generator) -> Batch:
    """Return pairs: pixels of shape ``(count, 28, 28)``, uint8, and the two classes, shape ``(count, 2)``.

    Args:
        images: each in turn is the first of a pair.
        count: number of pairs.
        rng: draws the second images.
    """
    first = torch.arange(count, device="cpu") % len(images.labels)
    second = torch.from_numpy(rng.integers(len(images.labels), size=count))
    canvas = images.pixels.new_zeros((count, _CANVAS, _CANVAS))
    canvas[:, :_SIDE, :_SIDE] = images.pixels[first]
    place = slice(_SHIFT, _SHIFT + _SIDE)
    canvas[:, place, place] = torch.maximum(canvas[:, place, place], images.pixels[second])
    return canvas[:, _KEPT][:, :, _KEPT], images.labels[torch.stack((first, second), dim=1)]
