"""Inner products of rows, accumulated at least in float32."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from paretograd.geometry.row_lists import accumulator, factor_dtype

#: Approximate number of entries of a row that are multiplied at a time.
_SLICE = 8192

#: Rounding of TF32, which keeps ten bits of the mantissa.
_TF32 = 2.0**-11

#: How many slice counts are tried to find one that divides the row evenly.
_TRIES = 8


def rounding(params: Iterable[Tensor]) -> float:
    """Return the largest relative rounding of products of parameters' gradients.

    It is that of TF32 if a GPU is allowed to use it.
    """
    kinds = {(accumulator(param.dtype), param.is_cuda) for param in params}
    return max((_rounding(kind, on_gpu) for kind, on_gpu in kinds), default=2e-16)


def _rounding(kind: torch.dtype, on_gpu: bool) -> float:
    short = on_gpu and kind is torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return _TF32 if short else torch.finfo(kind).eps


def row_gramian(rows: Tensor) -> Tensor:
    """Return ``R @ R.T`` for rows of any shape, ``(m, ...)``, in float64; for complex rows, the real part."""
    if rows.is_complex():
        rows = torch.view_as_real(rows)
    flat = rows.reshape(len(rows), -1).to(accumulator(rows.dtype))
    return inner_products(flat, flat)


def inner_products(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B.T`` for long rows, shapes ``(m, n)`` and ``(l, n)``, in float64.

    Float32 sums of a million terms have errors of 1e-4. So slices are multiplied in the rows' precision and summed in
    float64. On a GPU this is also several times faster than one product.
    """
    n = A.shape[1]
    count = n // _SLICE
    if count < 2:
        return (A @ B.T).double()
    count = next((more for more in range(count, count + _TRIES) if n % more == 0), count)  # one that divides n
    length = n // count
    cut = count * length
    left, right = (part[:, :cut].reshape(-1, count, length).transpose(0, 1) for part in (A, B))
    total = (left @ right.mT).sum(dim=0, dtype=torch.float64)
    return total if cut == n else total + (A[:, cut:] @ B[:, cut:].T).double()


def combination(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``sum_k w_k rows_k``, in the rows' dtype."""
    if rows.is_complex():
        return torch.view_as_complex(combination(weights, torch.view_as_real(rows)))
    flat = rows.reshape(len(rows), -1)
    kind = factor_dtype(weights, rows.dtype)
    return (weights.to(device=rows.device, dtype=kind) @ flat.to(kind)).reshape(rows.shape[1:]).to(rows.dtype)
