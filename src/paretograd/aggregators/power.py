"""Rules whose weights solve ``(G w)_k = (omega_k / w_k) ** beta``: Nash-MTL, FairGrad and PIVRG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_number, as_weights
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import DYNAMIC_STEP, Guarantee
from paretograd.solution import Outcome
from paretograd.solvers.power import solve_logarithms

#: If gamma > 0, the slopes ``x = J d`` are unique and positive, and ``w_k`` is a decreasing function of ``x_k``: d and
#: w are continuous. The starred variants are continuous everywhere. At a stationary point, ``J.T u = 0`` for some u in
#: the simplex. Next to it, ``<u, x>`` vanishes, and so do the slopes of all k with u_k > 0. Relative to their weights,
#: those of objectives whose slopes do not vanish are zero. So ``|d|^2 = <w, x>`` vanishes for the starred d.
_ALIGNED = Guarantee("thm:PS-fd", non_conflicting=True, in_cone=True, continuous_inside=True, note=DYNAMIC_STEP)


class NashMTL(GramianAggregator):
    r"""Nash bargaining: the direction that maximises the product of the decreases, among those of its length.

    $$ G w = 1 / w, \qquad d = J^\top w $$

    The solution has $\|d\| = \sqrt m$. The default clips it to norm one, as the original code does.

    Args:
        max_norm: largest norm of the direction; None for the unclipped solution.
    """

    name = "nash-mtl"
    label = "Nash-MTL"
    description = Description(
        formula="G w = 1 / w,  d = J.T w clipped to max_norm",
        reference="Navon et al. 2022, arXiv:2202.01017",
        paper="appendix Nash-MTL; Table 1 (p -> 0)",
        when="Losses on different scales: rescaling a loss does not change the direction. Prefer the starred one.",
    )

    def __init__(self, max_norm: float | None = 1.0) -> None:
        if max_norm is not None and not as_number(max_norm, "max_norm") > 0.0:
            raise ParameterError(f"max_norm={max_norm:g}: the largest norm must be above 0, or None for no limit")
        self.max_norm = max_norm

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1 with Gamma = |d|/|w|_1 >= gamma and c = 1: d is non-conflicting, but has constant length.

        Scaling g_k by a factor divides w_k by it and does not change d.
        """
        return replace(_ALIGNED, degree=0.0, scale_invariant=True)

    def _starred_guarantee(self) -> Guarantee:
        return replace(super()._starred_guarantee(), continuous=True)

    def _solve(self, unit: UnitGramian) -> Outcome:
        logs, outcome = solve_logarithms(unit, 1.0)
        if logs is None:
            return outcome
        scale = 1.0 if self.max_norm is None else min(1.0, self.max_norm / math.sqrt(unit.m))
        return outcome._replace(weights=np.exp(logs) * scale)


