"""The clients of a seed on a device, and the test images that they are judged by."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.experiments.federated.clients import Clients
from paretograd.experiments.federated.moments import Moments
from paretograd.experiments.federated.study import FederatedStudy
from paretograd.geometry.gramian import Array
from paretograd.problems.cifar10 import Cifar10, Images, partition

#: Accuracy of a guess, which is what a run that diverged counts as.
CHANCE = 0.1


class Federation:
    """Clients of one seed.

    Attributes:
        clients: compute losses and gradients.
        device: where.
    """

    def __init__(self, data: Cifar10, study: FederatedStudy, seed: int, central: bool, device: torch.device) -> None:
        """Deal the images.

        Args:
            data: all images.
            study: how many clients and shards there are.
            seed: of the deal.
            central: whether one client gets all images that are dealt.
            device: where to compute.
        """
        sizes = {"clients": study.clients, "shards": study.shards, "size": study.size, "test_size": study.test_size}
        dealt = partition(data, seed, **sizes)
        train = [torch.cat(dealt.train)] if central else dealt.train
        self.clients = Clients([_chosen(data.train, own) for own in train], device, study.tf32)
        self.device = device
        tests = _chosen(data.test, torch.cat(dealt.test))
        self._pixels, self._labels = tests.pixels.to(device), tests.labels.to(device)
        self._counts = [len(own) for own in dealt.test]
        self._every = data.test

    def accuracies(self, parameters: Tensor, moments: Moments) -> Array:
        """Share of each client's test images that are classified right, ``(clients,)``."""
        right = torch.split(self._right(parameters, self._pixels, self._labels, moments), self._counts)
        return torch.stack([own.double().mean() for own in right]).cpu().numpy()

    def accuracy(self, parameters: Tensor, moments: Moments) -> float:
        """The same for all test images that there are."""
        pixels, labels = (part.to(self.device) for part in self._every)
        return float(self._right(parameters, pixels, labels, moments).double().mean())

    def _right(self, parameters: Tensor, pixels: Tensor, labels: Tensor, moments: Moments) -> Tensor:
        return self.clients.logits(parameters, pixels, moments).argmax(dim=1) == labels


class Federations:
    """Federations by seed, each made when it is needed first.

    Attributes:
        device: where they are.
    """

    def __init__(self, data: Cifar10, study: FederatedStudy, device: torch.device) -> None:
        self._data, self._study, self.device = data, study, device
        self._made: dict[tuple[int, bool], Federation] = {}

    def get(self, seed: int, central: bool) -> Federation:
        """The one with this seed; its images are on the device until the other kind is asked for."""
        if any(kind != central for _, kind in self._made):
            self._made.clear()
        if (seed, central) not in self._made:
            self._made[seed, central] = Federation(self._data, self._study, seed, central, self.device)
        return self._made[seed, central]


def _chosen(images: Images, numbers: Tensor) -> Images:
    return Images(images.pixels[numbers], images.labels[numbers])
