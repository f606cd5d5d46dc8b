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
        self._layers, self._tf32 = list(network), tf32
        same = len({len(own.labels) for own in images}) == 1
        self._fused: Launch | None = None
        if device.type == "cuda" and tf32 and same and kernels.available():
            self._fused = Launch(images, Layout(network), device)
        self._images = [] if self._fused else [Images(own.pixels.to(device), own.labels.to(device)) for own in images]

    def gradients(self, parameters: Tensor) -> Pass:
        """At flat parameters ``(n,)``, in the order of ``cnn().parameters()``."""
        if self._fused is not None:
            return Pass(*self._fused(parameters))
        losses, rows, moments = [], [], []
        for own in self._images:
            point = parameters.detach().clone().requires_grad_()
            found: Moments = []
            with full_or_tf32(self._tf32):
                logits = self._forward(point, normalized(own.pixels), found, training=True)
                loss = cross_entropy(logits, own.labels)
                rows.append(torch.autograd.grad(loss, point)[0])
            losses.append(loss.detach())
            moments.append(found)
        layers = [[torch.stack(parts) for parts in zip(*layer, strict=True)] for layer in zip(*moments, strict=True)]
        return Pass(torch.stack(losses), torch.stack(rows), [pooled(*layer) for layer in layers])

    @torch.no_grad()
    def logits(self, parameters: Tensor, pixels: Tensor, moments: Moments) -> Tensor:
        """Of test images, ``(N, 10)``, with these statistics in the place of a batch's own."""
        parts = [
            self._forward(parameters, normalized(part), moments, training=False) for part in torch.split(pixels, _CHUNK)
        ]
        return torch.cat(parts)

    def _forward(self, flat: Tensor, hidden: Tensor, moments: Moments, training: bool) -> Tensor:
        """Logits; in training the statistics of each BatchNorm are added to ``moments``, else taken from there."""
        start, norms = 0, 0
        for layer in self._layers:
            own = []
            for param in layer.parameters():
                own.append(flat[start : start + param.numel()].view(param.shape))
                start += param.numel()
            if isinstance(layer, nn.Conv2d):
                hidden = conv2d(hidden, own[0], own[1])
            elif isinstance(layer, nn.BatchNorm2d):
                weight, bias = own
                if training:
                    variance, mean = torch.var_mean(hidden.detach(), dim=(0, 2, 3), correction=0)
                    moments.append((mean, variance))
                    hidden = batch_norm(hidden, None, None, weight, bias, training=True, eps=layer.eps)
                else:
                    mean, variance = moments[norms]
                    hidden = batch_norm(hidden, mean, variance, weight, bias, training=False, eps=layer.eps)
                norms += 1
            elif isinstance(layer, nn.MaxPool2d):
                hidden = max_pool2d(hidden, 2, 2)
            elif isinstance(layer, nn.Linear):
                hidden = linear(hidden, *own)
            else:
                hidden = layer(hidden)
        return hidden
