"""Losses and gradients of all clients in one pass on a GPU, as one launch.

A plain pass spends nine tenths of its time on moving the first layer's large maps to and from memory: bias, rectifier,
BatchNorm and pooling read and write them sixteen times. Here they are written once and read twice, the convolution of
the images is a product with their patches, which never change, and the gradients by its outputs are used where they
are computed. All clients have the same parameters, so that one pass serves them all up to the statistics of BatchNorm
and the sums of the weight gradients. Maps are kept in float16, whose mantissa is that of TF32, and all sums are in
float32; the losses of a client are summed and not averaged until the end, which keeps small gradients in its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, log_softmax, pad, relu, unfold

from paretograd.autograd.recorded import recorded
from paretograd.experiments.federated.clients import Layout, Moments, pooled
from paretograd.experiments.work import full_or_tf32
from paretograd.problems.cifar10.data import Images
from paretograd.problems.networks import normalized

#: Channels of both convolutions, and columns of a patch: 3 x 5 x 5 values, a one for the bias, zeros.
_C, _PATCH = 32, 80
#: Sides of the maps: images, first convolution, what is pooled of it, second convolution, what is pooled of that.
_SIDES = (32, 28, 14, 10, 5)
#: Of torch's BatchNorm.
_EPS = 1e-5


class Statistics(NamedTuple):
    """Of a BatchNorm's inputs, ``(K, C)`` each: means, variances, and 1 over the standard deviations."""

    mean: Tensor
    variance: Tensor
    spread: Tensor


