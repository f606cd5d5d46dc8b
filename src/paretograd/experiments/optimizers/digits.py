"""Multi-MNIST at half resolution: two handwritten digits in one image, and a loss for each.

As in Sabour, Frosst and Hinton (2017) and Sener and Koltun (2018), one digit is moved to the top left and the other to
the bottom right, and they overlap. Here digits have 14 x 14 pixels instead of 28 x 28, so that a few seconds of one
core are enough to learn something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from paretograd.experiments.optimizers.task import VALIDATION_SEED, Batch, Scores, seeded
from paretograd.problems.mnist import load_mnist

TITLE, LOSSES = "Multi-MNIST", ("first", "second")
#: Images in a batch and in the validation set.
_BATCH, _VALIDATION = 64, 2_000
#: Pixels of a side: of a digit, and of an image with two.
_DIGIT, _IMAGE = 14, 18


@dataclass(frozen=True)
class Digits:
    """Pairs of digits.

    Attributes:
        train: images to train with, shape (n, 14, 14), between 0 and 1, and their digits, shape (n,).
        test: likewise, for the validation pairs.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def network(self, seed: int) -> nn.Sequential:
        """Return a small convolutional network with 20 outputs, ten for each digit, and torch's initial weights."""
        return seeded(
            seed,
            (nn.Conv2d, (1, 8, 5)),
            nn.ReLU,
            (nn.MaxPool2d, (2,)),
            (nn.Conv2d, (8, 16, 3)),
            nn.ReLU,
            nn.Flatten,
            (nn.Linear, (16 * 5 * 5, 64)),
            nn.ReLU,
            (nn.Linear, (64, 20)),
        )

    def batch(self, generator: torch.Generator, times: int = 1) -> Batch:
        """Draw pairs of training digits: images of shape (n, 1, 18, 18), and the digits, shape (n, 2)."""
        return pairs(*self.train, times * _BATCH, generator)

    def losses(self, network: nn.Sequential, batch: Batch) -> list[Tensor]:
        """Return the cross entropy of each digit."""
        images, digits = batch
        scores = network(images).unflatten(1, (2, 10))
        return [functional.cross_entropy(scores[:, k], digits[:, k]) for k in (0, 1)]

    def scores(self, network: nn.Sequential) -> Scores:
        """Return the losses and the share of wrong digits on pairs of test digits."""
        images, digits = pairs(*self.test, _VALIDATION, torch.Generator().manual_seed(VALIDATION_SEED))
        with torch.no_grad():
            losses = tuple(float(loss) for loss in self.losses(network, (images, digits)))
            answers = network(images).unflatten(1, (2, 10)).argmax(dim=2)
        return Scores(losses, float((answers != digits).float().mean()))


def pairs(images: Tensor, digits: Tensor, count: int, generator: torch.Generator) -> Batch:
    """Draw pairs of digits: the first at the top left, the second at the bottom right. The brighter pixel wins."""
    chosen = torch.randint(len(images), (count, 2), generator=generator, device="cpu")
    canvas = images.new_zeros(2, count, _IMAGE, _IMAGE)
    canvas[0, :, :_DIGIT, :_DIGIT] = images[chosen[:, 0]]
    canvas[1, :, -_DIGIT:, -_DIGIT:] = images[chosen[:, 1]]
    return canvas.amax(dim=0).unsqueeze(1), digits[chosen]


@cache
def load_digits(data_dir: Path | None) -> Digits:
    """Read and verify MNIST.

    Args:
        data_dir: a folder with the four files, plain or compressed as .gz or .xz, or with the folder ``mnist``. None
            uses $PARETOGRAD_DATA, else the cache, else a download (12 MB).
    """
    train, test = load_mnist(data_dir)
    return Digits((_halved(train.pixels), train.labels), (_halved(test.pixels), test.labels))


def _halved(pixels: Tensor) -> Tensor:
    """Scale pixels to [0, 1], and average blocks of 2 x 2."""
    return functional.avg_pool2d(pixels.unsqueeze(1).float() / 255.0, 2).squeeze(1)
