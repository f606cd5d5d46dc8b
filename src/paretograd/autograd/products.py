"""Inner products of rows, accumulated in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor

#: About how many entries of a row are multiplied at a time.
_SLICE = 8192

#: Rounding of TF32, which keeps ten binary digits.
_TF32 = 2.0**-11

#: How many numbers of slices are tried for one that divides the row.
_TRIES = 8


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything shorter."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def rounding(param: Tensor) -> float:
    """Relative rounding of products with a parameter's gradients, which on a GPU may be allowed to be TF32's."""
    kind = accumulator(param.dtype)
    short = param.is_cuda and kind is torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return _TF32 if short else torch.finfo(kind).eps


def row_gramian(rows: Tensor) -> Tensor:
    """``R @ R.T`` for rows of any shape, ``(m, ...)``, in float64; of complex rows, the real part of the products."""
    if rows.is_complex():
        rows = torch.view_as_real(rows)
    flat = rows.reshape(len(rows), -1).to(accumulator(rows.dtype))
    return inner_products(flat, flat)


def inner_products(A: Tensor, B: Tensor) -> Tensor:
    """``A @ B.T`` for long rows, shape ``(m, n)``, in float64.

    Float32 sums of a million terms are off by 1e-4: slices are multiplied in the rows' precision, and summed in
    float64. On a GPU that is several times faster than one product, too.
    """
    m, n = A.shape
    count = n // _SLICE
    if count < 2:
        return (A @ B.T).double()
    count = next((more for more in range(count, count + _TRIES) if n % more == 0), count)  # a number without remainder
    length = n // count
    cut = count * length
    left, right = (part[:, :cut].reshape(m, count, length).transpose(0, 1) for part in (A, B))
    total = (left @ right.mT).sum(dim=0, dtype=torch.float64)
    return total if cut == n else total + (A[:, cut:] @ B[:, cut:].T).double()


def outer_gramian(grads: Tensor, inputs: Tensor | None, bias: bool) -> tuple[Tensor | None, list[Tensor]]:
    """The Gramian of the weight gradients ``D_k.T @ X`` of an affine map, without them where that is cheaper.

    ``<D_k.T X, D_l.T X> = <D_k, (X X.T) D_l>``: for N inputs that takes ``N^2`` products for each output of each
    objective, against ``N`` for each weight. A bias adds the products of the column sums, that is one to ``X X.T``.

    Args:
        grads: D, gradients with respect to the outputs, shape ``(m, N, out)``.
        inputs: X, shape ``(N, in)``; None if the weight is not wanted.
        bias: whether there is a bias.

    Returns:
        the Gramian, symmetric up to rounding, or None for zero; and rows whose Gramian is to be added.
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
    """``sum_k w_k rows_k``, in the rows' dtype."""
    if rows.is_complex():
        return torch.view_as_complex(combination(weights, torch.view_as_real(rows)))
    flat = rows.reshape(len(rows), -1)
    kind = accumulator(rows.dtype)
    return (weights.to(device=rows.device, dtype=kind) @ flat.to(kind)).reshape(rows.shape[1:]).to(rows.dtype)
