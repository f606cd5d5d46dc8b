"""Convex risk measures, whose multipliers lie in the simplex (Section "Convex risk measures").

A dual set or a penalty defines each of them, and each has an exact solver of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paretograd.checks import as_number, as_weights, shown_number, shown_value
from paretograd.errors import InfeasibleCapError, ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import THEOREM_2
from paretograd.solution import Outcome, Point, Status, outcome_of
from paretograd.solvers.chi_square import chi_square_min_norm_point
from paretograd.solvers.entropic import entropic_point
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.spectral import capped_min_norm_point, spectral_min_norm_point
from paretograd.subproblem.scalarization import DualPoint, Family, Quadratic

#: Note of the risk measures between the mean and the worst case.
BETWEEN = "Not non-conflicting in general: between the mean and MGDA."


class CoherentRisk(Family):
    """The maximum of ``<-lambda, x>`` over a subset of the simplex. Its dual problem is a min-norm point."""

    homogeneous = True
    risk = True
    continuous = continuous_inside = True

    @abstractmethod
    def nearest(self, unit: UnitGramian) -> Point:
        """Return the weights in the dual set that minimise ``|J.T w|``."""

    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        return outcome_of(self.nearest(unit))

    def dual(self, problem: Quadratic) -> DualPoint:
        found = self.nearest(problem.shifted())
        stationary = found.stationary and problem.center is None
        return DualPoint(found.weights, 0.0, found.residual, found.steps, stationary)


class WorstCase(CoherentRisk):
    """The worst decrease, ``max_k -x_k``. Its dual set is the whole simplex, which gives MGDA."""

    formula = "max_k (-x_k)"
    citation = "a maximum of linear functions"
    non_conflicting = True
    theorem = "thm:cvg_nonconflict"
    alternatives = (THEOREM_2,)

    def value(self, x: Array) -> float:
        return -float(x.min())

    def nearest(self, unit: UnitGramian) -> Point:
        return min_norm_point(unit)


class CVaR(CoherentRisk):
    """Conditional value-at-risk: the mean of the worst ``eps m`` decreases. Its dual set is the capped simplex.

    Args:
        cap: the largest multiplier, ``1 / (eps m)``, at least 1/m. Give either cap or eps.
        eps: the tail fraction, in (0, 1].
    """

    formula = "CVaR_eps(x)"
    citation = "Rockafellar and Uryasev 2000"
    note: str | None = "Not non-conflicting in general: objectives at the cap may go up."

    def __init__(self, cap: float | None = None, eps: float | None = None) -> None:
        self.cap, self.eps = _check_cap(cap, eps)
        if self.cap is not None and self.cap >= 1.0:  # the worst case
            self.non_conflicting, self.note = True, WorstCase.note
            self.theorem, self.alternatives = WorstCase.theorem, WorstCase.alternatives

    def cap_for(self, m: int) -> float:
        """Return the largest weight for m objectives; raise if weights below it cannot sum to one."""
        cap = self.cap if self.cap is not None else 1.0 / (self.eps * m)  # type: ignore[operator]
        if cap * m < 1.0 - 1e-12:
            raise InfeasibleCapError(
                f"cap={cap:g} leaves no weights that sum to 1 for m={m} objectives; "
                f"the smallest feasible cap is 1/m = {1 / m:.4g}"
            )
        return cap

    def value(self, x: Array) -> float:
        return _spectral_value(x, _capped_spectrum(len(x), self.cap_for(len(x))))

    def nearest(self, unit: UnitGramian) -> Point:
        cap = self.cap_for(unit.m)
        return min_norm_point(unit) if cap >= 1.0 else capped_min_norm_point(unit, cap)

    def __repr__(self) -> str:
        given = {"cap": self.cap, "eps": self.eps}
        return f"CVaR({', '.join(f'{key}={shown_number(value)}' for key, value in given.items() if value is not None)})"


class Spectral(CoherentRisk):
    """A weighted mean of the sorted losses ``-x``, the largest weight on the worst. Its dual set is a permutahedron.

    Args:
        spectrum: non-increasing weights >= 0, the first for the worst objective. They are divided by their sum and
            padded with zeros to m entries. None is the linear spectrum m, m - 1, ..., 1.
    """

    formula = "sum_i mu_i (-x)_(i)"
    citation = "Acerbi 2002"
    note = BETWEEN

    def __init__(self, spectrum: Sequence[float] | Tensor | Array | None = None) -> None:
        self.spectrum = None if spectrum is None else _check_spectrum(spectrum)

    def value(self, x: Array) -> float:
        return _spectral_value(x, self.spectrum_for(len(x)))

    def nearest(self, unit: UnitGramian) -> Point:
        return spectral_min_norm_point(unit, self.spectrum_for(unit.m))

    def spectrum_for(self, m: int) -> Array:
        """Return the spectrum for m objectives."""
        if self.spectrum is None:
            return np.arange(m, 0, -1.0) / (0.5 * m * (m + 1))
        return _spectrum_for(self.spectrum, m)

    def __repr__(self) -> str:
        return f"Spectral({'' if self.spectrum is None else shown_value(self.spectrum)})"


class ChiSquare(CoherentRisk):
    """The worst case over weights with chi-square divergence ``m |w|^2 - 1 <= radius`` from the uniform weights.

    Args:
        radius: a number of at least 0. 0 is the mean, and m - 1 or more is the worst case.
    """

    formula = "max over chi2(w) <= radius of <-w, x>"
    citation = "Ben-Tal et al. 2013"
    note = BETWEEN

    def __init__(self, radius: float) -> None:
        self.radius = _check_radius(radius)

    def value(self, x: Array) -> float:
        # Maximise <w, y> over the intersection of the simplex and a ball around its centre: try each support of w.
        y = -np.sort(x)
        m, mean = len(y), float(y.mean())
        if m == 1 or self.radius >= m - 1:
            return float(y[0])
        for k in range(m, 0, -1):  # on the k worst, w = 1/k + t (y - their mean), if all are >= 0
            part = y[:k] - y[:k].mean()
            size = float(np.sqrt(part @ part))
            room = (1.0 + self.radius) / m - 1.0 / k
            if room < 0.0:
                continue
            t = np.sqrt(room) / size if size > 0.0 else 0.0
            if 1.0 / k + t * part[-1] >= -1e-15:
                return float(y[:k].mean() + t * size * size)
        return mean

    def nearest(self, unit: UnitGramian) -> Point:
        return chi_square_min_norm_point(unit, self.radius)

    def __repr__(self) -> str:
        return f"ChiSquare({shown_number(self.radius)})"


class Entropic(Family):
    r"""Entropic risk, $\tau \log \frac1m \sum_k e^{-x_k/\tau}$, whose penalty is $\tau\,\mathrm{KL}(\lambda \| 1/m)$.

    Args:
        temperature: tau > 0, in the unit of x, that is of squared gradient norms.
        relative: if True, measure the temperature in units of the mean squared norm of the gradients. Rescaling all
            losses by one factor then keeps the weights. s depends on the Gramian, but ``grad s(0)`` does not.
    """

    formula = "tau log mean_k exp(-x_k / tau)"
    citation = "Foellmer and Schied 2002"
    risk = True
    continuous = continuous_inside = True
    note = BETWEEN

    def __init__(self, temperature: float, relative: bool = False) -> None:
        self.temperature = _check_temperature(temperature)
        self.relative = self.homogeneous = relative  # tau scales with x

    def at(self, G: Array) -> Entropic:
        # If the mean is zero, every gradient is zero, and any temperature works.
        return Entropic(self.temperature * (float(G.diagonal().mean()) or 1.0)) if self.relative else self

    def value(self, x: Array) -> float:
        if self.relative:
            raise NotImplementedError("the temperature depends on the Gramian: call .at(G) first")
        y = -x / self.temperature
        top = float(y.max())
        return self.temperature * (top + float(np.log(np.exp(y - top).mean())))

    def shortest(self, unit: UnitGramian, *, least: bool = False) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.full(unit.m, 1.0 / unit.m), Status.STATIONARY)
        top = float(unit.norms.max())
        scaled = unit._replace(norms=unit.norms / top)  # keeps the squares from overflowing
        scale = float(scaled.norms @ scaled.norms) / unit.m if self.relative else 1.0 / top / top
        return outcome_of(entropic_point(scaled, self.temperature * scale))

    def dual(self, problem: Quadratic) -> DualPoint:
        found = entropic_point(problem.shifted(), self.temperature / problem.beta)
        positive = found.weights[found.weights > 0.0]
        divergence = float(positive @ np.log(len(found.weights) * positive))
        return DualPoint(found.weights, self.temperature * divergence, found.residual, found.steps)

    def __repr__(self) -> str:
        return f"Entropic({shown_number(self.temperature)}{', relative=True' if self.relative else ''})"


def _check_cap(cap: float | None, eps: float | None) -> tuple[float | None, float | None]:
    """Validate cap > 0 or eps in (0, 1]; exactly one of them must be given."""
    if (cap is None) == (eps is None):
        raise ParameterError("give either cap, the largest weight, or eps, the tail fraction, such as cap=0.2")
    if cap is not None and not as_number(cap, "cap") > 0.0:
        raise ParameterError(f"cap={cap:g}: the largest weight must be above 0 (and at least 1/m)")
    if eps is not None and not 0.0 < as_number(eps, "eps") <= 1.0:
        raise ParameterError(f"eps={eps:g}: the tail fraction must lie in (0, 1]; 1 is the mean, 1/m and below is MGDA")
    return cap, eps


def _capped_spectrum(m: int, cap: float) -> Array:
    """Return the spectrum of CVaR: the cap as often as it fits into a sum of one, then the remainder, then zeros."""
    return np.asarray(np.diff(np.minimum(cap * np.arange(m + 1), 1.0)))


def _spectral_value(x: Array, spectrum: Array) -> float:
    """Return ``sum_i spectrum_i (-x)_(i)``, with the entries of -x in decreasing order."""
    return -float(spectrum @ np.sort(x))


def _check_spectrum(spectrum: Sequence[float] | Tensor | Array) -> Array:
    """Validate a non-increasing vector of weights, and return it divided by its sum."""
    weights = as_weights(spectrum, "spectrum")
    if (np.diff(weights) > 0.0).any():
        raise ParameterError(
            f"spectrum={weights.tolist()} must not increase: the first weight is for the worst objective, and s is "
            "convex only if worse ones weigh more. Sort it in decreasing order"
        )
    return np.asarray(weights / weights.sum())


def _spectrum_for(spectrum: Array, m: int) -> Array:
    """Return the spectrum for m objectives, padded with zeros."""
    if len(spectrum) > m and spectrum[m:].any():
        raise ParameterError(
            f"spectrum has {len(spectrum)} weights, but there are m = {m} objectives; give at most {m}"
        )
    full = np.zeros(m)
    full[: min(m, len(spectrum))] = spectrum[:m]
    return full


def _check_radius(radius: float) -> float:
    """Validate a chi-square radius of at least 0."""
    if not as_number(radius, "radius") >= 0.0:
        raise ParameterError(f"radius={radius:g}: a divergence must be >= 0; 0 is the mean, m - 1 or more is MGDA")
    return float(radius)


def _check_temperature(temperature: float) -> float:
    """Validate a finite temperature above 0."""
    if not 0.0 < as_number(temperature, "temperature") < np.inf:
        raise ParameterError(
            f"temperature={temperature:g}: it must be finite and above 0; near 0 is MGDA, large is the mean"
        )
    return float(temperature)
