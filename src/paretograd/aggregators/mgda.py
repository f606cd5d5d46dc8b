"""MGDA and its robust relatives: the point of least norm, with the weights capped or clipped."""

from __future__ import annotations

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_number
from paretograd.errors import ParameterError
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import MEAN, Guarantee
from paretograd.solution import Outcome, Status, outcome_of
from paretograd.solvers.min_norm import min_norm_point
from paretograd.solvers.spectral import capped_min_norm_point
from paretograd.subproblem.dual_sets import cap_for, check_cap


class MGDA(GramianAggregator):
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

    @property
    def guarantee(self) -> Guarantee:
        """Variational inequality of the least-norm point: <d, g_k> >= |d|^2 for every k."""
        return Guarantee("thm:cvg_nonconflict", non_conflicting=True, in_hull=True, alignment=1.0)

    def _solve(self, unit: UnitGramian) -> Outcome:
        return outcome_of(min_norm_point(unit))


class CappedMGDA(GramianAggregator):
    r"""Capped MGDA, the paper's robust rule: MGDA with every weight at most C.

    $$ d = J^\top w, \qquad w = \arg\min_{w \in \Delta,\; w \le C} \|J^\top w\| $$

    It is the direction of the conditional value-at-risk of the decreases, with $C = 1/(\epsilon m)$: no
    single gradient, an attacker's included, can take more than the share C of the step. C >= 1 is MGDA,
    C = 1/m is the mean.

    Args:
        cap: the largest weight C; at least 1/m.
        eps: the tail fraction of the value-at-risk, in (0, 1], instead of the cap.
    """

    name = "capped-mgda"
    label = "Capped MGDA"
    description = Description(
        formula="d = J.T w,  w = argmin of |J.T w| over the simplex with every w_k <= C",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="Section 'Convex risk measures'; appendix cap_mgda_derivation; Theorem 4",
        when="Some gradients cannot be trusted (federated learning, noisy tasks). Smaller cap, closer to the mean.",
    )

    def __init__(self, cap: float | None = None, eps: float | None = None) -> None:
        self.cap, self.eps = check_cap(cap, eps)

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 4 gives c = 1/2; the variational inequality over the capped simplex, which holds the mean, c = 1."""
        if self.cap is not None and self.cap >= 1.0:
            return MGDA().guarantee
        return Guarantee(
            "thm:PSreg",
            in_hull=True,
            alignment=1.0,
            F=MEAN,
            note="Not non-conflicting in general: objectives at the cap may go up.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        cap = cap_for(self.cap, self.eps, unit.m)
        return outcome_of(min_norm_point(unit) if cap >= 1.0 else capped_min_norm_point(unit, cap))


class ClippedMGDA(GramianAggregator):
    r"""MGDA with its weights cut off at C afterwards: the naive baseline that capped MGDA is compared with.

    $$ w_k = \min(w^{\mathrm{MGDA}}_k, C), \qquad\text{then, if renormalised,}\quad w \leftarrow w / \|w\|_1 $$

    Args:
        cap: the largest weight C, above 0.
        renormalize: whether to divide by the sum after cutting; weights may then exceed the cap again.
    """

    name = "clipped-mgda"
    label = "MGDA + clipping"
    description = Description(
        formula="w_k = min(w_k of MGDA, C), then w <- w / |w|_1 if renormalised",
        reference="Hu, Ho and Yu 2026 (the paper), figure cap_vs_clip",
        paper="appendix, figure cap_vs_clip",
        when="As a baseline for capped MGDA only: clipping after solving keeps the attacker's share of the direction.",
    )

    def __init__(self, cap: float = 0.2, renormalize: bool = True) -> None:
        if not as_number(cap, "cap") > 0.0:
            raise ParameterError(f"cap={cap:g}: the largest weight must be above 0")
        self.cap, self.renormalize = cap, renormalize

    @property
    def guarantee(self) -> Guarantee:
        """None: cutting the weights loses the variational inequality."""
        return Guarantee(
            None,
            in_cone=True,
            in_hull=self.renormalize,
            equivariant=False,
            note="A baseline without a guarantee. Where MGDA's weights are not unique, the order decides.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        found = outcome_of(min_norm_point(unit))
        clipped = np.minimum(found.weights, self.cap)
        status = Status.OPTIMAL if found.status is Status.STATIONARY else found.status
        return found._replace(weights=clipped / clipped.sum() if self.renormalize else clipped, status=status)
