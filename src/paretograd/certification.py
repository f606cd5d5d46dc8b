"""``certify``: the certificate of one step, for any weights, a peer library's included."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from paretograd.certificates.step import StepCertificate, check_step
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.gramian import Array, as_array, check_floating, check_gramian, unit_gramian
from paretograd.guarantees import MEAN, SUM
from paretograd.solvers.stationarity import stationarity_weights


def certify(gramian: Tensor, weights: Tensor, F: Literal["sum", "mean"] | Tensor = "sum") -> StepCertificate:
    """Check what the theory promises about the direction ``d = J.T @ weights``.

    Args:
        gramian: ``J @ J.T``, shape ``(m, m)``.
        weights: shape ``(m,)``, from whatever rule or library.
        F: surrogate function of condition (A): the sum of the objectives, their mean, or weights for them.

    Returns:
        a certificate, which prints as a short table.
    """
    check_gramian(gramian)
    if gramian.ndim != 2:
        raise ShapeError(f"certify takes one Gramian, shape (m, m); got {tuple(gramian.shape)}. Loop over the batch")
    m = gramian.shape[0]
    check_floating(weights, "weights")
    if tuple(weights.shape) != (m,):
        raise ShapeError(f"weights has shape ({m},), one number per objective; got {tuple(weights.shape)}")
    eps = max(torch.finfo(gramian.dtype).eps, torch.finfo(weights.dtype).eps)
    G, w = as_array(gramian), as_array(weights)
    unit_gramian(G, eps)  # raises on what is no Gramian
    if not np.isfinite(w).all():
        raise ParameterError("weights holds NaN or infinity; there is no direction to certify")
    return certificate_of(G, w, F, eps)


def certificate_of(G: Array, w: Array, F: Literal["sum", "mean"] | Tensor, eps: float) -> StepCertificate:
    """As `certify`, for arrays that were checked, whose entries are off by about ``eps``."""
    phi, name = _surrogate(F, len(w))
    return check_step(G, w, stationarity_weights(G, eps), phi, name, tol=max(1e-10, 64.0 * eps))


def _surrogate(F: Literal["sum", "mean"] | Tensor, m: int) -> tuple[np.ndarray, str]:
    if isinstance(F, Tensor):
        if tuple(F.shape) != (m,):
            raise ShapeError(f"F as a tensor has shape ({m},), one number per objective; got {tuple(F.shape)}")
        return as_array(F), "sum_k phi_k f_k"
    if F not in ("sum", "mean"):
        raise ParameterError(f"F={F!r}: use 'sum', 'mean' or a tensor with one weight per objective")
    return (np.ones(m), SUM) if F == "sum" else (np.full(m, 1.0 / m), MEAN)
