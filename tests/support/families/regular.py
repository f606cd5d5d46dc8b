"""Jacobians of full row rank: Gaussian, conflicting, and with rows of very different norms.

All are drawn by `full_row_rank` and so are non-stationary: J.T w = 0 with linearly independent rows means w =
0, and that is not in the simplex. Scaling a row by a positive number changes neither property.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from .family import full_row_rank, generator, normal, uniform


def gaussian(m: int, n: int, seed: int) -> Tensor:
    """Independent standard normal entries, n >= m."""
    return full_row_rank(generator(m, n, seed), m, n, normal)


def similar_norm(m: int, n: int, seed: int) -> Tensor:
    """Gaussian directions with norms between 1 and 2."""
    rng = generator(m, n, seed)
    J = full_row_rank(rng, m, n, normal)
    return J / J.norm(dim=1, keepdim=True) * uniform(rng, 1.0, 2.0, m, 1)


def well_conditioned(m: int, n: int, seed: int) -> Tensor:
    """Singular values between 1 and 2: J = U diag(s) V.T with orthonormal U and V."""
    rng = generator(m, n, seed)
    U = torch.linalg.qr(normal(rng, m, m)).Q
    V = torch.linalg.qr(normal(rng, n, m)).Q
    return (U * uniform(rng, 1.0, 2.0, m)) @ V.T


def conflicting(m: int, n: int, seed: int) -> Tensor:
    """J_i = Z_i +- c u with u = (1, ..., 1) and c = 1: two camps of gradients that point against each other.

    <J_i, J_j> is about n <Z_i, Z_j>/n - c^2 n for rows of different sign, a cosine of about -1/2; the first
    two rows always differ in sign.
    """
    rng = generator(m, n, seed)

    def camps(rng: Generator, m: int, n: int) -> Tensor:
        signs = torch.where(torch.rand(m, 1, generator=rng) < 0.5, -1.0, 1.0).to(torch.float64)
        signs[:2, 0] = torch.tensor([1.0, -1.0], dtype=torch.float64)[:m]
        return normal(rng, m, n) + signs

    return full_row_rank(rng, m, n, camps)


def _rescaled(J: Tensor, decades: float, seed: int) -> Tensor:
    """The rows of J with norms 10^U(-decades, decades)."""
    m, n = J.shape
    rng = generator(m, n, seed + 1)
    return J / J.norm(dim=1, keepdim=True) * 10 ** uniform(rng, -decades, decades, m, 1)


def moderately_scaled(m: int, n: int, seed: int) -> Tensor:
    """J_i = r_i (Z_i +- c u), r_i = 10^U(-1, 1): norms within two decades, as in multi-task learning."""
    J = conflicting(m, n, seed)
    return J * 10 ** uniform(generator(m, n, seed + 1), -1.0, 1.0, m, 1)


def badly_scaled(m: int, n: int, seed: int) -> Tensor:
    """Gaussian directions with norms over 12 decades, 10^U(-6, 6)."""
    return _rescaled(gaussian(m, n, seed), 6.0, seed)


def badly_scaled_conflicting(m: int, n: int, seed: int) -> Tensor:
    """Conflicting directions with norms over 12 decades, 10^U(-6, 6)."""
    return _rescaled(conflicting(m, n, seed), 6.0, seed)


def extremely_scaled(m: int, n: int, seed: int) -> Tensor:
    """Conflicting directions with norms from 1e-15 to 1e15."""
    return _rescaled(conflicting(m, n, seed), 15.0, seed)


def single(m: int, n: int, seed: int) -> Tensor:
    """One Gaussian row, of norm 10^U(-6, 6): with m = 1 every rule is a multiple of the gradient."""
    return _rescaled(gaussian(m, n, seed), 6.0, seed)
