"""Construction of layers from what torch's operations saved for their backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd.graph import Use
from paretograd.autograd.layers import Affine, BatchNorm, Convolution, Layer, Lookup, Scaled
from paretograd.geometry.row_lists import accumulator

#: Parameters of an operation, by the position at which they enter.
Uses = Mapping[int, tuple[Tensor, Use]]


def layer_of(node: Any, uses: Uses) -> Layer | None:
    """Return the rule for an operation and its parameters, by position; None if there is none."""
    build = _BUILDERS.get(node.name())
    if build is None or any(param.is_complex() or param.layout is not torch.strided for param, _ in uses.values()):
        return None
    return build(node, uses)


def _param(uses: Uses, position: int) -> Tensor | None:
    return uses[position][0] if position in uses else None


def _addmm(node: Any, uses: Uses) -> Layer | None:
    if 1 in uses or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    bias = _param(uses, 0)
    if bias is not None and tuple(bias.shape) != tuple(node._input_metadata[0].shape[1:]):
        return None  # broadcast other than one number per output
    return _affine(node, uses, 2, node._saved_mat1, bias)


def _mm(node: Any, uses: Uses) -> Layer | None:
    return None if 0 in uses else _affine(node, uses, 1, node._saved_self, None)


def _affine(node: Any, uses: Uses, position: int, inputs: Tensor | None, bias: Tensor | None) -> Layer | None:
    weight = _param(uses, position)
    if weight is not None and (inputs is None or inputs.layout is not torch.strided):
        return None
    return Affine(node, inputs, weight, weight is not None and uses[position][1].transposed, bias)


def _long(inputs: Tensor) -> Tensor:
    return inputs.to(accumulator(inputs.dtype))


def _plain(uses: Uses, *positions: int) -> bool:
    """Return True if the parameters enter only at these positions, and not transposed."""
    return set(uses) <= set(positions) and not any(use.transposed for _, use in uses.values())


def _layer_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs, mean, inverse = node._saved_input, node._saved_result1, node._saved_result2
    leading = tuple(range(inputs.ndim - len(node._saved_normalized_shape)))
    return Scaled(node, lambda: (_long(inputs) - mean) * inverse, _param(uses, 1), _param(uses, 2), leading)


def _batch_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs = node._saved_input
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    if node._saved_training:
        mean, inverse = node._saved_result1, node._saved_result2
    else:
        eps = node._saved_eps if hasattr(node, "_saved_eps") else node._saved_epsilon
        mean, inverse = node._saved_running_mean, (node._saved_running_var + eps).rsqrt()
    factor = inverse if node._saved_weight is None else inverse * node._saved_weight
    mean, inverse = mean.reshape(shape), inverse.reshape(shape)
    reduced = (0, *range(2, inputs.ndim))
    return BatchNorm(node, lambda: (_long(inputs) - mean) * inverse, _param(uses, 1), _param(uses, 2), reduced, factor)


def _group_norm(node: Any, uses: Uses) -> Layer | None:
    if not _plain(uses, 1, 2):
        return None
    inputs, groups = node._saved_input, node._saved_group
    mean, inverse = node._saved_result1.reshape(-1, groups, 1), node._saved_result2.reshape(-1, groups, 1)

    def normalized() -> Tensor:
        values: Tensor = (_long(inputs).reshape(len(inputs), groups, -1) - mean) * inverse
        return values.reshape(inputs.shape)

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
