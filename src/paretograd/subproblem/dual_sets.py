"""Parameters of the dual sets of risk measures: what is allowed, and what they mean for m objectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paretograd.checks import as_number, as_weights
from paretograd.errors import InfeasibleCapError, ParameterError
from paretograd.geometry.gramian import Array


def check_cap(cap: float | None, eps: float | None) -> tuple[float | None, float | None]:
    """Exactly one of cap > 0 and eps in (0, 1]."""
    if (cap is None) == (eps is None):
        raise ParameterError("give either cap, the largest weight, or eps, the tail fraction, such as cap=0.2")
    if cap is not None and not as_number(cap, "cap") > 0.0:
        raise ParameterError(f"cap={cap:g}: the largest weight must be above 0 (and at least 1/m)")
    if eps is not None and not 0.0 < as_number(eps, "eps") <= 1.0:
        raise ParameterError(f"eps={eps:g}: the tail fraction lies in (0, 1]; 1 is the mean, 1/m and below is MGDA")
    return cap, eps


def cap_for(cap: float | None, eps: float | None, m: int) -> float:
    """The largest weight for m objectives; raises where no weights below it sum to one."""
    found = cap if cap is not None else 1.0 / (eps * m)  # type: ignore[operator]
    if found * m < 1.0 - 1e-12:
        raise InfeasibleCapError(
            f"cap={found:g} leaves no weights that sum to 1 for m={m} objectives; "
            f"the smallest feasible cap is 1/m = {1 / m:.4g}"
        )
    return found


def capped_spectrum(m: int, cap: float) -> Array:
    """The weights of the sorted losses that CVaR stands for: the cap as often as it fits, then the rest."""
    return np.asarray(np.diff(np.minimum(cap * np.arange(m + 1), 1.0)))


def spectral_value(x: Array, spectrum: Array) -> float:
    """``sum_i spectrum_i (-x)_(i)``, the largest of -x first."""
    return -float(spectrum @ np.sort(x))


def check_spectrum(spectrum: Sequence[float] | Tensor | Array) -> Array:
    """A non-increasing vector of weights, divided by its sum."""
    weights = as_weights(spectrum, "spectrum")
    if (np.diff(weights) > 0.0).any():
        raise ParameterError(
            f"spectrum={weights.tolist()} must not increase: the first weight is for the worst objective, and s is "
            "convex only if worse ones weigh more. Sort it in decreasing order"
        )
    return np.asarray(weights / weights.sum())


def spectrum_for(spectrum: Array, m: int) -> Array:
    """The spectrum for m objectives: filled up with zeros."""
    if len(spectrum) > m and spectrum[m:].any():
        raise ParameterError(
            f"spectrum has {len(spectrum)} weights, but there are m = {m} objectives; give at most {m}"
        )
    full = np.zeros(m)
    full[: min(m, len(spectrum))] = spectrum[:m]
    return full


def check_radius(radius: float) -> float:
    """A chi-square radius, at least 0."""
    if not as_number(radius, "radius") >= 0.0:
        raise ParameterError(f"radius={radius:g}: a divergence is >= 0; 0 is the mean, m - 1 and more is MGDA")
    return float(radius)


def check_temperature(temperature: float) -> float:
    """A temperature, finite and above 0."""
    if not 0.0 < as_number(temperature, "temperature") < np.inf:
        raise ParameterError(
            f"temperature={temperature:g}: it lies above 0 and is finite; near 0 is MGDA, large is the mean"
        )
    return float(temperature)
