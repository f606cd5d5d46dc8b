"""The two families of Jacobians that the benchmarks use.

Every matrix is rounded to float32, so that float32 and float64 calls receive exactly the same gradients and
share one reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

#: Number of columns. Solvers only see the m x m Gramian, so n matters only through the cosines (about 1/sqrt(n)
#: between independent rows), except for ConFIG, which TorchJD computes from the Jacobian.
COLUMNS = 1000


def similar(m: int, seed: int) -> Tensor:
    """Return standard normal entries: norms within a few percent, cosines near zero of either sign."""
    return _normal(_generator(m, seed), m).float()


def badly_scaled(m: int, seed: int) -> Tensor:
    """``J_i = r_i (Z_i +- 1)`` with ``r_i = 10^U(-1, 1)``: two groups at cosine -1/2, norms over two decades.

    The signs alternate, so that both camps are there at every m.
    """
    rng = _generator(m, seed)
    signs = 1.0 - 2.0 * (torch.arange(m) % 2)[torch.randperm(m, generator=rng)].double()
    scales = 10.0 ** (2.0 * torch.rand(m, generator=rng, dtype=torch.float64) - 1.0)
    return (scales[:, None] * (_normal(rng, m) + signs[:, None])).float()


FAMILIES: dict[str, Callable[[int, int], Tensor]] = {"similar": similar, "badly scaled": badly_scaled}


def _generator(m: int, seed: int) -> Generator:
    return Generator().manual_seed(1_009 * m + seed)


def _normal(rng: Generator, m: int) -> Tensor:
    return torch.randn(m, COLUMNS, generator=rng, dtype=torch.float64)
