"""The rules that are named pairs (s, r) of the paper's subproblem (eq. sd-conic, Table 1).

Each minimises ``s(J d) + r(|d|)``. Its s and r are attributes, and ``Subproblem(rule.s, rule.r)`` is the same rule.
Its guarantee follows from s and r alone. Only the solver is specific to the rule: it does not search for beta, check
hypotheses or compute a duality gap. docs/generality.md compares the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_weights
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian, check_finite, plain_size
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, outcome_of
from paretograd.solvers.cagrad import conflict_averse_point
from paretograd.subproblem.families import Linear, MinusPowerMean, NonConflicting
from paretograd.subproblem.guarantee import guarantee_of_family
from paretograd.subproblem.regularizers import HalfSquare, MeanBall, Regularizer
from paretograd.subproblem.risk import ChiSquare, CVaR, Entropic, Spectral, WorstCase
from paretograd.subproblem.scalarization import Family


class NamedRule(GramianAggregator):
    """A rule defined by its s and r."""

    #: Scalarization of the decreases ``x = J d``.
    s: Family
    #: Regularizer of the length of d.
    r: Regularizer = HalfSquare()

    @property
    def guarantee(self) -> Guarantee:
        return guarantee_of_family(self.s, self.r)

    def _solve(self, unit: UnitGramian, least: bool = False) -> Outcome:
        return self.s.shortest(unit, least=least)

    def _solve_least(self, unit: UnitGramian) -> Outcome:
        return self._solve(unit, least=True)


class Mean(NamedRule):
    r"""The average gradient, or a fixed weighting (eq. ls_update).

    $$ d = \frac1m \sum_k g_k \qquad\text{or}\qquad d = \sum_k \omega_k g_k $$

    Args:
        weights: non-negative weights, one per objective; None for 1/m each.
    """

    name = "mean"
    label = "Mean"
    description = Description(
        formula="d = (1/m) sum_k g_k",
        reference="linear scalarisation; folklore",
        paper="eq. ls_update; Table 1, LS (Uniform)",
        when="The baseline. Cheapest; may increase an objective whose gradient is small or outvoted.",
    )

    s: Linear

    def __init__(self, weights: Sequence[float] | Tensor | None = None) -> None:
        self.s = Linear(weights)

    def weights(self, gramian: Tensor) -> Tensor:
        m = plain_size(gramian)
        if m == 0 or self.s.m is not None:
            return super().weights(gramian)
        uniform = np.empty(m, dtype=np.float32)  # the fastest path: nothing depends on the entries
        uniform.fill(1.0 / m)
        return torch.from_numpy(uniform)

    def _answer(self, G: Array, eps: float) -> Outcome:
        check_finite(G)
        return Outcome(self.s.weights_for(len(G)))

    def __repr__(self) -> str:
        return f"Mean({'' if self.s.weights is None else f'weights={self.s.weights.tolist()}'})"


class MGDA(NamedRule):
    r"""Multiple gradient descent: the shortest vector in the convex hull of the gradients.

    $$ d = J^\top w, \qquad w = \arg\min_{w \in \Delta} \|J^\top w\| $$

    Its length is the paper's measure of stationarity, $\gamma$ (eq. PS-quant).
    """

    name = "mgda"
    label = "MGDA"
    description = Description(
        formula="d = J.T w,  w = argmin over the simplex of |J.T w|",
        reference="Desideri 2012; Fliege and Svaiter 2000; Mukai 1980",
        paper="Table 1, MGDA; Theorem 2",
        when="Every objective must go down. Careful: follows the smallest gradient, and stalls at weak points.",
    )

    s = WorstCase()


class CappedMGDA(NamedRule):
    r"""Capped MGDA, the paper's robust rule: MGDA with every weight at most C.

    $$ d = J^\top w, \qquad w = \arg\min_{w \in \Delta,\; w \le C} \|J^\top w\| $$

    It is the direction of the conditional value-at-risk of the decreases, with $C = 1/(\epsilon m)$. No single
    gradient, not even an attacker's, has more than the share C of the step. C >= 1 is MGDA, and C = 1/m is the mean.

    Args:
        cap: the largest weight C, at least 1/m. Give either cap or eps.
        eps: the tail fraction of the value-at-risk, in (0, 1].
    """

    name = "capped-mgda"
    label = "Capped MGDA"
    description = Description(
        formula="d = J.T w,  w = argmin of |J.T w| over the simplex with every w_k <= C",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="Section 'Convex risk measures'; appendix cap_mgda_derivation; Theorem 4",
        when="Some gradients cannot be trusted (federated learning, noisy tasks). Smaller cap, closer to the mean.",
    )

    s: CVaR

    def __init__(self, cap: float | None = None, eps: float | None = None) -> None:
        self.s = CVaR(cap, eps)
        self.cap, self.eps = self.s.cap, self.s.eps


class EntropicMGDA(NamedRule):
    r"""MGDA with an entropy term that keeps the weights near the uniform weights.

    $$ w = \arg\min_{w \in \Delta} \tfrac12 \|J^\top w\|^2 + \tau\, \mathrm{KL}(w \,\|\, \tfrac1m),
       \qquad \tau = t \cdot \tfrac1m \textstyle\sum_k \|g_k\|^2 $$

    It is the direction of the entropic risk $s(x) = \tau \log \frac1m \sum_k e^{-x_k / \tau}$. Every weight is
    positive and a smooth function of the gradients. A temperature near 0 gives MGDA, a large one the mean. It is
    relative to the squared norms of the gradients, so rescaling all losses by one factor keeps the weights.

    Args:
        temperature: the number t, above 0.
    """

    name = "entropic-mgda"
    label = "Entropic MGDA"
    description = Description(
        formula="w = argmin over the simplex of |J.T w|^2 / 2 + t mean(|g|^2) KL(w | uniform)",
        reference="paretograd, by Theorem 4; the risk measure: Foellmer and Schied 2002",
        paper="new; Section 'Convex risk measures'",
        when="MGDA is too jumpy: weights that change smoothly and never vanish. One dial from MGDA to the mean.",
    )

    s: Entropic

    def __init__(self, temperature: float = 0.1) -> None:
        self.s = Entropic(temperature, relative=True)
        self.temperature = self.s.temperature


class SpectralMGDA(NamedRule):
    r"""MGDA on the sorted losses, weighted by a spectrum: the worst objective counts most.

    $$ d = \arg\min_d\; \sum_i \mu_i\, (-Jd)_{(i)} + \tfrac12 \|d\|^2, \qquad \mu_1 \ge \mu_2 \ge \dots \ge 0,
       \quad \textstyle\sum_i \mu_i = 1 $$

    with the entries of $-Jd$ in decreasing order. The weights minimise $\|J^\top w\|$ over the permutahedron of
    $\mu$. The spectrum (1, 0, ...) gives MGDA, a constant one the mean, and k equal entries capped MGDA with C = 1/k.

    Args:
        spectrum: non-increasing weights, the first for the worst objective. They are divided by their sum and padded
            with zeros to m entries. None is the linear spectrum m, m - 1, ..., 1.
    """

    name = "spectral-mgda"
    label = "Spectral MGDA"
    description = Description(
        formula="w = argmin of |J.T w| over the permutahedron of the spectrum mu",
        reference="paretograd, by Theorem 4; the risk measure: Acerbi 2002",
        paper="new; Section 'Convex risk measures'",
        when="You can say how much the worst, second worst, ... objective should count.",
    )

    s: Spectral

    def __init__(self, spectrum: Sequence[float] | Tensor | None = None) -> None:
        self.s = Spectral(spectrum)
        self.spectrum = None if self.s.spectrum is None else self.s.spectrum.tolist()


class ChiSquareMGDA(NamedRule):
    r"""MGDA over the weights in a chi-square ball around the uniform weights.

    $$ w = \arg\min_{w \in \Delta} \|J^\top w\| \quad\text{subject to}\quad m \|w\|^2 - 1 \le \rho $$

    Args:
        radius: the largest chi-square divergence, $\rho \ge 0$. 0 is the mean, and m - 1 or more is MGDA.
    """

    name = "chi-square-mgda"
    label = "Chi-square MGDA"
    description = Description(
        formula="w = argmin over the simplex of |J.T w| subject to m |w|^2 - 1 <= radius",
        reference="paretograd, by Theorem 4; the risk measure: Ben-Tal et al. 2013",
        paper="new; Section 'Convex risk measures'",
        when="The share of each objective should stay near uniform, by a distance you set.",
    )

    s: ChiSquare

    def __init__(self, radius: float = 0.5) -> None:
        self.s = ChiSquare(radius)
        self.radius = self.s.radius


class PowerMean(NamedRule):
    r"""The direction that maximises a power mean of the decreases (eq. pmean).

    $$ d = \arg\max_d\; M_p(J d) - \tfrac12 \|d\|^2, \qquad M_p(x) = \Big(\tfrac1m \sum_k x_k^p\Big)^{1/p} $$

    The weights are $w_k = x_k^{p-1} M_p(x)^{1-p} / m$ with $x = G w$. p = 1 is the mean, p = 0 (the geometric mean)
    Nash-MTL up to length, p = -1 FairGrad with alpha = 2 up to length, and p = -inf MGDA. For p < 1 every decrease
    must be non-negative. As p approaches 1, the limit is therefore DualProj and not the mean.

    Args:
        p: the exponent, at most 1; ``-math.inf`` is allowed.
    """

    name = "power-mean"
    label = "Power mean"
    description = Description(
        formula="w_k = x_k^(p-1) M_p(x)^(1-p) / m  with  x = G w",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="eq. pmean; Theorem 4",
        when="A dial between the mean's progress (p near 1) and MGDA's caution (p very negative).",
    )

    s: MinusPowerMean

    def __init__(self, p: float = 0.0) -> None:
        self.s = MinusPowerMean(p)
        self.p = self.s.p

    def _starred_guarantee(self) -> Guarantee:
        """Return the guarantee of FairGrad* with alpha = 1 - p, which has the same direction.

        For p near 1, it converges too slowly to a stationary point for a test.
        """
        starred = super()._starred_guarantee()
        return replace(starred, continuous_inside=True, continuous=starred.continuous or self.p <= 0.0)


class DualProj(NamedRule):
    r"""Dual-cone projection of the mean gradient.

    $$ d = \mathrm{proj}_{\{d : J d \ge 0\}}\Big(\frac1m \sum_k g_k\Big) $$

    Args:
        preference: non-negative weights of the average; None for 1/m each.
    """

    name = "dualproj"
    label = "DualProj"
    description = Description(
        formula="d = projection of (1/m) sum_k g_k onto {d : J d >= 0}",
        reference="Lopez-Paz and Ranzato 2017, arXiv:1706.08840 (GEM)",
        paper="Table 1, DualProj; Corollary 2",
        when="You would use the mean, and only want it changed where some objective would go up.",
    )

    s: NonConflicting

    def __init__(self, preference: Sequence[float] | Tensor | None = None) -> None:
        self.s = NonConflicting(None if preference is None else as_weights(preference, "preference"))
        self.preference = None if self.s.weights is None else self.s.weights.tolist()

    def _solve(self, unit: UnitGramian, least: bool = False) -> Outcome:
        if self.preference is not None:
            as_weights(self.preference, "preference", unit.m)  # for its name in the message
        return super()._solve(unit, least)


class CAGrad(NamedRule):
    r"""Conflict-averse gradient: the best worst-case decrease within a ball around the mean gradient.

    $$ d = \arg\max_d\; \min_k \langle d, g_k \rangle
       \quad\text{subject to}\quad \|d - g_0\| \le c \|g_0\|, \qquad g_0 = \tfrac1m \sum_k g_k $$

    The solution is $d = g_0 + c \|g_0\|\, g_w / \|g_w\|$ with $g_w = J^\top w$ for some w in the simplex. (The paper's
    formula drops the division by $\|g_w\|$.) At Pareto stationary points the maximiser may not be unique; d is then
    the one nearest to $g_0$.

    Args:
        c: radius of the ball in units of the mean gradient's norm. 0 is the mean. For c >= 1 no objective
            goes up.
    """

    name = "cagrad"
    label = "CAGrad"
    description = Description(
        formula="d = argmax of min_k <d, g_k> subject to |d - g0| <= c |g0|,  g0 = (1/m) sum_k g_k",
        reference="Liu et al. 2021, arXiv:2110.14048",
        paper="Table 1, CAGrad; Corollary 1",
        when="Stay close to the mean's solution while helping the worst-off objective; c sets how far.",
    )

    s = WorstCase()
    r: MeanBall

    def __init__(self, c: float = 0.5) -> None:
        self.r = MeanBall(c)
        self.c = self.r.c

    def _solve(self, unit: UnitGramian, least: bool = False) -> Outcome:
        return outcome_of(conflict_averse_point(unit, np.full(unit.m, 1.0 / unit.m), self.c, least=least))