class FairGrad(GramianAggregator):
    r"""Alpha-fair allocation of the decreases.

    $$ G w = w^{-1/\alpha}, \qquad d = J^\top w $$

    alpha = 0 is the sum of the gradients, 1 is Nash-MTL, and 2 the harmonic mean. Larger values approach MGDA.

    Args:
        alpha: the fairness, finite and at least 0.
    """

    name = "fairgrad"
    label = "FairGrad"
    description = Description(
        formula="G w = w^(-1/alpha),  d = J.T w",
        reference="Ban and Ji 2024, arXiv:2402.15638",
        paper="appendix fairgrad; Table 1 (alpha = 2)",
        when="You want to set how much the worst-off objective counts, by alpha.",
    )

    def __init__(self, alpha: float = 2.0) -> None:
        self.alpha = as_number(alpha, "alpha")
        if not 0.0 <= self.alpha < math.inf:
            raise ParameterError(f"alpha={alpha:g}: fairness must be finite and >= 0 (for infinity use MGDA)")

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1: d is non-conflicting for alpha > 0, but its length does not vanish at stationarity."""
        if self.alpha == 0.0:
            return Guarantee("thm:PS-fd", in_cone=True, beyond_hull=True, alignment=1.0, continuous=True)
        degree = (1.0 - self.alpha) / (1.0 + self.alpha)
        return replace(_ALIGNED, degree=degree, scale_invariant=self.alpha == 1.0)

    def _starred_guarantee(self) -> Guarantee:
        return replace(super()._starred_guarantee(), continuous=True)

    def _solve(self, unit: UnitGramian) -> Outcome:
        if self.alpha == 0.0:
            return Outcome(np.ones(unit.m))
        logs, outcome = solve_logarithms(unit, 1.0 / self.alpha)
        return outcome if logs is None else outcome._replace(weights=np.exp(logs))


class PIVRG(GramianAggregator):
    r"""Performance-informed variance reduction: FairGrad with alpha = 2 and larger weights for objectives that lag.

    $$ G w = (\omega / w)^{1/2}, \qquad d = J^\top w $$

    A score says by how many percent an objective lags behind its single-task baseline; higher is worse. Then
    $\omega = m\,\mathrm{softmax}(\text{scores} / T)$. The temperature T is at least ``min_temperature``, and large
    enough that no omega exceeds another by more than the factor ``bound``. `update` sets new scores, for instance after
    each evaluation. Without scores omega is 1.

    Args:
        scores: one score per objective, or None.
        bound: largest ratio between two omegas.
        min_temperature: lower limit of the temperature, in the unit of the scores.
    """

    name = "pivrg"
    label = "PIVRG"
    description = Description(
        formula="G w = (omega / w)^(1/2),  d = J.T w,  omega = m softmax(scores / T)",
        reference="Qin, Wang and Yan 2025, CVPR ('Revisiting Fairness in Multitask Learning')",
        paper="appendix PIVRG",
        when="You evaluate each objective now and then, and those that lag should catch up.",
    )

    def __init__(
        self,
        scores: Sequence[float] | Tensor | None = None,
        bound: float = 2.0,
        min_temperature: float = 10.0,
    ) -> None:
        if not as_number(bound, "bound") > 1.0:
            raise ParameterError(f"bound={bound:g}: the largest ratio between two omegas must be above 1")
        if not as_number(min_temperature, "min_temperature") > 0.0:
            raise ParameterError(f"min_temperature={min_temperature:g}: the temperature must be above 0")
        self.bound, self.min_temperature = bound, min_temperature
        self.omega: Array | None = None
        self.scores: list[float] | None = None
        if scores is not None:
            self.update(scores)

    def update(self, scores: Sequence[float] | Tensor) -> None:
        """Set omega from new scores, one per objective; a higher score means a worse performance."""
        values = np.asarray(scores.detach().cpu() if isinstance(scores, Tensor) else scores, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise ParameterError(f"scores must be a vector of finite numbers, one per objective; got {values.tolist()}")
        spread = float(values.max() - values.min())
        temperature = max(spread / math.log(self.bound), self.min_temperature)
        raised = np.exp((values - values.max()) / temperature)
        self.omega, self.scores = len(values) * raised / raised.sum(), values.tolist()

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of FairGrad with alpha = 2."""
        return replace(_ALIGNED, degree=-1.0 / 3.0, equivariant=self.omega is None)

    def _starred_guarantee(self) -> Guarantee:
        return replace(super()._starred_guarantee(), continuous=True)

    def _solve(self, unit: UnitGramian) -> Outcome:
        omega = None if self.omega is None else as_weights(self.omega, "scores", unit.m)
        logs, outcome = solve_logarithms(unit, 0.5, omega)
        return outcome if logs is None else outcome._replace(weights=np.exp(logs))

    def state_dict(self) -> dict[str, Any]:
        return {"omega": None if self.omega is None else self.omega.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        omega = state["omega"]
        self.omega = None if omega is None else as_weights(omega, "omega")
        # These scores give this omega, because their temperature is min_temperature.
        self.scores = None if self.omega is None else (self.min_temperature * np.log(self.omega)).tolist()
