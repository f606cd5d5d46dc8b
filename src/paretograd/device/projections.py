"""Rules that project onto the dual cone, solved on the device: UPGrad."""

from __future__ import annotations

from torch import Tensor

from paretograd.aggregators.dual_cone import UPGrad
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant, warps


def upgrad(rule: UPGrad, unit: DeviceUnit) -> DeviceWeights:
    """Project every gradient onto the dual cone, then average."""
    from paretograd.device import quadratic_kernels

    m, block = unit.m, unit.block
    added, residuals = _project(unit, unit.C)
    weights, residual = unit.norms.new_empty(m), unit.norms.new_empty(())
    u = _preference(rule.preference, unit)
    quadratic_kernels.gather[(1,)](
        added, residuals, unit.norms, u, weights, residual, m, B=block, num_warps=warps(block)
    )
    return DeviceWeights(weights, residual)


def _preference(preference: list[float] | None, unit: DeviceUnit) -> Tensor:
    """Return the weights of an average, shape ``(m,)``."""
    if preference is None:
        return unit.norms.new_full((unit.m,), 1.0 / unit.m)
    return constant(tuple(preference), unit.norms.device)


def _project(unit: DeviceUnit, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Project combinations of unit gradients, given by their slopes, onto the dual cone.

    Args:
        unit: the Gramian.
        slopes: inner products of each combination with the unit gradients, shape ``(k, m)``.

    Returns:
        the coefficients that each projection adds, shape ``(k, m)``, and the residuals, shape ``(k,)``.
    """
    from paretograd.device import quadratic_kernels

    added, residuals = unit.C.new_empty(slopes.shape), unit.C.new_empty(len(slopes))
    quadratic_kernels.project[(len(slopes),)](
        unit.C, slopes, added, residuals, unit.m, unit.resolution, B=unit.block, num_warps=warps(unit.block)
    )
    return added, residuals
