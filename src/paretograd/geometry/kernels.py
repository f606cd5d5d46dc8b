"""Triton kernels for a few long rows on a GPU, where torch's matrix product reads them at a fifth of the bandwidth.

Both read the Jacobian once. Triton comes with torch's CUDA builds; without it, callers use torch's own products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Most rows that a kernel holds.
MOST_ROWS = 32

#: Fewest columns that are worth a launch.
_FEWEST_COLUMNS = 1 << 16


def serves(J: Tensor) -> bool:
    """Whether the kernels take this Jacobian: float32 on CUDA, few long rows, contiguous."""
    return (
        J.is_cuda
        and J.dtype is torch.float32
        and J.ndim == 2
        and J.shape[0] <= MOST_ROWS
        and J.shape[1] >= _FEWEST_COLUMNS
        and J.stride(1) == 1
        and _kernels() is not None
    )


def gramian(J: Tensor) -> Tensor:
    """``J @ J.T`` in float64: products in float32 by three TF32 ones, sums of blocks in float64."""
    product, _ = _kernels()  # type: ignore[misc]
    m, n = J.shape
    rows = max(16, 1 << (m - 1).bit_length())
    programs = 32 * torch.cuda.get_device_properties(J.device).multi_processor_count
    parts = torch.empty(programs, rows, rows, dtype=torch.float64, device=J.device)
    with torch.cuda.device(J.device):
        product[(programs,)](J, parts, n, J.stride(0), m, rows, 32, 32, num_warps=1, num_stages=3)
    return parts.sum(dim=0)[:m, :m]


def combine(weights: Tensor, J: Tensor) -> Tensor:
    """``w @ J`` in float32, summed in float32."""
    _, weighted = _kernels()  # type: ignore[misc]
    m, n = J.shape
    out = torch.empty(n, dtype=J.dtype, device=J.device)
    w = weights.to(device=J.device, dtype=torch.float32).contiguous()
    with torch.cuda.device(J.device):
        weighted[((n + 1023) // 1024,)](J, w, out, n, J.stride(0), m, 1024, num_warps=4)
    return out


@cache
def _kernels() -> tuple[Any, Any] | None:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit  # type: ignore[untyped-decorator]
    def product(J, parts, n, stride, m, ROWS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr):  # type: ignore[no-untyped-def]
        program = tl.program_id(0).to(tl.int64)
        step = tl.num_programs(0).to(tl.int64) * BLOCK * INNER
        row = tl.arange(0, ROWS).to(tl.int64)
        column = tl.arange(0, BLOCK).to(tl.int64)
        total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
        for start in range(program * BLOCK * INNER, n, step):
            block = tl.zeros((ROWS, ROWS), dtype=tl.float32)
            for i in range(INNER):
                at = start + i * BLOCK + column
                mask = (row[:, None] < m) & (at[None, :] < n)
                x = tl.load(J + row[:, None] * stride + at[None, :], mask=mask, other=0.0)
                block = tl.dot(x, tl.trans(x), block, input_precision="tf32x3")
            total += block.to(tl.float64)
        place = program * ROWS * ROWS + row[:, None] * ROWS + row[None, :]
        tl.store(parts + place, total)

    @triton.jit  # type: ignore[untyped-decorator]
    def weighted(J, w, out, n, stride, m, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
        mask = at < n
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for k in range(m):
            total += tl.load(w + k) * tl.load(J + k * stride + at, mask=mask, other=0.0)
        tl.store(out + at, total, mask=mask)

    return product, weighted
