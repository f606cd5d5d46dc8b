"""Losses and gradients of several classifiers at once, one for each seed, with one backward pass for all objectives.

A classifier has one logit z for each row, so that the gradient of an objective by a layer's output is the product of
df/dz and dz/dh: the second factor is the same for all objectives, and one pass computes it. A gap looks at the rows of
one label only, so that both gaps together cost what the cross entropy costs. On a CPU, rows are taken in pieces that
its cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu, softplus

from paretograd.geometry.gramian import kernels_available
from paretograd.problems.fairness import Rows
from paretograd.problems.fairness.objectives import Gaps, gap_signs

#: Rows of a block of the kernel, and blocks that one program takes.
_BLOCK, _TILES = 16, 8
#: Number of products that are summed at once; also the most rows that a CPU takes at a time.
_SLICE = 1024


class Chain(NamedTuple):
    """Gradients after a rectifier's backward pass.

    Attributes:
        slope: of the logits by its inputs, ``(S, rows, width)``.
        by_objective: of two objectives by its inputs, ``(2, S, rows, width)``.
        sums: of these over rows, ``(S, 2, width)``.
    """

    slope: Tensor
    by_objective: Tensor
    sums: Tensor


def through_rectifier(slope: Tensor, hidden: Tensor, factors: Tensor) -> Chain:
    """Backward pass through a rectifier: the slope is zero where its output is zero.

    On a GPU one kernel does it all: it is memory that takes the time.

    Args:
        slope: of the logits, ``(S, rows, width)``.
        hidden: what the rectifier gave, of the same shape.
        factors: of both objectives by the logits, ``(2, S, rows)``.
    """
    if hidden.is_cuda and _served(hidden) and kernels_available():
        return _fused(slope, hidden.contiguous(), factors.contiguous())
    slope = torch.ops.aten.threshold_backward(slope, hidden, 0)
    sums = torch.bmm(factors.transpose(0, 1), slope)
    return Chain(slope, factors[..., None] * slope, sums)


def _served(hidden: Tensor) -> bool:
    _, rows, width = hidden.shape
    return hidden.dtype is torch.float32 and width & (width - 1) == 0 and width >= 16 and rows % (_BLOCK * _TILES) == 0


def _fused(slope: Tensor, hidden: Tensor, factors: Tensor) -> Chain:
    from paretograd.experiments.fairness.chain_kernel import rectifier_backward

    S, rows, width = hidden.shape
    programs = rows // (_BLOCK * _TILES)
    masked, chain = torch.empty_like(hidden), hidden.new_empty(2, S, rows, width)
    parts = hidden.new_empty(S, programs, 2, width)
    rectifier_backward[(programs, S)](
        slope, hidden, factors, masked, chain, parts, rows, slope.stride(0), slope.stride(1), _TILES, _BLOCK, width
    )
    return Chain(masked, chain, parts.sum(dim=1))


class Slopes(NamedTuple):
    """Losses ``(S, 3)``, and the Jacobians by all parameters of each classifier, ``(S, 3, n)``."""

    losses: Tensor
    jacobian: Tensor


class Ensemble:
    """S classifiers of the same architecture, whose parameters are the rows of one matrix.

    Attributes:
        parameters: shape ``(S, n)``: weights and bias of each layer, one layer after the other, and zeros up to a
            multiple of the slices in which a GPU sums quickly.
    """

    def __init__(self, models: Sequence[nn.Sequential], device: torch.device | str = "cpu") -> None:
        self._shapes = [(layer.out_features, layer.in_features) for layer in models[0] if isinstance(layer, nn.Linear)]
        rows = [torch.cat([param.detach().reshape(-1) for param in model.parameters()]) for model in models]
        self.parameters = pad(torch.stack(rows), (0, -rows[0].numel() % _SLICE)).to(device)

    def at(self, parameters: Tensor) -> Ensemble:
        """Classifiers of this architecture with other parameters."""
        other = copy(self)
        other.parameters = parameters
        return other

    def _layers(self) -> list[_Layer]:
        layers, start = [], 0
        for out, width in self._shapes:
            middle = start + out * width
            weight = self.parameters[:, start:middle].view(-1, out, width)
            layers.append(_Layer(weight, self.parameters[:, None, middle : middle + out], start, middle, middle + out))
            start = middle + out
        return layers

    def _hidden(self, features: Tensor) -> list[Tensor]:
        """The inputs of all layers, each of shape ``(S, N, width)``."""
        hidden = [features[: len(self.parameters)]]
        for layer in self._layers()[:-1]:
            hidden.append(_rectified(layer, hidden[-1]))
        return hidden

    def logits(self, features: Tensor) -> Tensor:
        """Shape ``(S, N)``, for the same features ``(N, features)``."""
        return self._top(self._hidden(features.expand(len(self.parameters), -1, -1)))

    def _top(self, hidden: Sequence[Tensor]) -> Tensor:
        last = self._layers()[-1]
        return torch.baddbmm(last.bias, hidden[-1], last.weight.mT)[..., 0]

    def slopes(self, data: Sequence[Piece]) -> Slopes:
        """Losses and gradients of all classifiers."""
        jacobian = self.parameters.new_zeros(len(self.parameters), 3, self.parameters.shape[1])
        losses = self.parameters.new_zeros(len(self.parameters), 3)
        for piece in data:
            self._add(piece, losses, jacobian)
        # A gap is the absolute value of its sum; its sign is known only now.
        jacobian[:, 1:] *= torch.sign(losses[:, 1:, None])
        return Slopes(losses.abs(), jacobian)

    def _add(self, piece: Piece, losses: Tensor, jacobian: Tensor) -> None:
        """Add the contribution of some rows."""
        layers, hidden = self._layers(), self._hidden(piece.features)
        values, factors = _objectives(self._top(hidden), piece)
        objectives = (0, piece.gap)
        both = slice(0, piece.gap + 1, piece.gap)  # the same as a slice: an index would be copied to the GPU
        by_seed = factors.transpose(0, 1)  # (S, 2, rows)
        last = layers[-1]
        for k, objective in enumerate(objectives):
            losses[:, objective] += values[:, k]
            jacobian[:, objective, last.middle : last.end] += factors[k].sum(dim=1, keepdim=True)
        jacobian[:, both, last.start : last.middle] += _products(by_seed.mT, hidden[-1]).view(-1, 2, last.size)
        slope = last.weight.expand(-1, hidden[-1].shape[1], -1)  # dz/dh of the inputs of the layer above
        for depth in range(len(layers) - 2, -1, -1):
            layer = layers[depth]
            slope, chain, bias = through_rectifier(slope, hidden[depth + 1], factors)
            jacobian[:, both, layer.middle : layer.end] += bias
            for objective, part in zip(objectives, chain, strict=True):
                jacobian[:, objective, layer.start : layer.middle] += _products(part, hidden[depth])
            if depth:
                slope = torch.bmm(slope, layer.weight)


def _rectified(layer: _Layer, inputs: Tensor) -> Tensor:
    """``relu(X W.T + b)`` for all classifiers; on a GPU one after the other, in one kernel each."""
    if not inputs.is_cuda:
        return relu(torch.baddbmm(layer.bias, inputs, layer.weight.mT), inplace=True)
    found = inputs.new_empty(*inputs.shape[:2], layer.weight.shape[1])
    for out, bias, x, weight in zip(found, layer.bias[:, 0], inputs, layer.weight, strict=True):
        torch.ops.aten._addmm_activation(bias, x, weight.T, out=out)
    return found


def gramians(jacobian: Tensor) -> Tensor:
    """``J @ J.T`` of each classifier, ``(S, 3, 3)``, multiplied and summed in float64, slice by slice."""
    S, m, n = jacobian.shape
    slices = jacobian.view(S, m, n // _SLICE, _SLICE).transpose(1, 2).double()
    return torch.matmul(slices, slices.mT).sum(dim=1)


class _Layer(NamedTuple):
    """Weights ``(S, out, in)`` and biases ``(S, 1, out)`` as views, and where they begin and end in the parameters."""

    weight: Tensor
    bias: Tensor
    start: int
    middle: int
    end: int

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.middle - self.start

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.end - self.middle


class Piece(NamedTuple):
    """Rows with the same label, padded with rows of weight zero.

    Attributes:
        features: shape ``(S, rows, features)``, the same for all S; rows are a multiple of the slices of their sums.
        label: 0.0 or 1.0.
        shares: what each row counts in the cross entropy, shape ``(rows,)``.
        signs: what each row counts in the gap of its label, shape ``(rows,)``.
    """

    features: Tensor
    label: float
    shares: Tensor
    signs: Tensor

    @property
    def gap(self) -> int:
        """Index of the objective that is the gap among these rows."""
        return 1 if self.label else 2


def sort_rows(rows: Rows, gaps: Gaps, copies: int) -> list[Piece]:
    """The rows in pieces of one label each, for as many classifiers: small ones for a CPU's cache, one for a GPU."""
    signs = gap_signs(rows.labels, rows.groups, gaps).sum(dim=0).to(rows.features.dtype)
    shares = torch.full_like(signs, 1.0 / len(signs))
    size = _SLICE if rows.features.device.type == "cpu" else len(signs)
    found = []
    for label in (1.0, 0.0):
        chosen = (rows.labels == label).nonzero()[:, 0]
        for start in range(0, len(chosen), size):
            some = chosen[start : start + size]
            more = -len(some) % _SLICE
            features = pad(rows.features[some], (0, 0, 0, more)).expand(copies, -1, -1).contiguous()
            found.append(Piece(features, label, pad(shares[some], (0, more)), pad(signs[some], (0, more))))
    return found


def _objectives(z: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
    """Return the contributions of some rows to cross entropy and signed gap, ``(S, 2)``, and their derivatives by z."""
    chance = torch.sigmoid(z)
    positive = torch.tanh(chance)  # a probability is never negative: the benchmark's rectifier does nothing
    entropy = (softplus(-z if piece.label else z) * piece.shares).sum(dim=1)
    gap = (positive * piece.signs).sum(dim=1)
    by_gap = piece.signs * (1.0 - positive * positive) * chance * (1.0 - chance)
    return torch.stack([entropy, gap], dim=1), torch.stack([(chance - piece.label) * piece.shares, by_gap])


def _products(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Weight gradients ``(S, out * in)`` from those of a layer's outputs ``(S, rows, out)`` and its inputs.

    Summed in slices of rows: one long sum for each weight would leave most of a GPU idle.
    """
    S, rows, _ = outputs.shape
    count = rows // _SLICE
    left, right = (part.reshape(S * count, _SLICE, -1) for part in (outputs, inputs))
    return torch.bmm(left.mT, right).view(S, count, -1).sum(dim=1)
