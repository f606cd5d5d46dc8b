"""Convex risk measures: s whose multipliers lie in the simplex (Section "Convex risk measures").

Each is described by its dual set or penalty, and has a dedicated exact solver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paretograd.checks import shown_number, shown_value
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.chi_square import chi_square_min_norm_point
from paretograd.solvers.entropic import entropic_point
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.spectral import capped_min_norm_point, spectral_min_norm_point
from paretograd.subproblem.dual_sets import (
    cap_for,
    capped_spectrum,
    check_cap,
    check_radius,
    check_spectrum,
    check_temperature,
    spectral_value,
    spectrum_for,
)
from paretograd.subproblem.scalarization import DualPoint, Family, Quadratic


class CoherentRisk(Family):
    """``s(x) = max over lambda in a set of <-lambda, x>`` for a subset of the simplex: the dual is a min-norm point."""

    homogeneous = True
    risk = True

    @abstractmethod
    def nearest(self, unit: UnitGramian) -> Point:
        """The weights in the set with the least ``|J.T w|``."""

    def dual(self, problem: Quadratic) -> DualPoint:
        found = self.nearest(problem.shifted())
        stationary = found.stationary and problem.center is None
        return DualPoint(found.weights, 0.0, found.residual, found.steps, stationary)


class WorstCase(CoherentRisk):
    """The worst decrease, ``max_k -x_k``, whose dual set is the whole simplex: MGDA."""

    formula = "max_k (-x_k)"
    citation = "a maximum of linear functions"
    non_conflicting = True

    def value(self, x: Array) -> float:
        return -float(x.min())

    def nearest(self, unit: UnitGramian) -> Point:
        return min_norm_point(unit)


class CVaR(CoherentRisk):
    """Conditional value-at-risk: the mean of the worst ``eps m`` decreases. Its dual set is the capped simplex.

    Args:
        cap: the largest multiplier, ``1 / (eps m)``, at least 1/m.
        eps: the tail fraction in (0, 1], instead of the cap.
    """

    formula = "CVaR_eps(x)"
    citation = "Rockafellar and Uryasev 2000"

    def __init__(self, cap: float | None = None, eps: float | None = None) -> None:
        self.cap, self.eps = check_cap(cap, eps)

    def value(self, x: Array) -> float:
        return spectral_value(x, capped_spectrum(len(x), cap_for(self.cap, self.eps, len(x))))

    def nearest(self, unit: UnitGramian) -> Point:
        return capped_min_norm_point(unit, cap_for(self.cap, self.eps, unit.m))

    def __repr__(self) -> str:
        given = {"cap": self.cap, "eps": self.eps}
        return f"CVaR({', '.join(f'{key}={shown_number(value)}' for key, value in given.items() if value is not None)})"


class Spectral(CoherentRisk):
    """A weighted mean of the sorted losses ``-x``, the worst ones weighted most. Its dual set is a permutahedron.

    Args:
        spectrum: non-increasing weights >= 0, the first for the worst objective; divided by their sum. Shorter
            than the number of objectives, it is filled up with zeros.
    """

    formula = "sum_i mu_i (-x)_(i)"
    citation = "Acerbi 2002"

    def __init__(self, spectrum: Sequence[float] | Tensor | Array) -> None:
        self.spectrum = check_spectrum(spectrum)

    def value(self, x: Array) -> float:
        return spectral_value(x, spectrum_for(self.spectrum, len(x)))

    def nearest(self, unit: UnitGramian) -> Point:
        return spectral_min_norm_point(unit, spectrum_for(self.spectrum, unit.m))

    def __repr__(self) -> str:
        return f"Spectral({shown_value(self.spectrum)})"


class ChiSquare(CoherentRisk):
    """Worst case over the weights within a chi-square divergence ``m |w|^2 - 1 <= radius`` of the uniform ones.

    Args:
        radius: 0 is the mean; m - 1 and more is the worst case.
    """

    formula = "max over chi2(w) <= radius of <-w, x>"
    citation = "Ben-Tal et al. 2013"

    def __init__(self, radius: float) -> None:
        self.radius = check_radius(radius)

    def value(self, x: Array) -> float:
        # The maximum of <w, y> over the simplex and a ball around its centre, found along the support of w.
        y = -np.sort(x)
        m, mean = len(y), float(y.mean())
        if m == 1 or self.radius >= m - 1:
            return float(y[0])
        for k in range(m, 0, -1):  # on the k worst: w = 1/k + t (y - their mean), as long as all are >= 0
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
        temperature: tau > 0, in the unit of x, which is that of squared gradient norms.
    """

    formula = "tau log mean_k exp(-x_k / tau)"
    citation = "Foellmer and Schied 2002"
    risk = True

    def __init__(self, temperature: float) -> None:
        self.temperature = check_temperature(temperature)

    def value(self, x: Array) -> float:
        y = -x / self.temperature
        top = float(y.max())
        return self.temperature * (top + float(np.log(np.exp(y - top).mean())))

    def dual(self, problem: Quadratic) -> DualPoint:
        found = entropic_point(problem.shifted(), self.temperature / problem.beta)
        positive = found.weights[found.weights > 0.0]
        divergence = float(positive @ np.log(len(found.weights) * positive))
        return DualPoint(found.weights, self.temperature * divergence, found.residual, found.steps)

    def __repr__(self) -> str:
        return f"Entropic({shown_number(self.temperature)})"
