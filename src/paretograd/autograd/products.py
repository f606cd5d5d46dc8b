"""Inner products of rows, accumulated at least in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.geometry.row_lists import accumulator

#: Approximate number of entries of a row that are multiplied at a time.
_SLICE = 8192

#: Rounding of TF32, which keeps ten bits of the mantissa.
_TF32 = 2.0**-11

#: How many slice counts are tried to find one that divides the row evenly.
_TRIES = 8


def rounding(param: Tensor) -> float:
    """Return the relative rounding of products of a parameter's gradients: TF32's if a GPU is allowed to use it."""
    kind = accumulator(param.dtype)
    short = param.is_cuda and kind is torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return _TF32 if short else torch.finfo(kind).eps


def row_gramian(rows: Tensor) -> Tensor:
    """Return ``R @ R.T`` for rows of any shape, ``(m, ...)``, in float64; for complex rows, the real part."""
    if rows.is_complex():
        rows = torch.view_as_real(rows)
    flat = rows.reshape(len(rows), -1).to(accumulator(rows.dtype))
    return inner_products(flat, flat)


def inner_products(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B.T`` for long rows, shape ``(m, n)``, in float64.

    Float32 sums of a million terms have errors of 1e-4. So slices are multiplied in the rows' precision and summed in
    float64. On a GPU this is also several times faster than one product.
    """
    m, n = A.shape
    count = n // _SLICE
    if count < 2:
        return (A @ B.T).double()
    count = next((more for more in range(count, count + _TRIES) if n % more == 0), count)  # one that divides n
    length = n // count
    cut = count * length
    left, right = (part[:, :cut].reshape(m, count, length).transpose(0, 1) for part in (A, B))
    total = (left @ right.mT).sum(dim=0, dtype=torch.float64)
    return total if cut == n else total + (A[:, cut:] @ B[:, cut:].T).double()


def outer_gramian(grads: Tensor, inputs: Tensor | None, bias: bool) -> tuple[Tensor | None, list[Tensor]]:
    """Return the Gramian of the weight gradients ``D_k.T @ X`` of an affine map, without forming them if cheaper.

    ``<D_k.T X, D_l.T X> = <D_k, (X X.T) D_l>``: for N inputs this takes ``N^2`` products for each output of each
    objective, compared with ``N`` for each weight. A bias adds the products of the column sums, that is, one to each
    entry of ``X X.T``.

    Args:
        grads: D, gradients with respect to the outputs, shape ``(m, N, out)``.
        inputs: X, shape ``(N, in)``; None if the weight is not needed.
        bias: True if there is a bias.

    Returns:
        the Gramian, symmetric up to rounding, or None for zero; and rows whose Gramian must be added.
    """
    D = grads.to(accumulator(grads.dtype))
    m, N, out = D.shape
    if inputs is None:
        return None, [D.sum(dim=1)]
    X = inputs.to(D.dtype)
    width = X.shape[1]
    if N * (width + m * out) <= m * out * width + m * m * out * width / max(N, 1):
        K = X @ X.T
        if bias:
            K += 1.0
        return inner_products((K @ D).reshape(m, -1), D.reshape(m, -1)), []
    return row_gramian(D.transpose(1, 2) @ X), [D.sum(dim=1)] if bias else []


def combination(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``sum_k w_k rows_k``, in the rows' dtype."""
    if rows.is_complex():
        return torch.view_as_complex(combination(weights, torch.view_as_real(rows)))
    flat = rows.reshape(len(rows), -1)
    kind = accumulator(rows.dtype)
    return (weights.to(device=rows.device, dtype=kind) @ flat.to(kind)).reshape(rows.shape[1:]).to(rows.dtype)
