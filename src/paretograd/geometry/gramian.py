"""Products with a Jacobian: the Gramian ``J @ J.T`` and the direction ``J.T @ w``, accurate at any scale and size.

A few long rows on a GPU are multiplied by Triton kernels, which read the Jacobian once. torch's matrix product reads it
at a fifth of the bandwidth; it is used if Triton, which comes with torch's CUDA builds, is missing.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import DTypeError, InputError, NonFiniteGradientError, ShapeError

Array = NDArray[np.float64]

#: Columns converted to float64 at a time, so that a large Jacobian is never copied as a whole.
_CHUNK = 1 << 20

#: Numpy multiplies Jacobians of at most this many entries faster than torch.
_SMALL = 1 << 14

#: Rounding of float32, and the squared norms between which its products keep their digits.
_FLOAT32 = 1.2e-7
LEAST, MOST = 1e-20, 1e30

#: If no squared norm is above this, scale a float64 Jacobian before squaring it.
_UNDERFLOWS = 1e-280

#: Most rows that a kernel takes, and most rows for which it keeps all products in registers.
_MOST_ROWS = 32
_MOST_PAIRED = 12

#: Fewest columns that are worth the launch of a kernel.
_FEWEST_COLUMNS = 1 << 16


def check_floating(tensor: object, what: str) -> None:
    """Raise unless ``tensor`` is a floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"{what} is a torch.Tensor; got {type(tensor).__name__}. Convert it with torch.as_tensor")
    if not tensor.is_floating_point():
        raise DTypeError(f"{what} has a floating-point dtype; got {tensor.dtype}. Convert it with .float()")


def check_jacobian(jacobian: Tensor) -> None:
    """Raise unless ``jacobian`` is a floating-point tensor of shape ``(..., m, n)`` with m, n >= 1."""
    check_floating(jacobian, "a Jacobian")
    if jacobian.ndim < 2 or 0 in jacobian.shape[-2:]:
        raise ShapeError(
            f"a Jacobian has shape (..., m, n), one row per objective, m >= 1 and n >= 1; "
            f"got {tuple(jacobian.shape)}. Stack the flattened gradients with torch.stack"
        )


def nonfinite_rows(jacobian: Tensor) -> list[int]:
    """Return the objectives with a gradient that holds NaN or infinity, in any Jacobian of a batch."""
    bad = ~torch.isfinite(jacobian).all(dim=-1)
    return bad.reshape(-1, jacobian.shape[-2]).any(dim=0).nonzero().flatten().tolist()


def as_array(tensor: Tensor) -> Array:
    """Return the values as a float64 numpy array on the CPU. A float64 CPU tensor shares its memory: do not write."""
    if not tensor.is_cpu or tensor.requires_grad:
        tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:  # numpy has no such type
        tensor = tensor.to(torch.float64)
    return np.asarray(tensor.numpy(), dtype=np.float64)


def gramian(jacobian: Tensor) -> Tensor:
    """The Gramian ``G = J @ J.T``, shape ``(..., m, m)``, accumulated and returned in float64.

    Rows of float16 or float32 gradients are multiplied exactly in float64, so that neither gradients of
    norm 1e-15 underflow nor those of norm 1e15 overflow.

    Args:
        jacobian: shape ``(..., m, n)``, one row per objective, any floating dtype.
    """
    check_jacobian(jacobian)
    J = jacobian.detach()
    if _is_small(J):
        A = as_array(J)
        with np.errstate(over="ignore", invalid="ignore"):
            square = A @ A.T
            finite = math.isfinite(square.sum())
        G = torch.from_numpy(square)
    elif _served_exactly(J):
        G = _gramian_by_kernel(J, exact=True)
        finite = bool(torch.isfinite(G).all())
    else:
        parts = (chunk.to(torch.float64) for chunk in torch.split(J, _CHUNK, dim=-1))
        G = sum((part @ part.mT for part in parts), start=torch.zeros((), dtype=torch.float64, device=J.device))
        finite = bool(torch.isfinite(G).all())
    if not finite:
        rows = nonfinite_rows(J)
        if not rows:
            raise InputError(
                f"gradients of norm {float(J.double().abs().max()):.1e} and more overflow float64 when squared; "
                "norms up to 1e150 are allowed. Divide the losses by a constant"
            )
        raise NonFiniteGradientError(rows)
    return G


def quick_gramian(jacobian: Tensor) -> tuple[Array, float] | None:
    """For a few long float32 rows on a GPU, return the Gramian from float32 products and its relative rounding error.

    A rule called on such a Jacobian uses it and allows for the error. Returns None for any other input, and if squared
    norms are not finite or outside the range in which float32 keeps its digits.
    """
    if not (getattr(jacobian, "is_cuda", False) and _served(jacobian)):
        return None  # not validated yet: it may be no tensor at all
    G = as_array(_gramian_by_kernel(jacobian.detach(), exact=False))
    squares = G.diagonal()
    return (G, _FLOAT32) if bool(((squares > LEAST) & (squares < MOST)).all()) else None


