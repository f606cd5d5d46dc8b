"""Rules between the mean and MGDA, from convex risk measures of the decreases: entropic, spectral, chi-square.

All three minimise ``s(J d) + |d|^2 / 2`` for a convex risk measure s with s(0) = 0, so that Theorem 4 covers them.
Its c = 1/2 can be improved: the uniform weights u minimise the penalty ``s*(-w)``, so that the optimality of w
gives ``<d, mean gradient> >= |d|^2``, condition (A) with c = 1 for F the mean of the objectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import MEAN, Guarantee
from paretograd.solution import Outcome, Status, outcome_of
from paretograd.solvers.chi_square import chi_square_min_norm_point
from paretograd.solvers.entropic import entropic_point
from paretograd.solvers.spectral import spectral_min_norm_point
from paretograd.subproblem.dual_sets import check_radius, check_spectrum, check_temperature, spectrum_for

_GUARANTEE = Guarantee(
    "thm:PSreg",
    in_hull=True,
    alignment=1.0,
    F=MEAN,
    note="Not non-conflicting in general: between the mean and MGDA.",
)


class EntropicMGDA(GramianAggregator):
    r"""MGDA with an entropy that keeps the weights near the uniform ones.

    $$ w = \arg\min_{w \in \Delta} \tfrac12 \|J^\top w\|^2 + \tau\, \mathrm{KL}(w \,\|\, \tfrac1m),
       \qquad \tau = t \cdot \tfrac1m \textstyle\sum_k \|g_k\|^2 $$

    It is the direction of the entropic risk $s(x) = \tau \log \frac1m \sum_k e^{-x_k / \tau}$. Every weight is
    positive and a smooth function of the gradients. A temperature near 0 is MGDA, a large one the mean; as it is
    relative to the squared norms of the gradients, rescaling the losses does not change what it means.

    Args:
        temperature: t, above 0.
    """

    name = "entropic-mgda"
    label = "Entropic MGDA"
    description = Description(
        formula="w = argmin over the simplex of |J.T w|^2 / 2 + t mean(|g|^2) KL(w | uniform)",
        reference="paretograd, by Theorem 4; the risk measure: Foellmer and Schied 2002",
        paper="new; Section 'Convex risk measures'",
        when="MGDA is too jumpy: weights that change smoothly and never vanish. One dial from MGDA to the mean.",
    )

    def __init__(self, temperature: float = 0.1) -> None:
        self.temperature = check_temperature(temperature)

    @property
    def guarantee(self) -> Guarantee:
        """-grad s(0) is uniform whatever the temperature, so that one F serves all steps."""
        return _GUARANTEE

    def _solve(self, unit: UnitGramian) -> Outcome:
        if not len(unit.norms):
            return Outcome(np.full(unit.m, 1.0 / unit.m), Status.STATIONARY)
        top = float(unit.norms.max())
        scaled = unit._replace(norms=unit.norms / top)  # no overflow in the squares
        temperature = self.temperature * float(scaled.norms @ scaled.norms) / unit.m
        found = entropic_point(scaled, temperature)
        return outcome_of(found)


class SpectralMGDA(GramianAggregator):
    r"""MGDA on the sorted losses: the worst objective counts most, the next one less, and so on.

    $$ d = \arg\min_d\; \sum_i \mu_i\, (-Jd)_{(i)} + \tfrac12 \|d\|^2, \qquad \mu_1 \ge \mu_2 \ge \dots \ge 0,
       \quad \textstyle\sum_i \mu_i = 1 $$

    with the entries of $-Jd$ in decreasing order. The weights are the point of least norm in the permutahedron of
    $\mu$. The spectrum (1, 0, ...) is MGDA, a constant one the mean, k equal entries capped MGDA with C = 1/k.

    Args:
        spectrum: non-increasing weights, the first for the worst objective; divided by their sum, and filled up
            with zeros. None for the linear spectrum m, m - 1, ..., 1.
    """

    name = "spectral-mgda"
    label = "Spectral MGDA"
    description = Description(
        formula="w = argmin of |J.T w| over the permutahedron of the spectrum mu",
        reference="paretograd, by Theorem 4; the risk measure: Acerbi 2002",
        paper="new; Section 'Convex risk measures'",
        when="You can say how much the worst, second worst, ... objective should count.",
    )

    def __init__(self, spectrum: Sequence[float] | Tensor | None = None) -> None:
        self.spectrum = None if spectrum is None else check_spectrum(spectrum).tolist()

    @property
    def guarantee(self) -> Guarantee:
        return _GUARANTEE

    def _solve(self, unit: UnitGramian) -> Outcome:
        chosen = np.arange(unit.m, 0, -1.0) if self.spectrum is None else np.array(self.spectrum)
        return outcome_of(spectral_min_norm_point(unit, spectrum_for(chosen / chosen.sum(), unit.m)))


class ChiSquareMGDA(GramianAggregator):
    r"""MGDA over the weights within a chi-square ball around the uniform ones.

    $$ w = \arg\min_{w \in \Delta} \|J^\top w\| \quad\text{subject to}\quad m \|w\|^2 - 1 \le \rho $$

    Args:
        radius: $\rho \ge 0$, the largest chi-square divergence; 0 is the mean, m - 1 and more is MGDA.
    """

    name = "chi-square-mgda"
    label = "Chi-square MGDA"
    description = Description(
        formula="w = argmin over the simplex of |J.T w| subject to m |w|^2 - 1 <= radius",
        reference="paretograd, by Theorem 4; the risk measure: Ben-Tal et al. 2013",
        paper="new; Section 'Convex risk measures'",
        when="The share of each objective should stay near uniform, by a distance you set.",
    )

    def __init__(self, radius: float = 0.5) -> None:
        self.radius = check_radius(radius)

    @property
    def guarantee(self) -> Guarantee:
        return _GUARANTEE

    def _solve(self, unit: UnitGramian) -> Outcome:
        return outcome_of(chi_square_min_norm_point(unit, self.radius))
