"""Weights of a rule computed on the Gramian's device, without waiting for the host.

`device_weights` launches a few kernels and returns two tensors that may not be computed yet: the weights, and a
residual that says whether they may be trusted. Nothing depends on the entries but the values themselves, so that a CUDA
graph can capture the call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.baselines import ClippedMGDA
from paretograd.aggregators.blend import Blend
from paretograd.aggregators.dual_cone import GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.mixed import Mixed
from paretograd.aggregators.named import (
    MGDA,
    CAGrad,
    CappedMGDA,
    ChiSquareMGDA,
    DualProj,
    EntropicMGDA,
    Mean,
    PowerMean,
    SpectralMGDA,
)
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL
from paretograd.device import hulls, newton, projections
from paretograd.device.unit import MOST, DeviceUnit, DeviceWeights, dependence, serves, split

__all__ = ["TRUSTED", "DeviceWeights", "device_weights", "has_device_solver"]

#: Weights with a residual up to this may be trusted: they are as accurate as those of the host's solvers.
TRUSTED = 1e-9

Solver = Callable[[Any, DeviceUnit], DeviceWeights]

#: The solver of each rule. Subclasses may solve another problem, so they are not served.
_SOLVERS: dict[type[Aggregator], Solver] = {
    UPGrad: projections.upgrad,
    GreedyDCP: projections.greedy_dcp,
    DualProj: projections.dualproj,
    CAGrad: projections.cagrad,
    IMTLG: projections.imtl_g,
    ConFIG: projections.config,
    PCGrad: projections.pcgrad,
    PCGradPlus: projections.pcgrad_plus,
    Mean: hulls.mean,
    MGDA: hulls.mgda,
    CappedMGDA: hulls.capped_mgda,
    ChiSquareMGDA: hulls.chi_square_mgda,
    ClippedMGDA: hulls.clipped_mgda,
    NashMTL: newton.nash_mtl,
    FairGrad: newton.fairgrad,
    PIVRG: newton.pivrg,
    PowerMean: newton.power_mean,
    EntropicMGDA: newton.entropic_mgda,
    SpectralMGDA: newton.spectral_mgda,
}

#: Rules whose weights are not unique if gradients are dependent. Their sum then depends on the solver, and with it the
#: length of the normalized rule.
_AMBIGUOUS = frozenset({UPGrad, GreedyDCP, DualProj, CAGrad, PCGradPlus})


def device_weights(rule: Aggregator, gramian: Tensor, eps: float) -> DeviceWeights | None:
    """Return the weights of a rule for a Gramian, computed on its device; None if there is no solver for them.

    If the residual exceeds `TRUSTED` or is NaN, solve the problem on the host. Put both calls into one
    ``rule.one_step()``, so that a rule that changes with the step, such as `Mixed`, counts one step.

    Args:
        rule: the rule.
        gramian: shape ``(m, m)``.
        eps: relative rounding error of its entries, the epsilon of the dtype in which it was computed.
    """
    if not has_device_solver(rule, len(gramian), gramian.device):
        return None
    with torch.cuda.device(gramian.device) if gramian.is_cuda else nullcontext():
        unit = split(gramian, eps)
        found = _solve(rule, unit, least=False)
        return found._replace(residual=torch.maximum(found.residual, unit.faults.amax()))


def has_device_solver(rule: Aggregator, m: int, device: torch.device) -> bool:
    """Return True if `device_weights` solves this rule for m objectives on this device."""
    return m <= MOST and serves(device) and _is_served(rule)


def _is_served(rule: Aggregator) -> bool:
    if type(rule) is Normalized:
        return _is_served(rule.aggregator)
    if type(rule) is Blend:
        return all(_is_served(part) for part in rule.aggregators)
    if type(rule) is Mixed:
        return _is_served(rule.member() if rule._acting is None else rule._acting)
    # A random order comes from the host's generator.
    return type(rule) in _SOLVERS and not (type(rule) is PCGrad and rule.order == "shuffled")


def _solve(rule: Aggregator, unit: DeviceUnit, least: bool) -> DeviceWeights:
    """Return the weights. With ``least``, do not trust them if smaller ones may give the same direction."""
    if type(rule) is Normalized:
        weights, residual = _solve(rule.aggregator, unit, least=True)
        size = weights.abs().sum()
        return DeviceWeights(weights / torch.where(size > 0.0, size, 1.0), residual)
    if type(rule) is Blend:
        with rule.one_step():
            parts = [_solve(part, unit, least) for part in rule.aggregators]
        shares = rule.weights_of_rules.tolist()
        weights = sum(
            (share * part.weights for share, part in zip(shares, parts, strict=True)), torch.zeros_like(unit.norms)
        )
        return DeviceWeights(weights, torch.stack([part.residual for part in parts]).amax())
    if type(rule) is Mixed:
        return rule._act(lambda member: _solve(member, unit, least))
    found = _SOLVERS[type(rule)](rule, unit)
    if least and type(rule) in _AMBIGUOUS:
        found = found._replace(residual=torch.maximum(found.residual, dependence(unit)))
    return found
