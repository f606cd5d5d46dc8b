"""Rules for the operations of common layers: the Gramian of their parameters' gradients from that of their outputs.

Each rule reads what torch saved for the backward pass of one operation, and needs the gradients with respect to its
output only. Parameters without a rule are served by their own rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.nn.functional import unfold

from paretograd.autograd.graph import Use
from paretograd.autograd.products import accumulator, outer_gramian, row_gramian


class Layer(ABC):
    """One operation with parameters.

    Attributes:
        node: the operation.
        params: its parameters.
        edge: its output, as autograd names it.
        output_size: how many numbers its output holds.
    """

    def __init__(self, node: Node, params: list[Tensor], output_size: int) -> None:
        self.node, self.params, self.output_size = node, params, output_size
        self.edge = GradientEdge(node, 0)

    @abstractmethod
    def gramian(self, grads: Tensor) -> Tensor:
        """The Gramian ``(m, m)`` of the parameters' gradients, from the output's, shape ``(m, *output)``."""

    @abstractmethod
    def gradients(self, grad: Tensor) -> list[Tensor]:
        """The gradients of the parameters, from one of the output."""


class Affine(Layer):
    """``X @ W + b``: Linear, after its leading dimensions were flattened."""

    def __init__(self, node: Node, inputs: Tensor | None, weight: Tensor | None, transposed: bool, bias: Tensor | None):
        super().__init__(node, [p for p in (weight, bias) if p is not None], _size(node))
        self.inputs = inputs if weight is not None else None
        self.transposed, self.bias = transposed, bias is not None

    def gramian(self, grads: Tensor) -> Tensor:
        return outer_gramian(grads, self.inputs, self.bias)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        found = []
        if self.inputs is not None:
            inputs = self.inputs.to(grad.dtype)
            found.append(grad.T @ inputs if self.transposed else inputs.T @ grad)
        if self.bias:
            found.append(grad.sum(dim=0))
        return found


class Scaled(Layer):
    """``weight * normalized + bias`` with parameters along some dimensions: the norm layers."""

    def __init__(
        self, node: Node, normalized: Tensor, weight: Tensor | None, bias: Tensor | None, reduced: tuple[int, ...]
    ) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None], normalized.numel())
        self.normalized, self.reduced = normalized, reduced
        self.weight, self.bias = weight is not None, bias is not None

    def gramian(self, grads: Tensor) -> Tensor:
        dims = tuple(dim + 1 for dim in self.reduced)
        return sum(
            (row_gramian(rows) for rows in self._sums(grads, dims)),
            start=torch.zeros((), dtype=torch.float64, device=grads.device),
        )

    def gradients(self, grad: Tensor) -> list[Tensor]:
        return [row.to(grad.dtype) for row in self._sums(grad, self.reduced)]

    def _sums(self, grads: Tensor, dims: tuple[int, ...]) -> list[Tensor]:
        D = grads.to(accumulator(grads.dtype))
        found = []
        if self.weight:
            found.append(_summed(D * self.normalized, dims))
        if self.bias:
            found.append(_summed(D, dims))
        return found


def _summed(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    return values.sum(dim=dims) if dims else values  # torch takes no dimensions for all


class Lookup(Layer):
    """Rows of a table: Embedding. Only the rows that were looked up have a gradient."""

    def __init__(self, node: Node, table: Tensor, indices: Tensor, padding: int) -> None:
        super().__init__(node, [table], indices.numel() * table.shape[1])
        self.table, self.padding = table, padding
        self.found, self.places = torch.unique(indices, return_inverse=True)

    def _summed(self, grads: Tensor) -> Tensor:
        """Gradients of the rows that were looked up, shape ``(m, rows, width)``."""
        D = grads.reshape(len(grads), -1, self.table.shape[1]).to(accumulator(grads.dtype))
        sums = D.new_zeros(len(D), len(self.found), D.shape[2])
        sums.index_add_(1, self.places.reshape(-1), D)
        if self.padding >= 0:
            sums[:, self.found == self.padding] = 0.0
        return sums

    def gramian(self, grads: Tensor) -> Tensor:
        return row_gramian(self._summed(grads))

    def gradients(self, grad: Tensor) -> list[Tensor]:
        full = torch.zeros_like(self.table)
        full[self.found] = self._summed(grad.unsqueeze(0))[0].to(full.dtype)
        return [full]


class Convolution(Layer):
    """Convolution: an affine map of its patches in the plain two-dimensional case; else by torch's own kernel for the
    gradient of the weight, one objective at a time.
    """

    def __init__(self, node: Any, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None], _size(node))
        self.arguments = (node._saved_input, node._saved_weight)
        self.geometry = (
            node._saved_stride,
            node._saved_padding,
            node._saved_dilation,
            node._saved_transposed,
            node._saved_output_padding,
            node._saved_groups,
        )
        self.mask = [False, weight is not None, bias is not None]
        self.sizes = None if bias is None else list(bias.shape)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        inputs, weight = self.arguments
        found = torch.ops.aten.convolution_backward(
            grad.to(inputs.dtype), inputs, weight, self.sizes, *self.geometry, self.mask
        )
        return [part for part, wanted in zip(found, self.mask, strict=True) if wanted]

    def gramian(self, grads: Tensor) -> Tensor:
        inputs, weight = self.arguments
        stride, padding, dilation, transposed, _, groups = self.geometry
        if inputs.ndim == 4 and groups == 1 and not transposed:
            patches = None
            if self.mask[1]:
                columns = unfold(inputs, weight.shape[2:], dilation, padding, stride)
                patches = columns.transpose(1, 2).reshape(-1, columns.shape[1])
            outputs = grads.flatten(3).transpose(2, 3).reshape(len(grads), -1, grads.shape[2])
            return outer_gramian(outputs, patches, self.mask[2])
        rows = [torch.cat([part.reshape(-1) for part in self.gradients(grad)]) for grad in grads]
        return row_gramian(torch.stack(rows))


def _size(node: Any) -> int:
    """How many numbers the first output of an operation holds."""
    return math.prod(node._input_metadata[0].shape)


def layer_of(node: Any, uses: Mapping[int, tuple[Tensor, Use]]) -> Layer | None:
    """The rule for an operation and the parameters that enter it, by position; None if there is none."""
    build = _BUILDERS.get(node.name())
    if build is None or any(param.is_complex() or param.layout is not torch.strided for param, _ in uses.values()):
        return None
    return build(node, uses)


Uses = Mapping[int, tuple[Tensor, Use]]


def _param(uses: Uses, position: int) -> Tensor | None:
    return uses[position][0] if position in uses else None


def _addmm(node: Any, uses: Uses) -> Layer | None:
    if 1 in uses or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    bias = _param(uses, 0)
    if bias is not None and tuple(bias.shape) != tuple(node._input_metadata[0].shape[1:]):
        return None  # broadcast in another way than one for each output
    return _affine(node, uses, 2, node._saved_mat1, bias)


def _mm(node: Any, uses: Uses) -> Layer | None:
    return None if 0 in uses else _affine(node, uses, 1, node._saved_self, None)


def _affine(node: Any, uses: Uses, position: int, inputs: Tensor | None, bias: Tensor | None) -> Layer | None:
    weight = _param(uses, position)
    if weight is not None and (inputs is None or inputs.layout is not torch.strided):
        return None
    return Affine(node, inputs, weight, weight is not None and uses[position][1].transposed, bias)


def _plain(uses: Uses, *positions: int) -> bool:
    """Whether the parameters enter at these positions only, and as they are."""
    return set(uses) <= set(positions) and not any(use.transposed for _, use in uses.values())


def _layer_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs = node._saved_input
    inputs = inputs.to(accumulator(inputs.dtype))
    normalized = (inputs - node._saved_result1) * node._saved_result2
    leading = tuple(range(inputs.ndim - len(node._saved_normalized_shape)))
    return Scaled(node, normalized, _param(uses, 1), _param(uses, 2), leading)


def _batch_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs = node._saved_input
    inputs = inputs.to(accumulator(inputs.dtype))
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    if node._saved_training:
        mean, inverse = node._saved_result1, node._saved_result2
    else:
        eps = node._saved_eps if hasattr(node, "_saved_eps") else node._saved_epsilon
        mean, inverse = node._saved_running_mean, (node._saved_running_var + eps).rsqrt()
    normalized = (inputs - mean.reshape(shape)) * inverse.reshape(shape)
    reduced = (0, *range(2, inputs.ndim))
    return Scaled(node, normalized, _param(uses, 1), _param(uses, 2), reduced)


def _group_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs, groups = node._saved_input, node._saved_group
    grouped = inputs.to(accumulator(inputs.dtype)).reshape(len(inputs), groups, -1)
    mean, inverse = node._saved_result1.reshape(-1, groups, 1), node._saved_result2.reshape(-1, groups, 1)
    normalized = ((grouped - mean) * inverse).reshape(inputs.shape)
    return Scaled(node, normalized, _param(uses, 1), _param(uses, 2), (0, *range(2, inputs.ndim)))


def _embedding(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 0) or node._saved_scale_grad_by_freq or node._saved_sparse:
        return None
    padding = node._saved_padding_idx
    rows = uses[0][0].shape[0]
    return Lookup(node, uses[0][0], node._saved_indices, padding if padding < rows else -1)


def _convolution(node: Any, uses: Uses) -> Layer | None:
    return Convolution(node, _param(uses, 1), _param(uses, 2)) if _plain(uses, 1, 2) else None


_BUILDERS: dict[str, Callable[[Any, Uses], Layer | None]] = {
    "AddmmBackward0": _addmm,
    "MmBackward0": _mm,
    "NativeLayerNormBackward0": _layer_norm,
    "NativeBatchNormBackward0": _batch_norm,
    "CudnnBatchNormBackward0": _batch_norm,
    "NativeGroupNormBackward0": _group_norm,
    "EmbeddingBackward0": _embedding,
    "ConvolutionBackward0": _convolution,
}
