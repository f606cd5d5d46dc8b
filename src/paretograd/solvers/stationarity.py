"""The paper's measure of Pareto stationarity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paretograd.geometry.gramian import Array, as_array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.geometry.validation import check_gramian
from paretograd.solvers.min_norm import min_norm_point


def stationarity(gramian: Tensor) -> Tensor:
    r"""Distance from Pareto stationarity, $\gamma = \min_{w \in \Delta} \|J^\top w\|$ (eq. PS-quant).

    Zero exactly where some convex combination of the gradients vanishes. A Gramian resolves it down to the
    square root of its rounding error: about 1e-8 of the gradients' norms in float64.

    Args:
        gramian: shape ``(..., m, m)``.

    Returns:
        shape ``(...)``, in the Gramian's dtype and on its device.
    """
    check_gramian(gramian)
    array = as_array(gramian)
    eps = torch.finfo(gramian.dtype).eps
    m = array.shape[-1]
    values = [gamma_of(G, eps) for G in array.reshape(-1, m, m)]
    return torch.tensor(values, dtype=gramian.dtype, device=gramian.device).reshape(array.shape[:-2])


def stationarity_weights(G: Array, eps: float) -> Array:
    """Weights on the simplex that attain gamma, for one Gramian of shape ``(m, m)``."""
    return min_norm_point(unit_gramian(G, eps)).weights


def gamma_of(G: Array, eps: float) -> float:
    """Gamma of one Gramian, whose entries are off by about ``eps``."""
    unit = unit_gramian(G, eps)
    if unit.has_zero_row:
        return 0.0
    scaled = min_norm_point(unit).weights * unit.norms
    size = float(scaled.max())
    scaled /= size
    return size * math.sqrt(max(float(scaled @ unit.C @ scaled), 0.0))
