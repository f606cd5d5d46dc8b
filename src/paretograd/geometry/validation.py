"""Validate the tensors that users pass: Jacobians and Gramians of the right type and shape, with finite entries.

`unit_gramian` validates the rest of a Gramian, symmetry and positive semidefiniteness, on the scaled matrix.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import DTypeError, NonFiniteGradientError, ShapeError


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


def check_gramian(G: Tensor) -> None:
    """Raise unless ``G`` is a floating-point tensor of shape ``(..., m, m)`` with m >= 1."""
    check_floating(G, "a Gramian")
    shape = G.shape
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ShapeError(
            f"a Gramian has shape (..., m, m) with m >= 1; got {tuple(shape)}. "
            "From a Jacobian J of shape (m, n), pass paretograd.gramian(J)"
        )


def check_finite(G: NDArray[np.float64]) -> None:
    """Raise if a Gramian holds NaN or infinity, and name the objectives at fault."""
    flat = G.ravel()
    with np.errstate(over="ignore"):
        square = flat.dot(flat)
    if math.isfinite(square):
        return
    finite = np.isfinite(G)
    if finite.all():
        return  # only the sum of squares overflowed
    bad = np.flatnonzero(~finite.diagonal())
    if not len(bad):
        bad = np.flatnonzero(~finite.all(axis=1))
    raise NonFiniteGradientError(bad.tolist())


def plain_size(G: Tensor) -> int:
    """Return m for a finite float32 Gramian on the CPU, and 0 for any other input, valid or not.

    Some rules need only m and take microseconds. This validates the common case quickly; use `check_gramian` and
    `check_finite` if it returns 0.
    """
    if type(G) is Tensor and G.dtype is torch.float32 and G.is_cpu and not G.requires_grad:
        array = G.numpy()
        if array.ndim == 2 and len(array) == array.shape[1]:
            squares = array.diagonal()  # finite if and only if the gradients are
            if math.isfinite(squares.dot(squares)):
                return len(array)
    return 0
