"""Losses, gradients and accuracies of all clients, each on its own images with its own batch statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, max_pool2d

from paretograd.experiments.federated.study import FederatedStudy
from paretograd.experiments.work import full_or_tf32
from paretograd.geometry.gramian import Array, kernels_available
from paretograd.problems.cifar10 import Cifar10, Images, cnn, partition
from paretograd.problems.networks import normalized

if TYPE_CHECKING:
    from paretograd.experiments.federated.fused import Launch

#: Test images per batch.
_CHUNK = 1000
#: Accuracy of a guess; a diverged run counts as one.
CHANCE = 0.1
#: Mean and variance of each channel, for every BatchNorm.
Moments = list[tuple[Tensor, Tensor]]


class Layout:
    """The parameters of a network, one after the other.

    Attributes:
        places: by name, where a parameter begins, and its shape.
        size: number of values in all.
    """

    def __init__(self, network: nn.Module) -> None:
        self.places: dict[str, tuple[int, torch.Size]] = {}
        self.size = 0
        for name, parameter in network.named_parameters():
            self.places[name] = (self.size, parameter.shape)
            self.size += parameter.numel()

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector, by name."""
        return {name: flat[start : start + shape.numel()].view(shape) for name, (start, shape) in self.places.items()}


def pooled(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Pool mean and variance over all clients, which have equally many images.

    Args:
        means: of each client's inputs, ``(K, channels)``.
        variances: about these means, ``(K, channels)``.
    """
    mean = means.mean(dim=0)
    return mean, variances.mean(dim=0) + (means - mean).square().mean(dim=0)


class Pass(NamedTuple):
    """Result of one pass over all images.

    Attributes:
        losses: mean cross entropies of the clients, ``(K,)``.
        gradients: one row for each client, ``(K, n)``; the next pass may overwrite them.
        moments: of each BatchNorm, pooled over the clients: the mean of their means, and the variance about it.
    """

    losses: Tensor
    gradients: Tensor
    moments: Moments


class Clients:
    """The images of K clients on a device.

    On a GPU that may round to TF32, one launch computes everything (see `FusedPass`); else torch's own layers do, one
    client after the other.
    """

    def __init__(self, images: Sequence[Images], device: torch.device, tf32: bool = True) -> None:
        """Move the images.

        Args:
            images: of each client, pixels in uint8.
            device: where to compute.
            tf32: whether a GPU may round products to TF32.
        """
        network = cnn(seed=0)
        self._layers, self._layout, self._tf32 = list(network), Layout(network), tf32
        same = len({len(own.labels) for own in images}) == 1
        self._fused: Launch | None = None
        if device.type == "cuda" and tf32 and same and kernels_available():
            from paretograd.experiments.federated.fused import Launch

            self._fused = Launch(images, self._layout, device)
        self._images = [] if self._fused else [Images(own.pixels.to(device), own.labels.to(device)) for own in images]

    def gradients(self, parameters: Tensor) -> Pass:
        """Return losses, gradients and moments at flat parameters ``(n,)``, in the order of ``cnn().parameters()``."""
        if self._fused is not None:
            return Pass(*self._fused(parameters))
        losses, rows, moments = [], [], []
        for own in self._images:
            values = [part.detach().requires_grad_() for part in self._layout.split(parameters).values()]
            found: Moments = []
            with full_or_tf32(self._tf32):
                logits = self._forward(values, normalized(own.pixels), found, training=True)
                loss = cross_entropy(logits, own.labels)
                rows.append(torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, values)]))
            losses.append(loss.detach())
            moments.append(found)
        layers = [[torch.stack(parts) for parts in zip(*layer, strict=True)] for layer in zip(*moments, strict=True)]
        return Pass(torch.stack(losses), torch.stack(rows), [pooled(*layer) for layer in layers])

    @torch.no_grad()
    def logits(self, parameters: Tensor, pixels: Tensor, moments: Moments) -> Tensor:
        """Return the logits of test images, ``(N, 10)``, with these statistics instead of the batch's own."""
        values = list(self._layout.split(parameters).values())
        with full_or_tf32(self._tf32):
            chunks = (normalized(part) for part in torch.split(pixels, _CHUNK))
            return torch.cat([self._forward(values, chunk, moments, training=False) for chunk in chunks])

    def _forward(self, values: Sequence[Tensor], hidden: Tensor, moments: Moments, training: bool) -> Tensor:
        """Return logits. In training, append the statistics of each BatchNorm to ``moments``; else read them there."""
        rest, norms = iter(values), 0
        if hidden.is_cuda:  # On a CPU, BatchNorm of torch loses three digits where channels come last.
            hidden = hidden.contiguous(memory_format=torch.channels_last)
        for layer in self._layers:
            own = [next(rest) for _ in layer.parameters()]
            if isinstance(layer, nn.Conv2d):
                hidden = conv2d(hidden, own[0], own[1])
            elif isinstance(layer, nn.BatchNorm2d):
                if training:
                    moments.append((own[0].new_zeros(len(own[0])), own[0].new_zeros(len(own[0]))))
                # With a momentum of 1, batch_norm leaves the statistics of its batch in the place of those given.
                mean, variance = moments[norms]
                hidden = batch_norm(hidden, mean, variance, own[0], own[1], training, momentum=1.0, eps=layer.eps)
                if training:
                    count = hidden.numel() // len(own[0])
                    moments[norms] = (mean, variance * ((count - 1) / count))  # torch's is the unbiased one
                norms += 1
            elif isinstance(layer, nn.MaxPool2d):
                hidden = max_pool2d(hidden, 2, 2)
            elif isinstance(layer, nn.Linear):
                hidden = linear(hidden, *own)
            else:
                hidden = layer(hidden)
        return hidden


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
        """Return the accuracy of each client on its own test images, ``(clients,)``."""
        right = torch.split(self._right(parameters, self._pixels, self._labels, moments), self._counts)
        return torch.stack([own.double().mean() for own in right]).cpu().numpy()

    def accuracy(self, parameters: Tensor, moments: Moments) -> float:
        """Return the accuracy on all test images."""
        pixels, labels = (part.to(self.device) for part in self._every)
        return float(self._right(parameters, pixels, labels, moments).double().mean())

    def _right(self, parameters: Tensor, pixels: Tensor, labels: Tensor, moments: Moments) -> Tensor:
        return self.clients.logits(parameters, pixels, moments).argmax(dim=1) == labels


class Federations:
    """Federations by seed, created on first use.

    Attributes:
        device: where they are.
    """

    def __init__(self, data: Cifar10, study: FederatedStudy, device: torch.device) -> None:
        self._data, self._study, self.device = data, study, device
        self._made: dict[tuple[int, bool], Federation] = {}

    def get(self, seed: int, central: bool) -> Federation:
        """Return the federation of this seed. Its images stay on the device until the other kind is requested."""
        if any(kind != central for _, kind in self._made):
            self._made.clear()
        if (seed, central) not in self._made:
            self._made[seed, central] = Federation(self._data, self._study, seed, central, self.device)
        return self._made[seed, central]


def _chosen(images: Images, numbers: Tensor) -> Images:
    return Images(images.pixels[numbers], images.labels[numbers])
