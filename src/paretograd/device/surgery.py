"""Rules that remove conflicts by cyclic projections, solved on the device: PCGrad and PCGrad+."""

from __future__ import annotations

import torch
from torch import Tensor

from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant

#: The largest number of half-spaces that a gradient meets, so that a kernel ends within a few milliseconds.
_MOST = 16_384


def pcgrad(rule: PCGrad, unit: DeviceUnit) -> DeviceWeights:
    """Make one pass of projections in the given order."""
    from paretograd.device import sweep_kernels

    added, residuals = unit.C.new_empty(unit.C.shape), unit.C.new_empty(unit.m)
    sweep_kernels.pass_once[(unit.m,)](unit.C, added, residuals, unit.m, B=unit.block, num_warps=1)
    return _gather(unit, added, residuals, 1.0 if rule.reduction == "sum" else 1.0 / unit.m)


def pcgrad_plus(rule: PCGradPlus, unit: DeviceUnit) -> DeviceWeights:
    """Repeat the passes until the lifts are geometric series, then add their sums."""
    from paretograd.device import sweep_kernels

    m, block = unit.m, unit.block
    added, residuals = unit.C.new_empty(m, m), unit.C.new_empty(m)
    state, settled = unit.C.new_empty(2, m, m), unit.C.new_empty(m, dtype=torch.int32)
    sweep_kernels.pass_until_calm[(m,)](unit.C, added, state, settled, m, _MOST // m, B=block, num_warps=1)
    sweep_kernels.limit_of_passes[(m,)](unit.C, added, state, settled, residuals, m, unit.resolution, **unit.launch)
    return _gather(unit, added, residuals, 1.0 / m)


def _gather(unit: DeviceUnit, added: Tensor, residuals: Tensor, share: float) -> DeviceWeights:
    """Return the weights of the sum of the treated gradients, times a number."""
    from paretograd.device import quadratic_kernels

    found = unit.empty()
    u = constant((share,) * unit.m, unit.norms.device)
    quadratic_kernels.gather[(1,)](added, residuals, unit.norms, u, *found, unit.m, **unit.launch)
    return found
