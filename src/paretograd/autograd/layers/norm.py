"""Rules for parameters that scale and shift normalized values: the normalization layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from paretograd.autograd.graph import Use
from paretograd.autograd.layers.layer import (
    Layer,
    Part,
    Samples,
    Uses,
    enter_only_at,
    parameter_at,
    reads_checkpoint,
    register_layer,
)
from paretograd.geometry.row_lists import accumulator


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
        self.leading = next(k for k in range(len(reduced) + 1) if reduced[k : k + 1] != (k,))

    def part(self, grads: Tensor) -> Part:
        return Part(None, [row.flatten(1) for row in self._sums(grads, 1)])

    def gradients(self, grad: Tensor) -> list[Tensor]:
        return [row.to(grad.dtype) for row in self._sums(grad, 0)]

    def sample_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        def split(values: Tensor) -> Tensor:
            return samples.split(values.expand(self.output_shape).flatten(0, self.leading - 1))

        D = split(grad.to(accumulator(grad.dtype)))
        dims = (1, *(dim - self.leading + 2 for dim in self.reduced if dim >= self.leading))
        found = [(D * split(self.normalized())).sum(dim=dims)] if self.weight else []
        found += [D.sum(dim=dims)] if self.bias else []
        return [rows.reshape(-1, *param.shape) for rows, param in zip(found, self.params, strict=True)]

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


def _summed(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    return values.sum(dim=dims) if dims else values  # for torch, no dimensions means all


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


def pointwise_layer(param: Tensor, use: Use) -> Layer | None:
    """Return the layer of a parameter that is added to values, multiplied with them, or expanded.

    Its rows are short sums, which torch computes as fast; samples need a rule.
    """
    node: Any = use.node
    name = node.name()
    if name not in ("AddBackward0", "MulBackward0", "ExpandBackward0") or use.transposed or param.is_complex():
        return None
    if reads_checkpoint(node) or (name == "AddBackward0" and node._saved_alpha != 1):
        return None
    shape = node._input_metadata[0].shape
    new = len(shape) - param.ndim
    reduced = (*range(new), *(dim + new for dim, size in enumerate(param.shape) if size != shape[dim + new]))
    if name != "MulBackward0":
        return Scaled(node, lambda: param.new_ones(()), None, param, reduced)
    other = "_saved_self" if use.position else "_saved_other"
    return Scaled(node, lambda: _long(getattr(node, other)), param, None, reduced)


@register_layer("NativeLayerNormBackward0")
def _layer_norm(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 1, 2):
        return None

    def normalized() -> Tensor:
        values: Tensor = (_long(node._saved_input) - node._saved_result1) * node._saved_result2
        return values

    return Scaled(node, normalized, parameter_at(uses, 1), parameter_at(uses, 2), _before(node))


@register_layer("FusedRmsNormBackward0")
def _rms_norm(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 1):
        return None
    leading = _before(node)

    def normalized() -> Tensor:
        inputs: Tensor = _long(node._saved_input)
        inverse: Tensor = node._saved_result1
        return inputs * inverse.reshape(*inputs.shape[: len(leading)], *(1,) * (inputs.ndim - len(leading)))

    return Scaled(node, normalized, uses[1][0], None, leading)


def _before(node: Any) -> tuple[int, ...]:
    """Return the dimensions before those over which a node normalizes."""
    return tuple(range(len(node._input_metadata[0].shape) - len(node._saved_normalized_shape)))


@register_layer("NativeBatchNormBackward0", "CudnnBatchNormBackward0")
def _batch_norm(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 1, 2):
        return None
    dims = len(node._input_metadata[0].shape)
    shape = (1, -1) + (1,) * (dims - 2)
    if node._saved_training:
        mean, inverse = node._saved_result1, node._saved_result2
    else:
        eps = node._saved_eps if hasattr(node, "_saved_eps") else node._saved_epsilon
        mean, inverse = node._saved_running_mean, (node._saved_running_var + eps).rsqrt()
    factor = inverse if node._saved_weight is None else inverse * node._saved_weight
    mean, inverse = mean.reshape(shape), inverse.reshape(shape)

    def normalized() -> Tensor:
        values: Tensor = (_long(node._saved_input) - mean) * inverse
        return values

    weight, bias = parameter_at(uses, 1), parameter_at(uses, 2)
    return BatchNorm(node, normalized, weight, bias, (0, *range(2, dims)), factor)


@register_layer("NativeGroupNormBackward0")
def _group_norm(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 1, 2):
        return None
    groups = node._saved_group

    def normalized() -> Tensor:
        inputs = node._saved_input
        mean, inverse = (values.reshape(-1, groups, 1) for values in (node._saved_result1, node._saved_result2))
        values: Tensor = (_long(inputs).reshape(len(inputs), groups, -1) - mean) * inverse
        return values.reshape(inputs.shape)

    reduced = (0, *range(2, len(node._input_metadata[0].shape)))
    return Scaled(node, normalized, parameter_at(uses, 1), parameter_at(uses, 2), reduced)


def _long(inputs: Tensor) -> Tensor:
    return inputs.to(accumulator(inputs.dtype))
