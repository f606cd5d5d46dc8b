"""Gramians of outer products: the gradients of a linear map's weight, for several objectives or several samples.

The gradient is ``D.T @ X`` for the gradients D of the outputs and the inputs X. Its Gramian also follows from the
products of the rows of D and X, ``<d x', e y'> = <d, e> <x, y>``. Each function takes the cheaper of the two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor

from paretograd.autograd.products import inner_products, row_gramian
from paretograd.geometry.row_lists import accumulator

#: Largest number of products, or of entries of gradients, that samples form at a time.
_AT_A_TIME = 2**24


def outer_gramian(grads: Tensor, inputs: Tensor | None, bias: bool) -> tuple[Tensor | None, list[Tensor]]:
    """Return the Gramian of the weight gradients ``D_k.T @ X`` of m objectives, without forming them if cheaper.

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
    m, N, out = grads.shape
    if inputs is None:
        return None, [_sums(grads)]
    width = inputs.shape[1]
    if N * (width + m * out) > m * out * width + m * m * out * width / max(N, 1):
        return row_gramian(product(grads.mT, inputs.expand(m, N, width))), [_sums(grads)] if bias else []
    K = product(inputs, inputs.T)
    if bias:
        K += 1.0
    D = grads.reshape(m, -1).to(accumulator(grads.dtype))
    return inner_products(product(K.expand(m, N, N), grads).reshape(m, -1), D), []


def sample_outer_products(grads: Tensor, inputs: Tensor) -> Tensor:
    """Return the weight gradients ``D_k.T @ X_k`` of m samples, shape ``(m, groups, out, in)``.

    Args:
        grads: D, shape ``(m, T, groups * out)``.
        inputs: X, shape ``(m, T, groups, in)``; each group of channels has a weight of its own.
    """
    m, T, groups, width = inputs.shape
    D = grads.reshape(m, T, groups, -1).permute(0, 2, 3, 1).flatten(0, 1)
    X = inputs.transpose(1, 2).flatten(0, 1)
    return product(D, X).reshape(m, groups, -1, width)


def sample_outer_gramian(grads: Tensor, inputs: Tensor | None, bias: bool) -> Tensor:
    """Return the Gramian of the gradients ``D_k.T @ X_k`` of m samples and of their bias, in float64.

    Products of all pairs of rows take ``(m T)^2`` products for each input and output; the gradients take ``m T`` for
    each weight, and then ``m^2``.

    Args:
        grads: D, shape ``(m, T, out)``: T rows of outputs for each sample.
        inputs: X, shape ``(m, T, groups, in)``; None if the weight is not needed.
        bias: True if there is a bias.
    """
    m, T, out = grads.shape
    if inputs is None:
        return row_gramian(_sums(grads))
    groups, width = inputs.shape[2:]
    if groups == 1 and m * T * T * (width + out) <= (T + m) * out * width:
        X = inputs.reshape(m * T, -1)
        return paired_gramian(grads, lambda rows: _products(X[rows], X) + (1.0 if bias else 0.0))
    step = max(1, _AT_A_TIME // (m * width)) if groups == 1 else out  # a few outputs at a time
    blocks = (sample_outer_products(grads[:, :, k : k + step], inputs) for k in range(0, out, step))
    return sum_of_gramians([_sums(grads)] if bias else [], blocks)


def paired_gramian(grads: Tensor, kernel: Callable[[slice], Tensor], others: Tensor | None = None) -> Tensor:
    """Return ``G_kl = sum_st <d_ks, e_lt> K_ks,lt`` for m samples with several rows each, in float64.

    Args:
        grads: d, shape ``(m, T, out)``.
        kernel: returns the given rows of K, each with one entry for each row of each sample of e.
        others: e, shape ``(m, S, out)``; None for d.
    """
    m, T, _ = grads.shape
    D = grads.flatten(0, 1)
    E = D if others is None else others.flatten(0, 1)
    step = max(1, _AT_A_TIME // max(1, T * len(E)))
    parts = []
    for start in range(0, m, step):
        rows = slice(start * T, min(start + step, m) * T)
        pairs = _products(D[rows], E) * kernel(rows)
        parts.append(pairs.reshape(-1, T, m, len(E) // m).sum(dim=(1, 3)))
    return torch.cat(parts)


def _sums(grads: Tensor) -> Tensor:
    """Return the gradients of a bias."""
    return grads.sum(dim=1, dtype=accumulator(grads.dtype))


def _products(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B.T`` in float64."""
    if _on_tensor_cores(A, B):
        return product(A, B.T).double()
    kind = accumulator(torch.promote_types(A.dtype, B.dtype))
    return inner_products(A.to(kind), B.to(kind))


def product(A: Tensor, B: Tensor) -> Tensor:
    """Return ``A @ B`` for two matrices or two batches of them, in float64 for float64 and in float32 otherwise.

    On a GPU, the tensor cores multiply 16-bit factors and sum in float32. A factor in float32 is the sum of three
    in bfloat16, whose 24 bits are all that float32 has.
    """
    if _on_tensor_cores(A, B):
        multiply = torch.mm if A.ndim == 2 else torch.bmm
        return multiply(A, B, out_dtype=torch.float32)
    if A.is_cuda and A.dtype is torch.float32 and B.dtype is torch.bfloat16:
        head, middle, tail = (product(part, B) for part in in_bfloat16(A))
        return tail.add_(middle).add_(head)
    kind = accumulator(torch.promote_types(A.dtype, B.dtype))
    return A.to(kind) @ B.to(kind)


def in_bfloat16(values: Tensor) -> list[Tensor]:
    """Return three tensors in bfloat16 whose sum is a tensor in float32."""
    parts = []
    for _ in range(3):
        parts.append(values.bfloat16())
        values = values - parts[-1]
    return parts


def _on_tensor_cores(A: Tensor, B: Tensor) -> bool:
    short = A.dtype is B.dtype and A.dtype in (torch.bfloat16, torch.float16)
    return short and A.is_cuda and torch.version.cuda is not None


def sum_of_gramians(*parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of the Gramians of several blocks of rows, each of shape ``(m, ...)``."""
    return torch.stack([row_gramian(rows) for rows in chain(*parts)]).sum(dim=0)
