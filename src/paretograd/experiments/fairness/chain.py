"""Gradients through a rectifier, for one backward pass that serves two objectives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paretograd.geometry import kernels

#: Rows of a block of the kernel, and blocks that one program takes.
_BLOCK, _TILES = 16, 8


class Chain(NamedTuple):
    """What a rectifier passes on.

    Attributes:
        slope: of the logits by its inputs, ``(S, rows, width)``.
        by_objective: of two objectives by its inputs, ``(2, S, rows, width)``.
        sums: of these over rows, ``(S, 2, width)``.
    """

    slope: Tensor
    by_objective: Tensor
    sums: Tensor


def through_rectifier(slope: Tensor, hidden: Tensor, factors: Tensor) -> Chain:
    """From the slope by a rectifier's outputs: nothing passes where it gave nothing.

    On a GPU one kernel does it all: it is memory that takes the time.

    Args:
        slope: of the logits, ``(S, rows, width)``.
        hidden: what the rectifier gave, of the same shape.
        factors: of both objectives by the logits, ``(2, S, rows)``.
    """
    if hidden.is_cuda and _served(hidden) and kernels.available():
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
