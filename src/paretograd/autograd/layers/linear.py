"""Rules for linear maps of their inputs: matrix products and convolutions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.functional import pad

from paretograd.autograd.layers.layer import Layer, Part, Samples, Uses, enter_only_at, parameter_at, register_layer
from paretograd.autograd.layers.products import outer_gramian, sample_outer_gramian, sample_outer_products
from paretograd.autograd.products import inner_products, row_gramian
from paretograd.geometry.row_lists import accumulator


class Outer(Layer):
    """Layer whose weight has the gradient ``D.T @ X``, by groups of channels.

    Attributes:
        weight: True if the gradient of the weight is needed.
        bias: True if that of the bias is.
        form: layers with the same parameters and the same form can be joined along their rows; None for no others.
    """

    leading = 1
    form: tuple[int, bool] | None

    def __init__(self, node: Node, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, [p for p in (weight, bias) if p is not None])
        self.weight, self.bias = weight is not None, bias is not None

    @abstractmethod
    def inputs(self) -> Tensor:
        """Return X, shape ``(N, groups, in)``."""

    @abstractmethod
    def columns(self, grads: Tensor) -> Tensor:
        """Return D, shape ``(..., N, out)``, from gradients ``(..., *output)``."""

    @abstractmethod
    def shaped(self, products: Tensor) -> Tensor:
        """Return gradients of the weight, shape ``(m, *weight)``, from products ``(m, groups, out, in)``."""

    def part(self, grads: Tensor) -> Part:
        """Return the part of a layer with one group of channels."""
        return Part(*outer_gramian(self.columns(grads), self.inputs()[:, 0] if self.weight else None, self.bias))

    @abstractmethod
    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the output of the layer for other parameters, in the dtype of the inputs."""

    def slopes(self, grads: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        output = self.forward(vectors).expand(self.output_shape).reshape(1, -1)
        kind = accumulator(torch.promote_types(grads.dtype, output.dtype))
        return inner_products(grads.reshape(len(grads), -1).to(kind), output.to(kind))[:, 0]

    def sample_factors(self, grad: Tensor, samples: Samples) -> tuple[Tensor, Tensor | None]:
        """Return D and X of each sample, shapes ``(m, T, out)`` and ``(m, T, groups, in)``."""
        D = self.columns(grad)
        rows = samples._replace(after=samples.after * len(D) // len(grad))
        return rows.split(D), rows.split(self.inputs()) if self.weight else None

    def sample_gramian(self, grad: Tensor, samples: Samples) -> Tensor:
        return sample_outer_gramian(*self.sample_factors(grad, samples), self.bias)

    def sample_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        D, X = self.sample_factors(grad, samples)
        found = [] if X is None else [self.shaped(sample_outer_products(D, X))]
        return [*found, D.sum(dim=1, dtype=accumulator(D.dtype))] if self.bias else found


class Affine(Outer):
    """``X @ W + b``: Linear with flattened leading dimensions."""

    def __init__(self, node: Any, saved: str, weight: Tensor | None, transposed: bool, bias: Tensor | None) -> None:
        """Take the operation and its parameters.

        Args:
            node: the operation.
            saved: attribute in which it keeps X.
            weight: W, or None if it needs no gradient.
            transposed: True if W is the transpose of the parameter.
            bias: b, or None.
        """
        super().__init__(node, weight, bias)
        self.saved, self.transposed = saved, transposed
        self.form = (1, transposed)

    def inputs(self) -> Tensor:
        values: Tensor = getattr(self.node, self.saved)
        return values.unsqueeze(1)

    def columns(self, grads: Tensor) -> Tensor:
        return grads

    def shaped(self, products: Tensor) -> Tensor:
        return products[:, 0] if self.transposed else products[:, 0].mT

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        bias = vectors[-1] if self.bias else vectors[0].new_zeros(())
        if not self.weight:
            return bias
        inputs = self.inputs()[:, 0].to(accumulator(vectors[0].dtype))
        weight = vectors[0].to(inputs.dtype)
        return inputs @ (weight.T if self.transposed else weight) + bias

    def gradients(self, grad: Tensor) -> list[Tensor]:
        found = []
        if self.weight:
            inputs = self.inputs()[:, 0].to(grad.dtype)
            found.append(grad.T @ inputs if self.transposed else inputs.T @ grad)
        if self.bias:
            found.append(grad.sum(dim=0))
        return found


@register_layer("AddmmBackward0")
def _addmm(node: Any, uses: Uses) -> Layer | None:
    if 1 in uses or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    bias = parameter_at(uses, 0)
    if bias is not None and tuple(bias.shape) != tuple(node._input_metadata[0].shape[1:]):
        return None  # broadcast other than one number per output
    return _affine(node, uses, 2, "_saved_mat1", bias)


@register_layer("MmBackward0")
def _mm(node: Any, uses: Uses) -> Layer | None:
    return None if 0 in uses else _affine(node, uses, 1, "_saved_self", None)


def _affine(node: Any, uses: Uses, position: int, saved: str, bias: Tensor | None) -> Layer | None:
    weight = parameter_at(uses, position)
    inputs = getattr(node, saved)
    if weight is not None and (inputs is None or inputs.layout is not torch.strided):
        return None
    return Affine(node, saved, weight, weight is not None and uses[position][1].transposed, bias)


class Convolution(Outer):
    """Convolution: an affine map of its patches, by groups of channels.

    For several objectives, this pays in the plain two-dimensional case. Others use torch's own kernel for the gradient
    of the weight, one objective after the other.
    """

    def __init__(self, node: Any, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, weight, bias)
        self.dims = dims = len(self.output_shape) - 2
        self.steps, self.padding = _each(node._saved_stride, dims), _each(node._saved_padding, dims)
        self.dilation, self.groups = _each(node._saved_dilation, dims), node._saved_groups
        self.transposed, self.more = node._saved_transposed, _each(node._saved_output_padding, dims)
        self.sizes = None if bias is None else list(bias.shape)
        self.form = (self.groups, False)

    def part(self, grads: Tensor) -> Part:
        if self.dims == 2 and self.groups == 1 and not self.transposed:
            return super().part(grads)
        rows = [torch.cat([part.reshape(-1) for part in self.gradients(grad)]) for grad in grads]
        return Part(row_gramian(torch.stack(rows)), [])

    @property
    def arguments(self) -> tuple[Tensor, Tensor]:
        """The input and the weight."""
        return self.node._saved_input, self.node._saved_weight

    def inputs(self) -> Tensor:
        return self.patches(self.arguments[0]).reshape(-1, self.groups, self.arguments[1][0].numel())

    def patches(self, values: Tensor) -> Tensor:
        """Return the patches under the kernel, shape ``(samples, *places, channels, *kernel)``, as a view.

        Torch's `unfold` has two dimensions only, and processes the samples one by one on a GPU.
        """
        x = pad(values, [size for size in reversed(self.padding) for _ in range(2)]) if any(self.padding) else values
        kernel = self.arguments[1].shape[2:]
        places = [
            (size - wide * (length - 1) - 1) // step + 1
            for size, wide, length, step in zip(x.shape[2:], self.dilation, kernel, self.steps, strict=True)
        ]
        sample, channel, *strides = x.stride()
        across = [stride * step for stride, step in zip(strides, self.steps, strict=True)]
        within = [stride * wide for stride, wide in zip(strides, self.dilation, strict=True)]
        shape = (x.shape[0], *places, x.shape[1], *kernel)
        return x.as_strided(shape, (sample, *across, channel, *within), x.storage_offset())

    def columns(self, grads: Tensor) -> Tensor:
        return grads.flatten(-self.dims).transpose(-3, -2).flatten(-2).mT  # laid out as (..., channels, N)

    def shaped(self, products: Tensor) -> Tensor:
        return products.reshape(len(products), *self.arguments[1].shape)

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        inputs = self.arguments[0]
        bias = vectors[-1].to(inputs.dtype) if self.bias else None
        if not self.weight:
            assert bias is not None
            return bias.reshape(-1, *(1,) * self.dims)
        geometry = (self.steps, self.padding, self.dilation, self.transposed, self.more, self.groups)
        found: Tensor = torch.ops.aten.convolution(inputs, vectors[0].to(inputs.dtype), bias, *geometry)
        return found

    def gradients(self, grad: Tensor) -> list[Tensor]:
        inputs, weight = self.arguments
        geometry = (self.steps, self.padding, self.dilation, self.transposed, self.more, self.groups)
        mask = [False, self.weight, self.bias]
        found = torch.ops.aten.convolution_backward(grad.to(inputs.dtype), inputs, weight, self.sizes, *geometry, mask)
        return [part for part, wanted in zip(found, mask, strict=True) if wanted]


class TransposedConvolution(Convolution):
    """Transposed convolution: its outputs have patches, one for each place of the input."""

    def __init__(self, node: Any, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(node, weight, bias)
        self.form = None

    def inputs(self) -> Tensor:
        values = self.arguments[0].flatten(2).transpose(1, 2)
        return values.reshape(len(values) * values.shape[1], self.groups, -1)

    def columns(self, grads: Tensor) -> Tensor:
        places = self.arguments[0].shape[2:]
        patches = self.patches(grads)[:, *(slice(size) for size in places)]  # output padding may leave room for more
        return patches.reshape(len(grads) * math.prod(places), -1)

    def shaped(self, products: Tensor) -> Tensor:
        return products.mT.reshape(len(products), *self.arguments[1].shape)

    def sample_gramian(self, grad: Tensor, samples: Samples) -> Tensor:
        parts = [row_gramian(rows) for rows in self._bias_rows(grad, samples)]
        if self.weight:
            parts.append(sample_outer_gramian(*self.sample_factors(grad, samples), False))
        return torch.stack(parts).sum(dim=0)

    def sample_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        found = []
        if self.weight:
            D, X = self.sample_factors(grad, samples)
            assert X is not None
            found.append(self.shaped(sample_outer_products(D, X)))
        return found + self._bias_rows(grad, samples)

    def _bias_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        sums = grad.flatten(2).sum(dim=2, dtype=accumulator(grad.dtype))
        return [samples.split(sums).sum(dim=1)] if self.bias else []


def _each(numbers: Sequence[int], dims: int) -> tuple[int, ...]:
    """Return one number per dimension: torch may keep a single one for all, as for ``padding="valid"``."""
    return tuple(numbers) if len(numbers) == dims else tuple(numbers) * dims


@register_layer("ConvolutionBackward0")
def _convolution(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 1, 2):
        return None
    kind = TransposedConvolution if node._saved_transposed else Convolution
    return kind(node, parameter_at(uses, 1), parameter_at(uses, 2))
