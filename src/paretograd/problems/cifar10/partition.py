"""A split of CIFAR-10 over clients whose classes differ, as the paper's study has it."""

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
    """What each client has.

    Attributes:
        train: for each client, numbers of its training images.
        test: for each client, numbers of test images with the same share of every class.
    """

    train: list[Tensor]
    test: list[Tensor]


def partition(
    data: Cifar10, seed: int, *, clients: int = 10, shards: int = 10, size: int = 200, test_size: int = 40
) -> Partition:
    """Sort the training images by class, cut them into shards, and deal shards to the clients at random.

    Args:
        data: the images.
        seed: of the deal, and of the draw of test images.
        clients: how many.
        shards: for each of them.
        size: images in a shard.
        test_size: test images for each shard, of its classes; a client draws no image twice.
    """
    labels = data.train.labels.numpy()
    count = len(labels) // size
    if clients * shards > count:
        raise ParameterError(
            f"{clients} clients with {shards} shards of {size} images are more than {len(labels)} images"
        )
    rng = np.random.default_rng(seed)
    by_class = np.argsort(labels, kind="stable")
    dealt = rng.permutation(count)[: clients * shards].reshape(clients, shards)
    train = [np.concatenate([by_class[size * s : size * (s + 1)] for s in sorted(own)]) for own in dealt]
    test = [_same_classes(rng, data.test, labels[own], test_size * shards) for own in train]
    return Partition([torch.from_numpy(own) for own in train], [torch.from_numpy(own) for own in test])


def _same_classes(rng: np.random.Generator, test: Images, labels: Numbers, count: int) -> Numbers:
    """As many test images, with the classes of a client's training images in the same shares."""
    found = []
    candidates = test.labels.numpy()
    for label, images in zip(*np.unique(labels, return_counts=True), strict=True):
        own = np.flatnonzero(candidates == label)
        wanted = round(count * images / len(labels))
        if wanted > len(own):
            raise ParameterError(f"class {label} has {len(own)} test images, but a client needs {wanted}")
        found.append(np.sort(rng.choice(own, wanted, replace=False)))
    return np.concatenate(found)
