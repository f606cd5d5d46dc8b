"""Rules that constrain the slopes of the direction, solved on the device.

UPGrad, Greedy-DCP and DualProj project onto the dual cone, PCGrad and PCGrad+ onto one half-space after the other.
CAGrad maximises the least slope, and IMTL-G and ConFIG ask for equal slopes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.aggregators.dual_cone import GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.named import CAGrad, DualProj
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.checks import as_weights
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant, dependence
from paretograd.geometry.cones import FLOAT32_ROWS

#: The largest number of half-spaces that PCGrad+ projects a gradient onto, so that it ends within a few milliseconds.
_MOST = 16_384


def upgrad(rule: UPGrad, unit: DeviceUnit) -> DeviceWeights:
    """Project every gradient onto the dual cone, then average."""
    added, _, residuals = _project_each(unit)
    return _gather(unit, added, residuals, _preference(rule.preference, unit))


def greedy_dcp(rule: GreedyDCP, unit: DeviceUnit) -> DeviceWeights:
    """Return the longest of the projected gradients."""
    from paretograd.device import quadratic_kernels

    found = unit.empty()
    quadratic_kernels.longest[(1,)](*_project_each(unit), unit.norms, *found, unit.m, B=unit.block, num_warps=1)
    return found


def dualproj(rule: DualProj, unit: DeviceUnit) -> DeviceWeights:
    """Project the average gradient onto the dual cone."""
    from paretograd.device import quadratic_kernels

    found = unit.empty()
    u = _preference(rule.preference, unit)
    quadratic_kernels.project_sum[(1,)](unit.C, unit.norms, u, *found, unit.m, unit.resolution, **unit.launch)
    return found


def pcgrad(rule: PCGrad, unit: DeviceUnit) -> DeviceWeights:
    """Make one pass of projections in the given order."""
    from paretograd.device import sweep_kernels

    added, residuals = unit.C.new_empty(unit.C.shape), unit.C.new_empty(unit.m)
    sweep_kernels.pass_once[(unit.m,)](unit.C, added, residuals, unit.m, B=unit.block, num_warps=1)
    return _gather(unit, added, residuals, _preference([1.0] * unit.m if rule.reduction == "sum" else None, unit))


def pcgrad_plus(rule: PCGradPlus, unit: DeviceUnit) -> DeviceWeights:
    """Repeat the passes until the lifts are geometric series, then add their sums."""
    from paretograd.device import sweep_kernels

    m = unit.m
    added, residuals = unit.C.new_empty(m, m), unit.C.new_empty(m)
    state, settled = unit.C.new_empty(2, m, m), unit.C.new_empty(m, dtype=torch.int32)
    sweep_kernels.pass_until_calm[(m,)](unit.C, added, state, settled, m, _MOST // m, B=unit.block, num_warps=1)
    sweep_kernels.limit_of_passes[(m,)](unit.C, added, state, settled, residuals, m, unit.resolution, **unit.launch)
    return _gather(unit, added, residuals, _preference(None, unit))


def cagrad(rule: CAGrad, unit: DeviceUnit) -> DeviceWeights:
    """Return the best worst-case decrease within a ball around the mean gradient."""
    from paretograd.device import level_kernels

    if rule.c == 0.0:
        return unit.fixed(1.0 / unit.m)
    found = unit.empty()
    radius = unit.norms.new_full((), rule.c)
    level_kernels.conflict_averse[(1,)](
        unit.C, unit.norms, radius, dependence(unit), *found, unit.m, unit.resolution, **unit.launch
    )
    return found


def imtl_g(rule: IMTLG, unit: DeviceUnit) -> DeviceWeights:
    """Return equal inner products with all unit gradients, and weights that sum to one."""
    return _equal_angles(unit, impartial=True)


def config(rule: ConFIG, unit: DeviceUnit) -> DeviceWeights:
    """Return equal angles to all gradients, and the sum of their projections as length."""
    return _equal_angles(unit, impartial=False)


def _equal_angles(unit: DeviceUnit, impartial: bool) -> DeviceWeights:
    from paretograd.device import quadratic_kernels

    found = unit.empty()
    noise = max(FLOAT32_ROWS, 8.0 * unit.eps)
    quadratic_kernels.equal_angles[(1,)](
        unit.C, unit.norms, *found, unit.m, unit.resolution, noise, impartial, **unit.launch
    )
    return found


def _preference(values: Sequence[float] | None, unit: DeviceUnit) -> Tensor:
    """Return the weights of an average, shape ``(m,)``; None for 1/m each."""
    u = (1.0 / unit.m,) * unit.m if values is None else tuple(as_weights(values, "preference", unit.m).tolist())
    return constant(u, unit.norms.device)


def _gather(unit: DeviceUnit, added: Tensor, residuals: Tensor, u: Tensor) -> DeviceWeights:
    """Return the weights of the sum of all projected gradients, weighted by ``u``.

    Args:
        unit: the Gramian.
        added: what is added to each unit gradient, in unit gradients, shape ``(m, m)``.
        residuals: one for each gradient.
        u: shape ``(m,)``.
    """
    from paretograd.device import quadratic_kernels

    found = unit.empty()
    quadratic_kernels.gather[(1,)](added, residuals, unit.norms, u, *found, unit.m, **unit.launch)
    return found


def _project_each(unit: DeviceUnit) -> tuple[Tensor, Tensor, Tensor]:
    """Project all unit gradients onto the dual cone.

    Returns:
        the coefficients that each projection adds, shape ``(m, m)``, the squared lengths of the projections, and the
        residuals, shape ``(m,)`` each.
    """
    from paretograd.device import quadratic_kernels

    added, squares, residuals = unit.C.new_empty(unit.C.shape), unit.C.new_empty(unit.m), unit.C.new_empty(unit.m)
    quadratic_kernels.project_each[(unit.m,)](unit.C, added, squares, residuals, unit.m, unit.resolution, **unit.launch)
    return added, squares, residuals
