"""Scalarizations with a preference and an ideal point: Tchebycheff, smooth Tchebycheff, PBI and COSMOS."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Description
from paretograd.checks import as_number, as_rate, as_weights
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Scalarization, gradient_of_f
from paretograd.scalarizations.sums import entries

Numbers = Sequence[float] | Tensor | Array


class _Preference(Scalarization):
    """A scalarization with a weight and an ideal value for each loss."""

    def __init__(self, weights: Numbers | None = None, ideal: float | Numbers = 0.0) -> None:
        super().__init__()
        self._given_weights = None if weights is None else as_weights(weights, "weights").tolist()
        self._given_ideal = as_ideal(ideal)
        lengths = {len(given) for given in (self._given_weights, self._given_ideal) if isinstance(given, list)}
        if len(lengths) > 1:
            raise ParameterError("weights and ideal have different lengths; give one number for each loss")

    @property
    def _symmetric(self) -> bool:
        return self._given_weights is None and not isinstance(self._given_ideal, list)

    @property
    def _degree(self) -> float | None:
        """The degree of a rule that follows the distances from the ideal point in proportion."""
        return 1.0 if self._given_ideal == 0.0 else None

    def _preference(self, losses: Tensor) -> Tensor:
        return _or_uniform(self._given_weights, losses)

    def _excess(self, losses: Tensor) -> Tensor:
        """Return how far the losses lie above the ideal point."""
        ideal = self._given_ideal
        return losses - (entries(ideal, losses) if isinstance(ideal, list) else ideal)


class Tchebycheff(_Preference):
    r"""The largest weighted distance of a loss from its ideal value.

    $$ F(f) = \max_k \lambda_k (f_k - z_k) $$

    Its weights are $\lambda_k$ for the objective of the maximum and zero for all others. If several objectives attain
    it, they share the weight. Every Pareto optimal point is a minimiser for some $\lambda$, but a step sees only one
    gradient. `STCH` is a smooth form.

    Args:
        weights: the preference $\lambda$, numbers of at least 0; None for 1/m.
        ideal: the ideal point z, a number or one for each loss: values that no loss goes below.
    """

    name = "tchebycheff"
    label = "Tchebycheff"
    description = Description(
        formula="F(f) = max_k lambda_k (f_k - z_k)",
        reference="Bowman 1976; Steuer and Choo 1983",
        paper="-",
        when="A given trade-off, also on a front that is not convex. Follows one gradient at a time.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """Condition (A) where F has a gradient. F is not smooth, so no theorem follows."""
        note = "F has no gradient where two objectives attain the maximum, so no theorem covers it."
        return gradient_of_f(None, note, in_cone=True, degree=self._degree, equivariant=self._symmetric)

    def forward(self, losses: Tensor) -> Tensor:
        return (self._preference(losses) * self._excess(losses)).amax()


class STCH(_Preference):
    r"""Smooth Tchebycheff scalarization: a smooth maximum of the weighted distances from the ideal point.

    $$ F(f) = \mu \log \sum_k \exp \frac{\lambda_k (f_k - z_k)}{\mu}, \qquad
       \phi_k = \lambda_k\, \mathrm{softmax}_k \frac{\lambda (f - z)}{\mu} $$

    It exceeds the maximum by at most $\mu \log m$. The authors' code for multi-task learning applies it to the
    logarithms of losses that are divided by a nadir point, which it measures in a warm-up; the formula above is the
    paper's.

    Args:
        mu: the smoothing, above 0, in units of the weighted losses. Small values approach `Tchebycheff`.
        weights: the preference $\lambda$, numbers of at least 0; None for 1/m.
        ideal: the ideal point z, a number or one for each loss.
    """

    name = "stch"
    label = "STCH"
    description = Description(
        formula="F(f) = mu log sum_k exp(lambda_k (f_k - z_k) / mu)",
        reference="Lin et al. 2024, arXiv:2402.19078",
        paper="-",
        when="A given trade-off, also on a front that is not convex, with smooth steps.",
    )

    def __init__(self, mu: float = 1.0, weights: Numbers | None = None, ideal: float | Numbers = 0.0) -> None:
        super().__init__(weights, ideal)
        self._given_mu = as_number(mu, "mu")
        if not 0.0 < self._given_mu < math.inf:
            raise ParameterError(f"mu={mu!r}: a finite number above 0 is needed")

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1: F is smooth if the losses are smooth and have bounded gradients."""
        note = "F >= 0 if no loss is below the ideal point. The smoothness constant grows as 1/mu."
        return gradient_of_f("thm:PS-fd", note, in_cone=True, degree=None, equivariant=self._symmetric, continuous=True)

    def forward(self, losses: Tensor) -> Tensor:
        return self._given_mu * torch.logsumexp(self._preference(losses) * self._excess(losses) / self._given_mu, 0)


