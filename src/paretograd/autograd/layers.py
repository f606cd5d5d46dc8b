"""Rules for common layers: the Gramian of their parameters' gradients from the gradients of their outputs.

Each rule reads what torch saved for the backward pass of one operation, and needs only the gradients with respect to
its output. Parameters without a rule use their rows of the Jacobian.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.nn.functional import pad

from paretograd.autograd.products import outer_gramian, row_gramian
from paretograd.geometry.row_lists import accumulator


class Part(NamedTuple):
    """Contribution of a layer to the Gramian: a matrix, and short rows, which are all multiplied together in the end.

    Attributes:
        gramian: shape ``(m, m)``, float64, symmetric up to rounding; None for zero.
        rows: gradients of small parameters, each of shape ``(m, size)``.
    """

    gramian: Tensor | None
    rows: list[Tensor]


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
        """Number of entries of its output."""
        return math.prod(self.output_shape)

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        """Return the Gramian of the gradients of m samples, from the output's gradient with samples in dimension 0.

        Return None if the layer does not keep samples separate.
        """
        return None

    @abstractmethod
    def part(self, grads: Tensor) -> Part:
        """Return the parameters' part of the Gramian, from the gradients of the output, shape ``(m, *output)``."""

    def pull(self, grads: Tensor, part: Part) -> Tensor | None:
        """Return the gradients ``(m, *input)`` of the input if that is cheaper than torch's own rule for batches.

        Return None to leave it to torch.
        """
        return None

    @abstractmethod
    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Return the gradients of the parameters, from one gradient of the output."""


class Affine(Layer):
    """``X @ W + b``: Linear with flattened leading dimensions."""

    def __init__(self, node: Node, inputs: Tensor | None, weight: Tensor | None, transposed: bool, bias: Tensor | None):
        super().__init__(node, [p for p in (weight, bias) if p is not None])
        self.inputs = inputs if weight is not None else None
        self.transposed, self.bias = transposed, bias is not None

    def part(self, grads: Tensor) -> Part:
        return Part(*outer_gramian(grads, self.inputs, self.bias))

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
    """``weight * normalized + bias`` with parameters along some dimensions: the normalization layers."""

    def __init__(
        self,
        node: Node,
        normalized: Callable[[], Tensor],
        weight: Tensor | None,
        bias: Tensor | None,
        reduced: tuple[int, ...],
    ) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None])
        self.normalized, self.reduced = normalized, reduced
        self.weight, self.bias = weight is not None, bias is not None

    def part(self, grads: Tensor) -> Part:
        return Part(None, [row.flatten(1) for row in self._sums(grads, 1)])

    def gradients(self, grad: Tensor) -> list[Tensor]:
        return [row.to(grad.dtype) for row in self._sums(grad, 0)]

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        if 0 not in self.reduced:
            return None  # the parameters vary along the first dimension, so it does not hold samples
        dims = tuple(dim for dim in self.reduced if dim != 0)
        return _sum_of_gramians(self._reduced(grad.to(accumulator(grad.dtype)), dims))

    def _sums(self, grads: Tensor, leading: int) -> list[Tensor]:
        """Return the gradients of the parameters, from those of the output with ``leading`` dimensions in front."""
        D = grads.to(accumulator(grads.dtype))
        if leading and self.weight and self.reduced[1:] and self.reduced[1] == 2:
            return self._channel_sums(D)
        return self._reduced(D, tuple(dim + leading for dim in self.reduced))

    def _reduced(self, D: Tensor, dims: tuple[int, ...]) -> list[Tensor]:
        found = []
        if self.weight:
            found.append(_summed(D * self.normalized(), dims))
        if self.bias:
            found.append(_summed(D, dims))
        return found

    def _channel_sums(self, D: Tensor) -> list[Tensor]:
        """Return the sums over samples and places, shape ``(m, channels)``, without another array of D's size.

        They are products with (normalized, 1) for every channel of every sample.
        """
        m, samples, channels = D.shape[:3]
        values = self.normalized().reshape(samples * channels, -1)
        factors = torch.stack([values, torch.ones_like(values)], dim=-1) if self.bias else values[..., None]
        products = torch.bmm(D.reshape(m, samples * channels, -1).transpose(0, 1), factors)
        sums = products.reshape(samples, channels, m, -1).sum(dim=0)
        return [column.T for column in sums.unbind(dim=-1)]


class BatchNorm(Scaled):
    """`Scaled` with the statistics of the batch, or fixed ones.

    Torch's rule for a batch of gradients copies the input m times and allocates several more arrays of that size.
    """

    def __init__(
        self,
        node: Any,
        normalized: Callable[[], Tensor],
        weight: Tensor | None,
        bias: Tensor | None,
        reduced: tuple[int, ...],
        factor: Tensor,
    ) -> None:
        """Take the arguments of `Scaled` and the slope.

        Args:
            factor: slope of the output with respect to the input for fixed statistics, one number per channel.
        """
        super().__init__(node, normalized, weight, bias, reduced)
        self.factor = factor

    def pull(self, grads: Tensor, part: Part) -> Tensor | None:
        node = self.node
        if node.next_functions[0][0] is None or (node._saved_training and len(part.rows) < 2):
            return None
        channels = (-1, 1, self.output_shape[1]) + (1,) * (len(self.output_shape) - 2)
        D = grads.to(accumulator(grads.dtype))
        if not node._saved_training:
            return (D * self.factor.reshape(channels)).to(grads.dtype)
        count = self.output_size // self.output_shape[1]
        with_input, alone = (row.reshape(channels) / count for row in part.rows)
        found: Tensor = (D - alone).addcmul_(self.normalized(), with_input, value=-1.0)
        return found.mul_(self.factor.reshape(channels)).to(grads.dtype)


def _sum_of_gramians(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([row_gramian(rows) for rows in parts]).sum(dim=0)


def _summed(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    return values.sum(dim=dims) if dims else values  # for torch, no dimensions means all


def _each(numbers: Sequence[int], dims: int) -> tuple[int, ...]:
    """Return one number per dimension: torch may keep a single one for all, as for ``padding="valid"``."""
    return tuple(numbers) if len(numbers) == dims else tuple(numbers) * dims


class Lookup(Layer):
    """Embedding: rows of a table. Only the rows that were looked up have a gradient."""

    def __init__(self, node: Node, table: Tensor, indices: Tensor, padding: int) -> None:
        super().__init__(node, [table])
        self.table, self.padding = table, padding
        self.found, self.places = torch.unique(indices, return_inverse=True)

    def _summed(self, grads: Tensor) -> Tensor:
        """Return the gradients of the rows that were looked up, shape ``(m, rows, width)``."""
        D = grads.reshape(len(grads), -1, self.table.shape[1]).to(accumulator(grads.dtype))
        sums = D.new_zeros(len(D), len(self.found), D.shape[2])
        sums.index_add_(1, self.places.reshape(-1), D)
        if self.padding >= 0:
            sums[:, self.found == self.padding] = 0.0
        return sums

    def part(self, grads: Tensor) -> Part:
        return Part(row_gramian(self._summed(grads)), [])

    def gradients(self, grad: Tensor) -> list[Tensor]:
        full = torch.zeros_like(self.table)
        full[self.found] = self._summed(grad.unsqueeze(0))[0].to(full.dtype)
        return [full]


class Convolution(Layer):
    """Convolution: an affine map of its patches in the plain two-dimensional case.

    Other cases use torch's own kernel for the gradient of the weight, one objective at a time.
    """

    def __init__(self, node: Any, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None])
        self.arguments = (node._saved_input, node._saved_weight)
        dims = node._saved_weight.ndim - 2
        self.geometry = (
            _each(node._saved_stride, dims),
            _each(node._saved_padding, dims),
            _each(node._saved_dilation, dims),
            node._saved_transposed,
            _each(node._saved_output_padding, dims),
            node._saved_groups,
        )
        self.mask = [False, weight is not None, bias is not None]
        self.sizes = None if bias is None else list(bias.shape)

    def _is_plain(self) -> bool:
        _, _, _, transposed, _, groups = self.geometry
        return self.arguments[0].ndim == 4 and groups == 1 and not transposed

    def _patches(self) -> Tensor:
        """Return the patches under the kernel, shape ``(samples, places, kernel size)``: a copied view of the input.

        Torch's `unfold` processes the samples one by one on a GPU.
        """
        inputs, weight = self.arguments
        (down, right), (above, left), (dy, dx), *_ = self.geometry
        x = pad(inputs, (left, left, above, above)) if above or left else inputs
        samples, channels, height, width = x.shape
        rows, columns = weight.shape[2:]
        high = (height - dy * (rows - 1) - 1) // down + 1
        wide = (width - dx * (columns - 1) - 1) // right + 1
        s, c, y, z = x.stride()
        shape = (samples, high, wide, channels, rows, columns)
        view = x.as_strided(shape, (s, y * down, z * right, c, y * dy, z * dx), x.storage_offset())
        return view.reshape(samples, high * wide, channels * rows * columns)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        inputs, weight = self.arguments
        found = torch.ops.aten.convolution_backward(
            grad.to(inputs.dtype), inputs, weight, self.sizes, *self.geometry, self.mask
        )
        return [part for part, wanted in zip(found, self.mask, strict=True) if wanted]

    def part(self, grads: Tensor) -> Part:
        if self._is_plain():
            patches = self._patches().flatten(0, 1) if self.mask[1] else None
            outputs = grads.flatten(3).transpose(1, 2).flatten(2)  # (m, channels, samples and places)
            return Part(*outer_gramian(outputs.transpose(1, 2), patches, self.mask[2]))
        rows = [torch.cat([part.reshape(-1) for part in self.gradients(grad)]) for grad in grads]
        return Part(row_gramian(torch.stack(rows)), [])

    def sample_gramian(self, grad: Tensor) -> Tensor | None:
        if not self._is_plain():
            return None
        D, parts = grad.flatten(2), []
        if self.mask[1]:
            parts.append(D @ self._patches().to(D.dtype))
        if self.mask[2]:
            parts.append(D.sum(dim=2))
        return _sum_of_gramians(parts)
