"""Rules whose weights lie in the simplex, solved on the device: the mean, and MGDA with and without limits."""

from __future__ import annotations

import torch

from paretograd.aggregators.baselines import ClippedMGDA
from paretograd.aggregators.named import MGDA, CappedMGDA, ChiSquareMGDA, Mean
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant, dependence


def mean(rule: Mean, unit: DeviceUnit) -> DeviceWeights:
    """Return fixed weights."""
    if rule.s.weights is None:
        return unit.fixed(1.0 / unit.m)
    weights = constant(tuple(rule.s.weights_for(unit.m).tolist()), unit.norms.device)
    return DeviceWeights(weights.clone(), unit.norms.new_zeros(()))


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
    caps = unit.norms.new_full((), cap)
    hull_kernels.capped[(1,)](unit.C, unit.norms, caps, *found, unit.m, _slack(unit), **unit.launch)
    return found


def chi_square_mgda(rule: ChiSquareMGDA, unit: DeviceUnit) -> DeviceWeights:
    """Return the point of least norm in the hull with weights in a ball around the uniform ones."""
    from paretograd.device import hull_kernels

    found = unit.empty()
    radius = unit.norms.new_full((), rule.radius)
    hull_kernels.in_ball[(1,)](unit.C, unit.norms, radius, *found, unit.m, _slack(unit), **unit.launch)
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
    hull_kernels.shortest[(1,)](unit.C, unit.norms, *found, unit.m, _slack(unit), **unit.launch)
    return found


def _slack(unit: DeviceUnit) -> float:
    """Return how far below zero rounding may move the square of a combination, as `min_norm._is_zero` allows."""
    return 1e-9 + 64.0 * unit.eps
