"""Made images in the format of CIFAR-10: noise, whose colour tells the class."""

from __future__ import annotations

import numpy as np
import torch

from paretograd.problems.cifar10 import Cifar10, Images


def made_cifar10(each: int = 8, tested: int = 8, seed: int = 0) -> Cifar10:
    """This many images of each class to train on, and to test."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 216, (10, 3))

    def images(count: int) -> Images:
        labels = rng.permutation(np.repeat(np.arange(10), count))
        noise = rng.normal(0.0, 40.0, (len(labels), 3, 32, 32))
        pixels = np.clip(colours[labels][:, :, None, None] + noise, 0, 255).astype(np.uint8)
        return Images(torch.from_numpy(pixels), torch.from_numpy(labels))

    return Cifar10(images(each), images(tested))
