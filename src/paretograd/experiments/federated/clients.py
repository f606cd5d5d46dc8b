"""Losses and gradients of all clients at one point, each on all of its own images with its own batch statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, max_pool2d

from paretograd.experiments.federated.fused import Launch
from paretograd.experiments.federated.layout import Layout
from paretograd.experiments.federated.moments import Moments, pooled
from paretograd.experiments.recorded import full_or_tf32
from paretograd.geometry import kernels
from paretograd.problems.cifar10 import Images, cnn
from paretograd.problems.cifar10.model import normalized

#: Test images that are looked at together.
_CHUNK = 1000


class Pass(NamedTuple):
    """What one pass over all images gives.

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
        if device.type == "cuda" and tf32 and same and kernels.available():
            self._fused = Launch(images, self._layout, device)
        self._images = [] if self._fused else [Images(own.pixels.to(device), own.labels.to(device)) for own in images]

    def gradients(self, parameters: Tensor) -> Pass:
        """At flat parameters ``(n,)``, in the order of ``cnn().parameters()``."""
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
        """Of test images, ``(N, 10)``, with these statistics in the place of a batch's own."""
        values = list(self._layout.split(parameters).values())
        with full_or_tf32(self._tf32):
            chunks = (normalized(part) for part in torch.split(pixels, _CHUNK))
            return torch.cat([self._forward(values, chunk, moments, training=False) for chunk in chunks])

    def _forward(self, values: Sequence[Tensor], hidden: Tensor, moments: Moments, training: bool) -> Tensor:
        """Logits; in training the statistics of each BatchNorm are added to ``moments``, else taken from there."""
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
