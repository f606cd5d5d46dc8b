"""Rules for the operations of common layers: the Gramian of their parameters' gradients from that of their outputs.

Each rule reads what torch saved for the backward pass of one operation, and needs the gradients with respect to its
output only. Parameters without a rule are served by their own rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.nn.functional import unfold

from paretograd.autograd.products import accumulator, outer_gramian, row_gramian


class Layer(ABC):
    """One operation with parameters.

    Attributes:
        node: the operation.
        params: its parameters.
        edge: its output, as autograd names it.
        output_shape: the shape of its output.
    """

    def __init__(self, node: Any, params: list[Tensor]) -> None:
        self.node, self.params = node, params
        self.output_shape = tuple(node._input_metadata[0].shape)
        self.edge = GradientEdge(node, 0)

    @property
    def output_size(self) -> int:
        """How many numbers its output holds."""
        return math.prod(self.output_shape)

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        """The Gramian of the gradients of m samples, from the output's, which has them along its first dimension.

        None where the layer does not keep samples apart.
        """
        return None

    @abstractmethod
    def gramian(self, grads: Tensor) -> Tensor:
        """The Gramian ``(m, m)`` of the parameters' gradients, from the output's, shape ``(m, *output)``."""

    @abstractmethod
    def gradients(self, grad: Tensor) -> list[Tensor]:
        """The gradients of the parameters, from one of the output."""


class Affine(Layer):
    """``X @ W + b``: Linear, after its leading dimensions were flattened."""

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
        return _sum_of_gramians(self._sums(grads, tuple(dim + 1 for dim in self.reduced)))

    def gradients(self, grad: Tensor) -> list[Tensor]:
        return [row.to(grad.dtype) for row in self._sums(grad, self.reduced)]

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        if 0 not in self.reduced:
            return None  # the parameters differ along the first dimension, so that it holds no samples
        return _sum_of_gramians(self._sums(grad, tuple(dim for dim in self.reduced if dim != 0)))

    def _sums(self, grads: Tensor, dims: tuple[int, ...]) -> list[Tensor]:
        D = grads.to(accumulator(grads.dtype))
        found = []
        if self.weight:
            found.append(_summed(D * self.normalized, dims))
        if self.bias:
            found.append(_summed(D, dims))
        return found


def _sum_of_gramians(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([row_gramian(rows) for rows in parts]).sum(dim=0)


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

    def _is_plain(self) -> bool:
        _, _, _, transposed, _, groups = self.geometry
        return self.arguments[0].ndim == 4 and groups == 1 and not transposed

    def _patches(self) -> Tensor:
        """What the kernel sees, shape ``(samples, kernel size, places)``."""
        inputs, weight = self.arguments
        stride, padding, dilation, *_ = self.geometry
        return unfold(inputs, weight.shape[2:], dilation, padding, stride)

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

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        if not self._is_plain():
            return None
        D, parts = grad.flatten(2), []
        if self.mask[1]:
            parts.append(D @ self._patches().to(D.dtype).transpose(1, 2))
        if self.mask[2]:
            parts.append(D.sum(dim=2))
        return _sum_of_gramians(parts)