class PBI(_Preference):
    r"""Penalty-based boundary intersection: progress along a ray from the ideal point, and distance from the ray.

    $$ F(f) = d_1 + \theta d_2, \qquad d_1 = \frac{|\langle f - z, \lambda\rangle|}{\|\lambda\|}, \qquad
       d_2 = \Big\| f - z - d_1 \frac{\lambda}{\|\lambda\|} \Big\| $$

    Weights may be negative: a loss that is too small for the ray is increased. So minimisers need not be Pareto
    optimal.

    Args:
        weights: the direction $\lambda$ of the ray, numbers of at least 0; None for 1/m.
        ideal: the ideal point z, a number or one for each loss.
        theta: the penalty, at least 0.
    """

    name = "pbi"
    label = "PBI"
    description = Description(
        formula="F(f) = d1 + theta d2, along and away from the ray z + t lambda",
        reference="Zhang and Li 2007, MOEA/D, IEEE Trans. Evol. Comput. 11(6)",
        paper="-",
        when="Losses in a given proportion, even if all could be smaller.",
    )

    def __init__(self, weights: Numbers | None = None, ideal: float | Numbers = 0.0, theta: float = 5.0) -> None:
        super().__init__(weights, ideal)
        self._given_theta = as_rate(theta, "theta")

    @property
    def guarantee(self) -> Guarantee:
        """Condition (A) where F has a gradient. F is not smooth, and weights may be negative."""
        note = "F has no gradient on the ray, and a small |d| does not imply that gamma is small."
        return gradient_of_f(None, note, degree=self._degree, equivariant=self._symmetric)

    def forward(self, losses: Tensor) -> Tensor:
        excess, ray = self._excess(losses), _unit(self._preference(losses))
        along = (excess * ray).sum().abs()
        away: Tensor = torch.linalg.vector_norm(excess - along * ray)
        return torch.add(along, away, alpha=self._given_theta)


class COSMOS(Scalarization):
    r"""The objective of COSMOS: a weighted sum, and a reward for losses in the proportion of the preference.

    $$ F(f) = \langle r, f\rangle - \lambda\, \frac{\langle r, f\rangle}{\|r\|\, \|f\|} $$

    COSMOS draws a new preference for every step and gives it to the model as an input, which is the caller's part: pass
    ``COSMOS(weights=r)`` for each step. Weights may be negative.

    Args:
        weights: the preference r, numbers of at least 0; None for 1/m.
        penalty: the factor $\lambda$, at least 0. The paper chooses it for each dataset, between 0.01 and 8.
    """

    name = "cosmos"
    label = "COSMOS"
    description = Description(
        formula="F(f) = r.f - lambda cos(r, f)",
        reference="Ruchte and Grabocka 2021, arXiv:2103.13392",
        paper="-",
        when="One model for all preferences, which it takes as an input.",
    )
    domain = "not all 0"

    def __init__(self, weights: Numbers | None = None, penalty: float = 1.0) -> None:
        super().__init__()
        self._given_weights = None if weights is None else as_weights(weights, "weights").tolist()
        self._given_penalty = as_rate(penalty, "penalty")

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1 for F, but weights may be negative."""
        note = (
            "F + lambda >= 0 for losses >= 0, and smooth where some loss exceeds a positive number. Weights may be "
            "negative: a small |d| does not imply that gamma is small."
        )
        symmetric = self._given_weights is None
        return gradient_of_f("thm:PS-fd", note, degree=None, equivariant=symmetric, continuous=True)

    def _inside(self, values: Tensor) -> Tensor:
        return (values != 0.0).any().expand(len(values))

    def forward(self, losses: Tensor) -> Tensor:
        preference = _or_uniform(self._given_weights, losses)
        cosine = (_unit(preference) * _unit(losses)).sum()
        return (preference * losses).sum() - self._given_penalty * cosine


def _or_uniform(weights: list[float] | None, losses: Tensor) -> Tensor:
    return torch.full_like(losses, 1.0 / len(losses)) if weights is None else entries(weights, losses)


def _unit(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector)
    return vector / length


def as_ideal(ideal: float | Numbers, what: str = "ideal") -> float | list[float]:
    """Validate an ideal point: a finite number, or one for each loss."""
    given = ideal.tolist() if isinstance(ideal, (Tensor, np.ndarray)) else ideal
    several = list(given) if isinstance(given, (list, tuple)) else None
    found = [as_number(number, what) for number in ([given] if several is None else several)]
    if not found or not all(map(math.isfinite, found)):
        raise ParameterError(f"{what}={given!r}: a finite number is needed, or one for each loss")
    return found[0] if several is None else found
