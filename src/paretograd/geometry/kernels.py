"""Triton kernels for a few long rows on a GPU, which torch's matrix product reads at a fifth of the bandwidth.

Each kernel reads the Jacobian once. Triton comes with torch's CUDA builds; without it, callers use torch's products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Most rows that a kernel takes, and most rows for which it keeps all products in registers.
MOST_ROWS = 32
_MOST_PAIRED = 12

#: Fewest columns that are worth a launch.
_FEWEST_COLUMNS = 1 << 16


def available() -> bool:
    """Return True if Triton kernels can be compiled and run here."""
    return torch.cuda.is_available() and _kernels() is not None


def serves(J: Tensor) -> bool:
    """Return True if the kernels take this Jacobian: float32 on CUDA, few long rows, contiguous."""
    return (
        J.is_cuda
        and J.dtype is torch.float32
        and J.ndim == 2
        and J.shape[0] <= MOST_ROWS
        and J.shape[1] >= _FEWEST_COLUMNS
        and J.stride(1) == 1
        and _kernels() is not None
    )


def serves_exactly(J: Tensor) -> bool:
    """Return True if `gramian` can multiply this Jacobian in float64."""
    return J.shape[0] <= _MOST_PAIRED and serves(J)


def gramian(J: Tensor, *, exact: bool) -> Tensor:
    """``J @ J.T``, shape ``(m, m)``, float64.

    Args:
        J: a Jacobian that the kernels serve.
        exact: multiply and sum in float64. Otherwise multiply in float32 and add partial sums of a few thousand
            products in float64, which takes two thirds of the time for ten rows.
    """
    found = _kernels()
    m, n = J.shape
    processors = torch.cuda.get_device_properties(J.device).multi_processor_count
    with torch.cuda.device(J.device):
        if m <= _MOST_PAIRED:
            parts = torch.empty(8 * processors, m, m, dtype=torch.float64, device=J.device)
            found.pairs[(len(parts),)](J, parts, n, J.stride(0), m, 128 if exact else 256, exact, num_warps=4)
            return parts.sum(dim=0)
        rows = 1 << (m - 1).bit_length()
        parts = torch.empty(32 * processors, rows, rows, dtype=torch.float64, device=J.device)
        found.product[(len(parts),)](J, parts, n, J.stride(0), m, rows, 32, 32, num_warps=1, num_stages=3)
        return parts.sum(dim=0)[:m, :m]


def combine(weights: Tensor, J: Tensor) -> Tensor:
    """``w @ J`` in float32, summed in float32."""
    m, n = J.shape
    out = torch.empty(n, dtype=J.dtype, device=J.device)
    w = weights.to(device=J.device, dtype=torch.float32).contiguous()
    with torch.cuda.device(J.device):
        _kernels().weighted[((n + 1023) // 1024,)](J, w, out, n, J.stride(0), m, 1024, num_warps=4)
    return out


@cache
def _kernels() -> Any:
    """The module of kernels; None if Triton is missing, too old, or has no compiler."""
    try:
        from paretograd.geometry import triton_kernels

        J, parts = torch.ones(2, 256, device="cuda"), torch.empty(1, 2, 2, dtype=torch.float64, device="cuda")
        triton_kernels.pairs[(1,)](J, parts, 256, 256, 2, 256, False, num_warps=4)
    except Exception:  # noqa: BLE001  (torch's own products work in any case)
        return None
    return triton_kernels
