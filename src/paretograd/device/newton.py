"""Rules that Newton's method solves, on the device: Nash-MTL and its relatives, entropic and spectral MGDA."""

from __future__ import annotations

import math

from torch import Tensor

from paretograd.aggregators.named import MGDA, EntropicMGDA, PowerMean, SpectralMGDA
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL
from paretograd.checks import as_weights
from paretograd.device.hulls import mgda
from paretograd.device.unit import DeviceUnit, DeviceWeights, constant


def nash_mtl(rule: NashMTL, unit: DeviceUnit) -> DeviceWeights:
    """Solve ``G w = 1 / w`` and clip the norm of the direction, which is the root of m."""
    found = _power(unit, 1.0)
    if rule.max_norm is None or rule.max_norm >= math.sqrt(unit.m):
        return found
    return found._replace(weights=found.weights * (rule.max_norm / math.sqrt(unit.m)))


def fairgrad(rule: FairGrad, unit: DeviceUnit) -> DeviceWeights:
    """Solve ``G w = w^(-1 / alpha)``."""
    if rule.alpha == 0.0:
        return unit.fixed(1.0)
    return _power(unit, 1.0 / rule.alpha)


def pivrg(rule: PIVRG, unit: DeviceUnit) -> DeviceWeights:
    """Solve ``G w = (omega / w)^(1/2)``."""
    if rule.omega is None:
        return _power(unit, 0.5)
    omega = as_weights(rule.omega, "scores", unit.m)
    return _power(unit, 0.5, constant(tuple(omega.tolist()), unit.norms.device))


def power_mean(rule: PowerMean, unit: DeviceUnit) -> DeviceWeights:
    """Return the weights of the direction that maximises the power mean of the decreases."""
    if rule.p == 1.0:
        return unit.fixed(1.0 / unit.m)
    if rule.p == -math.inf:
        return mgda(MGDA(), unit)
    return _power(unit, 1.0 / (1.0 - rule.p), mean=True)


def entropic_mgda(rule: EntropicMGDA, unit: DeviceUnit) -> DeviceWeights:
    """Return the weights of MGDA with an entropy term."""
    from paretograd.device import newton_kernels

    found = unit.empty()
    temperature = unit.norms.new_full((), rule.temperature)
    newton_kernels.entropic[(1,)](unit.C, unit.norms, temperature, *found, unit.m, unit.eps, **unit.launch)
    return found


def spectral_mgda(rule: SpectralMGDA, unit: DeviceUnit) -> DeviceWeights:
    """Return the point of least norm in the hull whose weights lie in the permutahedron of the spectrum."""
    from paretograd.device import spectral_kernels

    spectrum = rule.s.spectrum_for(unit.m)
    if spectrum[0] == spectrum[-1]:
        return unit.fixed(1.0 / unit.m)
    live = (unit.norms > 0.0).to(unit.norms.dtype)
    C = unit.C * (live[:, None] * live)
    mu = constant(tuple((spectrum / spectrum.sum()).tolist()), unit.norms.device)
    found = unit.empty()
    plain = mgda(MGDA(), unit)
    spectral_kernels.spectral[(1,)](C, unit.norms, mu, *plain, *found, unit.m, unit.eps, **unit.launch)
    return found


def _power(unit: DeviceUnit, beta: float, omega: Tensor | None = None, *, mean: bool = False) -> DeviceWeights:
    """Solve ``(G w)_k = (omega_k / w_k) ** beta``, and scale w to maximise the power mean if asked to."""
    from paretograd.device import newton_kernels

    found, exponent = unit.empty(), unit.norms.new_full((), beta)
    omega = constant((1.0,) * unit.m, unit.norms.device) if omega is None else omega
    newton_kernels.power[(1,)](unit.C, unit.norms, omega, exponent, *found, unit.m, unit.eps, MEAN=mean, **unit.launch)
    return found
