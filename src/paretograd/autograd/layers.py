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
        output_shape: the shape of its output.
        keeps_samples: whether `sample_gramian` is there for it.
    """

    keeps_samples = False

    def __init__(self, node: Any, params: list[Tensor]) -> None:
        self.node, self.params = node, params
        self.output_shape = tuple(node._input_metadata[0].shape)
        self.edge = GradientEdge(node, 0)

    @property
    def output_size(self) -> int:
        """How many numbers its output holds."""
        return math.prod(self.output_shape)

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        """The Gramian of the gradients of m samples, from the output's, which has them along its first dimension."""
        return None

    @abstractmethod
    def gramian(self, grads: Tensor) -> Tensor:
        """The Gramian ``(m, m)`` of the parameters' gradients, from the output's, shape ``(m, *output)``."""

    @abstractmethod
    def gradients(self, grad: Tensor) -> list[Tensor]:
        """The gradients of the parameters, from one of the output."""


class Affine(Layer):
    """``X @ W + b``: Linear, after its leading dimensions were flattened."""

    keeps_samples = True

    def __init__(self, node: Node, inputs: Tensor | None, weight: Tensor | None, transposed: bool, bias: Tensor | None):
        super().__init__(node, [p for p in (weight, bias) if p is not None])
        self.inputs = inputs if weight is not None else None
        self.transposed, self.bias = transposed, bias is not None

    def gramian(self, grads: Tensor) -> Tensor:
        return outer_gramian(grads, self.inputs, self.bias)

    def sample_gramian(self, grad: Tensor) -> Tensor:
        # <d_k x_k', d_l x_l'> = <d_k, d_l> <x_k, x_l>
        products = row_gramian(grad)
        if self.inputs is None:
            return products
        return products * (row_gramian(self.inputs) + (1.0 if self.bias else 0.0))

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
        super().__init__(node, [p for p in (weight, bias) if p is not None])
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

    @property
    def keeps_samples(self) -> bool:  # type: ignore[override]
        """Yes where the first dimension is summed over, and so holds samples."""
        return 0 in self.reduced

    def sample_gramian(self, grad: Tensor) -> Tensor:
        dims = tuple(dim for dim in self.reduced if dim != 0)
        return sum(
            (row_gramian(rows) for rows in self._sums(grad, dims)),
            start=torch.zeros((), dtype=torch.float64, device=grad.device),
        )

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
        super().__init__(node, [table])
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

    @property
    def keeps_samples(self) -> bool:  # type: ignore[override]
        """Yes in the plain two-dimensional case."""
        return self._is_plain()

    def _is_plain(self) -> bool:
        _, _, _, transposed, _, groups = self.geometry
        return self.arguments[0].ndim == 4 and groups == 1 and not transposed

    def _patches(self) -> Tensor:
        """What the kernel sees, shape ``(samples, kernel size, places)``."""
        inputs, weight = self.arguments
        stride, padding, dilation, *_ = self.geometry
        return unfold(inputs, weight.shape[2:], dilation, padding, stride)

    def sample_gramian(self, grad: Tensor) -> Tensor:
        D = grad.flatten(2)
        G = row_gramian(D @ self._patches().to(D.dtype).transpose(1, 2)) if self.mask[1] else 0.0
        return G + row_gramian(D.sum(dim=2)) if self.mask[2] else torch.as_tensor(G)

    def __init__(self, node: Any, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None])
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
        if self._is_plain():
            patches = None
            if self.mask[1]:
                columns = self._patches()
                patches = columns.transpose(1, 2).reshape(-1, columns.shape[1])
            outputs = grads.flatten(3).transpose(2, 3).reshape(len(grads), -1, grads.shape[2])
            return outer_gramian(outputs, patches, self.mask[2])
        rows = [torch.cat([part.reshape(-1) for part in self.gradients(grad)]) for grad in grads]
        return row_gramian(torch.stack(rows))


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