class FusedPass:
    """The pass at one set of parameters, with all that it stores; K clients with N images each."""

    def __init__(
        self, images: Sequence[Images], layout: Layout, device: torch.device, kept: torch.dtype = torch.float16
    ) -> None:
        """Set up.

        Args:
            images: of each client, the same number.
            layout: of the network's parameters.
            device: a GPU.
            kept: what the maps are stored in.
        """
        from paretograd.experiments.federated import fused_kernels

        self._kernels: Any = fused_kernels
        self._layout = layout
        self._K, self._N = len(images), len(images[0].labels)
        self._cols = torch.empty(self._K, self._N * _SIDES[1] ** 2, _PATCH, dtype=kept, device=device)
        for rows, own in zip(self._cols, images, strict=True):
            _patches(own.pixels.to(device), rows.view(self._N, -1, _PATCH))
        self._labels = torch.stack([own.labels for own in images]).to(device)
        empty = torch.empty
        half: dict[str, Any] = {"dtype": kept, "device": device}
        self._first = empty(self._K, self._rows(1), _C, **half)
        self._inputs = empty(self._K, self._rows(2), _C, **half)
        self._tops = [empty(self._K, self._rows(side), _C, **half) for side in (2, 4)]
        self._places = [torch.empty_like(top, dtype=torch.uint8) for top in self._tops]
        self._flat = empty(self._K, self._rows(4), _C, device=device)
        self._slopes = empty(self._K, self._rows(3), _C, **half)
        self.parameters = empty(layout.size, device=device)
        self.gradients = empty(self._K, layout.size, device=device)

    def _rows(self, level: int) -> int:
        return self._N * _SIDES[level] ** 2

    def __call__(self) -> tuple[Tensor, Moments]:
        """Losses ``(K,)`` and pooled moments at `parameters`; the gradients are in `gradients` afterwards."""
        values = self._layout.split(self.parameters)
        first = self._convolve_first(values)
        second_map, second = self._convolve_second(values)
        losses, slope = self._head(values)
        below = self._second_backward(values, second_map, second, slope)
        self._first_backward(values, first, below)
        self.gradients.div_(self._N)
        return losses, [pooled(found.mean, found.variance) for found in (first, second)]

    def _convolve_first(self, values: dict[str, Tensor]) -> Statistics:
        weight = torch.cat([values["0.weight"].view(_C, -1).T, values["0.bias"][None]])
        weight = pad(weight, (0, 0, 0, _PATCH - len(weight))).to(self._cols.dtype)
        rows, tiles, block = self._rows(1), 8, 128
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], 2, _C)
        self._kernels.first_layer[grid](self._cols, weight, self._first, parts, rows, tiles, block, _C, num_warps=4)
        found = _statistics(parts, rows)
        self._pool(0, self._first, found, values, "2", self._inputs)
        return found

    def _convolve_second(self, values: dict[str, Tensor]) -> tuple[Tensor, Statistics]:
        weight = values["4.weight"].to(self._cols.dtype).contiguous(memory_format=torch.channels_last)
        images = self._images(self._inputs, 2)
        found = conv2d(images, weight).permute(0, 2, 3, 1).contiguous()
        rows, tiles, block = self._rows(3), 8, 128
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], 2, _C)
        self._kernels.rectify[grid](found, values["4.bias"], parts, rows, tiles, block, _C, num_warps=4)
        statistics = _statistics(parts, rows)
        self._pool(1, found, statistics, values, "6", self._flat)
        return found, statistics

    def _head(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Losses, and the gradient of each client's summed loss by what enters the linear layers."""
        last = _SIDES[4] ** 2
        weights = [
            values["9.weight"].view(-1, _C, last).mT.reshape(-1, last * _C),
            values["11.weight"],
            values["13.weight"],
        ]
        hidden = [self._flat.view(self._K * self._N, -1)]
        for name, weight in zip(("9", "11", "13"), weights, strict=True):
            out = torch.addmm(values[f"{name}.bias"], hidden[-1], weight.T)
            hidden.append(out if name == "13" else relu(out))
        chances = log_softmax(hidden.pop(), dim=1)
        labels = self._labels.view(-1, 1)
        losses = -chances.gather(1, labels).view(self._K, self._N).mean(dim=1)
        slope = chances.exp().scatter_add_(1, labels, torch.full_like(labels, -1.0, dtype=chances.dtype))
        for name, weight in zip(("13", "11", "9"), reversed(weights), strict=True):
            inputs = hidden.pop()
            by_client = slope.view(self._K, self._N, -1)
            found = torch.bmm(by_client.mT, inputs.view(self._K, self._N, -1))
            if name == "9":
                found = found.view(self._K, -1, last, _C).mT
            self._put(f"{name}.weight", found)
            self._put(f"{name}.bias", by_client.sum(dim=1))
            slope = slope @ weight
            if name != "9":
                slope = slope * (inputs > 0.0)
        return losses, slope

    def _second_backward(
        self, values: dict[str, Tensor], found: Tensor, statistics: Statistics, slope: Tensor
    ) -> Tensor:
        sums = self._sums(1, slope, "6")
        rows, tiles, block = self._rows(3), 8, 64
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], _C)
        self._kernels.second_slopes[grid](
            found, slope, self._places[1], statistics.mean, statistics.spread, values["6.weight"], sums, self._slopes,
            parts, rows, _SIDES[4], tiles, block, _C, num_warps=4,
        )  # fmt: skip
        self._put("4.bias", parts.sum(dim=1))
        tiles = 64
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], 5, 5, _C, _C)
        self._kernels.second_weights[(*grid, 5)](
            self._inputs, self._slopes, parts, rows, _SIDES[3], _SIDES[2], tiles, block, _C, num_warps=4
        )
        self._put("4.weight", parts.sum(dim=1).permute(0, 4, 3, 1, 2))
        weight = values["4.weight"].to(self._cols.dtype).contiguous(memory_format=torch.channels_last)
        below: Tensor = torch.ops.aten.convolution_backward(
            self._images(self._slopes, 3), self._images(self._inputs, 2), weight, None,
            [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False],
        )[0]  # fmt: skip
        return below.permute(0, 2, 3, 1).contiguous()

    def _first_backward(self, values: dict[str, Tensor], statistics: Statistics, slope: Tensor) -> None:
        sums = self._sums(0, slope, "2")
        rows, tiles, block = self._rows(1), 64, 64
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], _PATCH, _C)
        self._kernels.first_weights[grid](
            self._cols, self._first, slope, self._places[0], statistics.mean, statistics.spread, values["2.weight"],
            sums, parts, rows, _SIDES[2], tiles, block, _C, num_warps=2, num_stages=1,
        )  # fmt: skip
        found = parts.sum(dim=1)
        self._put("0.weight", found[:, : _PATCH - 5].mT)
        self._put("0.bias", found[:, _PATCH - 5])

    def _pool(
        self, number: int, h: Tensor, statistics: Statistics, values: dict[str, Tensor], name: str, out: Tensor
    ) -> None:
        level = 2 * number + 2
        rows, block = self._rows(level), 64
        self._kernels.pool[(_over(rows, block), self._K)](
            h, statistics.mean, statistics.spread, values[f"{name}.weight"], values[f"{name}.bias"], out,
            self._tops[number], self._places[number], rows, _SIDES[level], block, _C, num_warps=4,
        )  # fmt: skip

    def _sums(self, number: int, slope: Tensor, name: str) -> Tensor:
        """Of the gradients by BatchNorm's outputs, and of these times its normalized inputs, ``(K, 2, C)``."""
        rows, tiles, block = self._rows(2 * number + 2), 8, 128
        grid = (_over(rows, tiles * block), self._K)
        parts = self._parts(grid[0], 2, _C)
        self._kernels.pooled_sums[grid](slope, self._tops[number], parts, rows, tiles, block, _C, num_warps=4)
        sums = parts.sum(dim=1)
        self._put(f"{name}.bias", sums[:, 0])
        self._put(f"{name}.weight", sums[:, 1])
        return sums

    def _parts(self, *shape: int) -> Tensor:
        return torch.empty(self._K, *shape, device=self._cols.device)

    def _images(self, maps: Tensor, level: int) -> Tensor:
        """Maps ``(K, rows, C)`` as a batch of images for torch, ``(K N, C, side, side)``, channels last in memory."""
        side = _SIDES[level]
        return maps.view(self._K * self._N, side, side, _C).permute(0, 3, 1, 2)

    def _put(self, name: str, values: Tensor) -> None:
        start, shape = self._layout.places[name]
        self.gradients[:, start : start + shape.numel()].view(self._K, -1).copy_(values.reshape(self._K, -1))


