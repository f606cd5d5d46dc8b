"""The split of a Gramian into cosines and norms on its own device, and the answer of a device solver.

It is the twin of `geometry.unit_gramian`. It never waits for the host: what the host raises as an error becomes an
infinite residual here. Every shape depends on m alone, so that a CUDA graph can capture each step.
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paretograd.geometry.cones import FLOAT32_ROWS

#: Most objectives that the kernels take: a matrix of this size fits into the registers of one processor.
MOST = 128


class DeviceWeights(NamedTuple):
    """Weights that were computed without the host.

    Attributes:
        weights: shape ``(m,)``, float64, on the Gramian's device.
        residual: violation of the optimality conditions relative to terms of order one, shape ``()``, float64, on the
            same device. It is infinite or NaN if the weights are no answer at all.
    """

    weights: Tensor
    residual: Tensor


class DeviceUnit(NamedTuple):
    """A Gramian split into cosines and norms, ``G = diag(norms) C diag(norms)``, on its device.

    Zero gradients stay: they are orthogonal to all others and have norm zero.

    Attributes:
        C: cosines with a diagonal of ones, shape ``(m, m)``, float64.
        norms: shape ``(m,)``, float64; zero for a zero gradient.
        faults: for each row, zero if it may be that of a Gramian, infinity if not, shape ``(m,)``, float64.
        eps: relative rounding error of the entries, that of the Gramian's original dtype.
    """

    C: Tensor
    norms: Tensor
    faults: Tensor
    eps: float

    @property
    def m(self) -> int:
        """Number of objectives."""
        return len(self.norms)

    @property
    def resolution(self) -> float:
        """Distance from a span below which a unit gradient counts as lying in it; see `UnitGramian.resolution`."""
        return max(FLOAT32_ROWS, 2.0 * math.sqrt(self.eps))

    @property
    def block(self) -> int:
        """Block size of the kernels: the next power of two of m, at least 16."""
        return block_size(self.m)

    @property
    def launch(self) -> dict[str, Any]:
        """Options of a kernel that keeps a square block in registers: the size of the block, and its threads.

        Left to itself, the compiler uses a quarter of the registers for the largest block. It also fuses products into
        the sums across threads. Each thread then rounds the same sum in its own way, and where a branch depends on the
        last bit, some threads wait forever for the others.
        """
        options: dict[str, Any] = {"B": self.block, "num_warps": warps(self.block), "enable_fp_fusion": False}
        return options | {"maxnreg": 64} if self.block == 128 else options

    def empty(self) -> DeviceWeights:
        """Return weights and a residual for a kernel to write."""
        return DeviceWeights(self.norms.new_empty(self.m), self.norms.new_empty(()))

    def fixed(self, weight: float) -> DeviceWeights:
        """Return the same weight for every objective, which is exact."""
        return DeviceWeights(self.norms.new_full((self.m,), weight), self.norms.new_zeros(()))


def split(gramian: Tensor, eps: float) -> DeviceUnit:
    """Split a Gramian of shape ``(m, m)`` into cosines and norms, in one launch."""
    from paretograd.device import unit_kernels

    m = len(gramian)
    G = gramian.detach().to(torch.float64).contiguous()
    C, norms, faults = torch.empty_like(G), G.new_empty(m), G.new_empty(m)
    unit_kernels.split[(m,)](G, C, norms, faults, m, 1e-6 + 64.0 * eps, B=block_size(m), num_warps=1)
    return DeviceUnit(C, norms, faults, eps)


def dependence(unit: DeviceUnit) -> Tensor:
    """Return zero if the gradients are far from dependent, otherwise infinity, shape ``()``.

    They are far from dependent if all eigenvalues of the cosines exceed ``(10 resolution)^2``, as `lapack.is_regular`
    requires. Weights are then unique.
    """
    from paretograd.device import unit_kernels

    found = unit.norms.new_empty(())
    shift = (10.0 * unit.resolution) ** 2
    unit_kernels.dependence[(1,)](unit.C, found, unit.m, shift, **unit.launch)
    return found


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a vector of parameters as a float64 tensor on a device; do not write to it.

    A copy from the host cannot be captured. So it is made once and kept, because a captured graph may read it later.
    A single number needs no copy: ``unit.norms.new_full((), value)`` fills it on the device. (As an argument of a
    kernel it would be rounded to float32.)
    """
    return torch.tensor(values, dtype=torch.float64, device=device)


def block_size(m: int) -> int:
    """Return the next power of two of m, at least 16."""
    return max(16, 1 << (m - 1).bit_length())


def warps(block: int) -> int:
    """Return the number of warps for a kernel that keeps a square block in registers: 8 or 16 numbers per thread."""
    return {16: 1, 32: 4, 64: 16, 128: 32}[block]


@cache
def serves(device: torch.device) -> bool:
    """Return True if the kernels run on a device: NVIDIA's, or any device under Triton's interpreter.

    They do not if Triton is missing, too old, or has no compiler.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" and (device.type != "cuda" or torch.version.hip is not None):
        return False
    try:
        split(torch.eye(2, dtype=torch.float64, device=device), 0.0)
    except Exception:  # noqa: BLE001  (the host solves in any case)
        return False
    return True