def out_of_range(gramians: Array, eps: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return masks of gradients too large and too small for sums of float32 products; None if nothing was lost.

    A row of zeros means a zero gradient if other rows are not zero. If all rows are zero, or one is small, they may
    have underflowed and count as small.

    Args:
        gramians: shape ``(..., m, m)``.
        eps: rounding of their entries. Products in float64 lose nothing.

    Returns:
        two masks, of shape ``(..., m)``.
    """
    if eps <= 1e-15:
        return None
    squares, largest = gramians.diagonal(axis1=-2, axis2=-1), abs(gramians).max(axis=-1, initial=0.0)
    large, small = ~(squares <= MOST), squares < LEAST
    unknown = (largest > 0.0) | (largest.max(axis=-1, keepdims=True, initial=0.0) == 0.0)
    return (large, small) if (large | (small & unknown)).any() else None


def combine(weights: Tensor, jacobian: Tensor) -> Tensor:
    """The direction ``d = J.T @ w``, shape ``(..., n)``, summed in float64, in the Jacobian's dtype."""
    J = jacobian.detach()
    if _is_small(J):
        return torch.from_numpy(as_array(weights) @ as_array(J)).to(J.dtype)
    if _served(J):
        return _combine_by_kernel(weights, J)
    w = weights.to(dtype=torch.float64, device=J.device).unsqueeze(-2)
    parts = [(w @ chunk.to(torch.float64)).squeeze(-2).to(J.dtype) for chunk in torch.split(J, _CHUNK, dim=-1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def underflows(jacobian: Tensor, G: Tensor) -> bool:
    """Return True if non-zero rows may have been squared to zero, which happens to float64 Jacobians only."""
    if jacobian.dtype is not torch.float64:
        return False
    if G.ndim == 2 and G.is_cpu:  # numpy takes a microsecond
        return bool(G.numpy().diagonal().max() < _UNDERFLOWS)
    return bool((_largest(G.diagonal(dim1=-2, dim2=-1)) < _UNDERFLOWS).any())


def enlarge(jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``2^-e J`` with its largest entry near one, and e for each Jacobian of a batch. The scaling is exact."""
    J = jacobian.detach()
    exponent = torch.frexp(_largest(J.abs().flatten(-2))).exponent.to(torch.float64)
    return scale_by_power(J, -exponent[..., None, None]), exponent


def scale_by_power(values: Tensor, exponent: Tensor) -> Tensor:
    """Return ``2^e`` times the values, in two steps: the power may leave float64's range if the product does not."""
    half = torch.floor(0.5 * exponent)
    return values * torch.exp2(half) * torch.exp2(exponent - half)


def _largest(values: Tensor) -> Tensor:
    return values.amax(dim=-1) if values.numel() else values.new_zeros(values.shape[:-1])


def _is_small(J: Tensor) -> bool:
    """Return True if J is one small matrix on the CPU, which numpy multiplies faster."""
    return J.is_cpu and J.ndim == 2 and J.numel() <= _SMALL


def kernels_available() -> bool:
    """Return True if Triton kernels can be compiled and run here."""
    return torch.cuda.is_available() and kernels() is not None


def _served(J: Tensor) -> bool:
    """Return True if the kernels take this Jacobian: float32 on CUDA, few long rows, contiguous."""
    return (
        J.is_cuda
        and J.dtype is torch.float32
        and J.ndim == 2
        and J.shape[0] <= _MOST_ROWS
        and J.shape[1] >= _FEWEST_COLUMNS
        and J.stride(1) == 1
        and kernels() is not None
    )


def _served_exactly(J: Tensor) -> bool:
    """Return True if a kernel can multiply this Jacobian in float64."""
    return J.shape[0] <= _MOST_PAIRED and _served(J)


def _gramian_by_kernel(J: Tensor, *, exact: bool) -> Tensor:
    """``J @ J.T``, shape ``(m, m)``, float64.

    Args:
        J: a Jacobian that the kernels serve.
        exact: multiply and sum in float64. Otherwise multiply in float32 and add partial sums of a few thousand
            products in float64, which takes two thirds of the time for ten rows.
    """
    found = kernels()
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


def _combine_by_kernel(weights: Tensor, J: Tensor) -> Tensor:
    """``w @ J`` in float32, summed in float32."""
    m, n = J.shape
    out = torch.empty(n, dtype=J.dtype, device=J.device)
    w = weights.to(device=J.device, dtype=torch.float32).contiguous()
    with torch.cuda.device(J.device):
        kernels().weighted[((n + 1023) // 1024,)](J, w, out, n, J.stride(0), m, 1024, num_warps=4)
    return out


@cache
def kernels() -> Any:
    """The module of kernels; None if Triton is missing, too old, or has no compiler."""
    try:
        from paretograd.geometry import triton_kernels

        J, parts = torch.ones(2, 256, device="cuda"), torch.empty(1, 2, 2, dtype=torch.float64, device="cuda")
        triton_kernels.pairs[(1,)](J, parts, 256, 256, 2, 256, False, num_warps=4)
    except Exception:  # noqa: BLE001  (torch's own products work in any case)
        return None
    return triton_kernels