class Launch:
    """A fused pass that is recorded once."""

    def __init__(self, images: Sequence[Images], layout: Layout, device: torch.device) -> None:
        self._pass = FusedPass(images, layout, device)
        self._pass.parameters.zero_()
        self._found: tuple[Tensor, Moments]
        with full_or_tf32(True), torch.cuda.device(device):
            self._replay = recorded(self._run)

    def _run(self) -> None:
        self._found = self._pass()

    def __call__(self, parameters: Tensor) -> tuple[Tensor, Tensor, Moments]:
        """Losses, gradients and moments; the next call overwrites them."""
        self._pass.parameters.copy_(parameters)
        self._replay()
        losses, moments = self._found
        return losses, self._pass.gradients, moments


def _patches(pixels: Tensor, out: Tensor) -> None:
    """What the first convolution multiplies, ``(N, 784, 80)``: patches, ones, zeros."""
    out[..., : _PATCH - 5] = unfold(normalized(pixels), 5).mT
    out[..., _PATCH - 5 :] = 0.0
    out[..., _PATCH - 5] = 1.0


def _statistics(parts: Tensor, rows: int) -> Statistics:
    """From sums and sums of squares, ``(K, programs, 2, C)``."""
    total = parts.double().sum(dim=1) / rows
    variance = (total[:, 1] - total[:, 0] ** 2).clamp(min=0.0)
    return Statistics(total[:, 0].float(), variance.float(), torch.rsqrt(variance + _EPS).float())


def _over(rows: int, block: int) -> int:
    return (rows + block - 1) // block
