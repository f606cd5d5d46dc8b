"""Products with a Jacobian: the Gramian ``J @ J.T`` and the direction ``J.T @ w``, accurate at any scale and size."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import InputError, NonFiniteGradientError
from paretograd.geometry import kernels
from paretograd.geometry.validation import check_jacobian

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
    elif kernels.serves_exactly(J):
        G = kernels.gramian(J, exact=True)
        finite = bool(torch.isfinite(G).all())
    else:
        parts = (chunk.to(torch.float64) for chunk in torch.split(J, _CHUNK, dim=-1))
        G = sum((part @ part.mT for part in parts), start=torch.zeros((), dtype=torch.float64, device=J.device))
        finite = bool(torch.isfinite(G).all())
    if not finite:
        bad = ~torch.isfinite(J).all(dim=-1)
        rows = bad.reshape(-1, J.shape[-2]).any(dim=0).nonzero().flatten().tolist()
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
    if not (getattr(jacobian, "is_cuda", False) and kernels.serves(jacobian)):
        return None  # not validated yet: it may be no tensor at all
    G = as_array(kernels.gramian(jacobian.detach(), exact=False))
    squares = G.diagonal()
    return (G, _FLOAT32) if bool(((squares > LEAST) & (squares < MOST)).all()) else None


def combine(weights: Tensor, jacobian: Tensor) -> Tensor:
    """The direction ``d = J.T @ w``, shape ``(..., n)``, summed in float64, in the Jacobian's dtype."""
    J = jacobian.detach()
    if _is_small(J):
        return torch.from_numpy(as_array(weights) @ as_array(J)).to(J.dtype)
    if kernels.serves(J):
        return kernels.combine(weights, J)
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
