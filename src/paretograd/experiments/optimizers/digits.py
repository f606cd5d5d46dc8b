"""Multi-MNIST at half resolution: two handwritten digits in one image, and a loss for each.

As in Sabour, Frosst and Hinton (2017) and Sener and Koltun (2018), one digit is moved to the top left and the other to
the bottom right, and they overlap. Here digits have 14 x 14 pixels instead of 28 x 28, so that a few seconds of one
core are enough to learn something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paretograd.experiments.optimizers.task import VALIDATION_SEED, Batch, Scores, seeded
from paretograd.problems import sources
from paretograd.problems.sources import DataFile

TITLE, LOSSES = "Multi-MNIST", ("first", "second")
#: Images in a batch and in the validation set.
_BATCH, _VALIDATION = 64, 2_000
#: Pixels of a side: of a digit, and of an image with two.
_DIGIT, _IMAGE = 14, 18
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CHECKSUMS = {
    "train-images-idx3-ubyte": (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
FILES = tuple(DataFile(name, size, digest, f"{_URL}{name}.gz") for name, (size, digest) in _CHECKSUMS.items())


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
    pixels, labels, test_pixels, test_labels = (
        np.frombuffer(content, dtype=np.uint8) for content in sources.read(FILES, "mnist", data_dir)
    )
    return Digits((_images(pixels), _labels(labels)), (_images(test_pixels), _labels(test_labels)))


def _images(content: np.ndarray) -> Tensor:
    """Decode a file of images, whose header has 16 bytes, and average blocks of 2 x 2 pixels."""
    pixels = torch.from_numpy(content[16:].reshape(-1, 1, 2 * _DIGIT, 2 * _DIGIT).copy()).float() / 255.0
    return functional.avg_pool2d(pixels, 2).squeeze(1)


def _labels(content: np.ndarray) -> Tensor:
    """Decode a file of labels, whose header has 8 bytes."""
    return torch.from_numpy(content[8:].astype(np.int64))
