"""Rules whose weights lie in the simplex, solved on the device: the mean, MGDA, and MGDA with a cap."""

from __future__ import annotations

import torch

from paretograd.aggregators.baselines import ClippedMGDA
from paretograd.aggregators.named import MGDA, CappedMGDA, Mean
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant, dependence, warps


def mean(rule: Mean, unit: DeviceUnit) -> DeviceWeights:
    """Return fixed weights."""
    if rule.s.weights is None:
        weights = unit.norms.new_full((unit.m,), 1.0 / unit.m)
    else:
        weights = constant(tuple(rule.s.weights_for(unit.m).tolist()), unit.norms.device)
    return DeviceWeights(weights, unit.norms.new_zeros(()))


def mgda(rule: MGDA, unit: DeviceUnit) -> DeviceWeights:
    """Return the point of least norm in the hull."""
    return _shortest(unit)


def capped_mgda(rule: CappedMGDA, unit: DeviceUnit) -> DeviceWeights:
    """Return the point of least norm in the hull with weights of at most C."""
    from paretograd.device import hull_kernels

    cap = rule.s.cap_for(unit.m)
    if cap >= 1.0:
        return _shortest(unit)
    found = unit.empty()
    caps = constant((cap,), unit.norms.device)
    hull_kernels.capped[(1,)](unit.C, unit.norms, caps, *found, unit.m, B=unit.block, num_warps=warps(unit.block))
    return found


def clipped_mgda(rule: ClippedMGDA, unit: DeviceUnit) -> DeviceWeights:
    """Clip the weights of MGDA. If these are not unique, the host decides which ones are clipped."""
    weights, residual = _shortest(unit)
    clipped = weights.clamp(max=rule.cap)
    if rule.renormalize:
        clipped = clipped / clipped.sum()
    return DeviceWeights(clipped, torch.maximum(residual, dependence(unit)))


def _shortest(unit: DeviceUnit) -> DeviceWeights:
    from paretograd.device import hull_kernels

    found = unit.empty()
    hull_kernels.shortest[(1,)](unit.C, unit.norms, *found, unit.m, unit.eps, B=unit.block, num_warps=warps(unit.block))
    return found
