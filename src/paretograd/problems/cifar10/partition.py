"""Split of CIFAR-10 over clients with different classes, as in the paper's study."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import ParameterError
from paretograd.problems.cifar10.data import Cifar10, Images

Numbers = NDArray[np.int64]


class Partition(NamedTuple):
    """Images of each client.

    Attributes:
        train: for each client, the indices of its training images.
        test: for each client, the indices of test images with the same share of every class.
    """

    train: list[Tensor]
    test: list[Tensor]


def partition(
    data: Cifar10, seed: int, *, clients: int = 10, shards: int = 10, size: int = 200, test_size: int = 40
) -> Partition:
    """Sort the training images by class, cut them into shards, and deal shards to the clients at random.

    Args:
        data: the images.
        seed: seed of the deal and of the draw of test images.
        clients: number of clients.
        shards: number of shards per client.
        size: number of images per shard.
        test_size: number of test images per shard, of its classes; a client draws no image twice.
    """
    labels = data.train.labels.numpy()
    count = len(labels) // size
    if clients * shards > count:
        raise ParameterError(
            f"{clients} clients with {shards} shards of {size} images need more than the {len(labels)} images there are"
        )
    rng = np.random.default_rng(seed)
    by_class = np.argsort(labels, kind="stable")
    dealt = rng.permutation(count)[: clients * shards].reshape(clients, shards)
    train = [np.concatenate([by_class[size * s : size * (s + 1)] for s in sorted(own)]) for own in dealt]
    test = [_same_classes(rng, data.test, labels[own], test_size * shards) for own in train]
    return Partition([torch.from_numpy(own) for own in train], [torch.from_numpy(own) for own in test])


def _same_classes(rng: np.random.Generator, test: Images, labels: Numbers, count: int) -> Numbers:
    """Draw ``count`` test images with the same shares of classes as a client's training images."""
    found = []
    candidates = test.labels.numpy()
    for label, images in zip(*np.unique(labels, return_counts=True), strict=True):
        own = np.flatnonzero(candidates == label)
        wanted = round(count * images / len(labels))
        if wanted > len(own):
            raise ParameterError(f"class {label} has {len(own)} test images, but a client needs {wanted}")
        found.append(np.sort(rng.choice(own, wanted, replace=False)))
    return np.concatenate(found)
