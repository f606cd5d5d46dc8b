"""Scalarizations without a preference: sums, sums of logarithms, geometric means and p-norms of the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.aggregators.base import Description
from paretograd.checks import as_number, as_weights
from paretograd.errors import ParameterError
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Scalarization, gradient_of_f


class WeightedSum(Scalarization):
    r"""The weighted sum of the losses, with fixed weights.

    $$ F(f) = \sum_k w_k f_k, \qquad \phi_k = w_k $$

    Args:
        weights: one number of at least 0 for each loss; None for ones, which gives the plain sum.
    """

    name = "weighted-sum"
    label = "Weighted sum"
    description = Description(
        formula="F(f) = sum_k w_k f_k",
        reference="linear scalarisation; folklore",
        paper="eq. ls_update",
        when="The baseline. Finds only the convex parts of a Pareto front.",
    )

    def __init__(self, weights: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        self._given_weights = None if weights is None else as_weights(weights, "weights").tolist()

    @property
    def guarantee(self) -> Guarantee:
        """Corollary 1 if the weights sum to one or more, and else Theorem 1."""
        w = self._given_weights
        hull = w is not None and abs(math.fsum(w) - 1.0) <= 1e-12
        beyond = w is None or hull or math.fsum(w) >= 1.0
        theorem = "thm:PS-cvx" if beyond else "thm:PS-fd"
        return gradient_of_f(
            theorem, "", in_cone=True, in_hull=hull, beyond_hull=beyond, equivariant=w is None, continuous=True
        )

    def forward(self, losses: Tensor) -> Tensor:
        return losses.sum() if self._given_weights is None else (entries(self._given_weights, losses) * losses).sum()


class GLS(Scalarization):
    r"""The geometric loss strategy: the geometric mean of the losses, which must be above 0.

    $$ F(f) = \Big(\prod_k f_k\Big)^{1/m}, \qquad \phi_k = \frac{F(f)}{m f_k} $$

    The direction does not depend on the scales of the losses, up to its length. Its weights sum to at least one,
    because no geometric mean is below the harmonic mean. So Corollary 1 covers it.
    """

    name = "gls"
    label = "GLS"
    description = Description(
        formula="F(f) = (prod_k f_k)^(1/m)",
        reference="Chennupati et al. 2019, arXiv:1904.08492",
        paper="-",
        when="Losses on different scales, all of which should decrease by the same factor.",
    )
    domain = "above 0"

    @property
    def guarantee(self) -> Guarantee:
        """Corollary 1, as long as the losses stay away from 0."""
        note = "F is smooth where all losses exceed a positive number."
        return gradient_of_f("thm:PS-cvx", note, beyond_hull=True, scale_invariant=True, continuous=True)

    def _inside(self, values: Tensor) -> Tensor:
        return values > 0.0

    def forward(self, losses: Tensor) -> Tensor:
        return losses.log().mean().exp()


class LogSum(Scalarization):
    r"""The sum of the logarithms of the losses, which must be above 0.

    $$ F(f) = \sum_k \log f_k, \qquad \phi_k = \frac1{f_k} $$

    Its direction is that of `GLS`, with another length: it does not change if a loss is multiplied by a number.
    """

    name = "log-sum"
    label = "Log sum"
    description = Description(
        formula="F(f) = sum_k log f_k",
        reference="Navon et al. 2022, arXiv:2202.01017 (the scale-invariant baseline)",
        paper="-",
        when="As GLS. Steps grow as losses approach 0.",
    )
    domain = "above 0"

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1, as long as the losses stay away from 0."""
        return gradient_of_f(
            "thm:PS-fd",
            "While all losses exceed e > 0, F - m log e >= 0 is smooth. Smaller losses need smaller steps.",
            in_cone=True,
            degree=0.0,
            scale_invariant=True,
            continuous=True,
        )

    def _inside(self, values: Tensor) -> Tensor:
        return values > 0.0

    def forward(self, losses: Tensor) -> Tensor:
        return losses.log().sum()


class PNorm(Scalarization):
    r"""The p-norm of the losses, which must be at least 0: from the sum (p = 1) to the largest loss (p = inf).

    $$ F(f) = \Big(\sum_k f_k^p\Big)^{1/p}, \qquad \phi_k = \Big(\frac{f_k}{F(f)}\Big)^{p-1} $$

    Its weights sum to at least one, so Corollary 1 covers it. If all losses are 0, F has no gradient; the weights are
    then those of equal losses, a subgradient. For p = inf, the largest losses share the weight.

    Args:
        p: a number of at least 1, or infinity.
    """

    name = "p-norm"
    label = "p-norm"
    description = Description(
        formula="F(f) = (sum_k f_k^p)^(1/p)",
        reference="global criterion; Miettinen 1999, Nonlinear Multiobjective Optimization",
        paper="-",
        when="A dial from the sum to the worst loss. The scales of the losses matter.",
    )
    domain = "at least 0"

    def __init__(self, p: float = 2.0) -> None:
        super().__init__()
        self._given_p = as_number(p, "p")
        if self._given_p < 1.0:
            raise ParameterError(f"p={p!r}: a number of at least 1 is needed, or float('inf')")

    @property
    def guarantee(self) -> Guarantee:
        """Corollary 1 where F is smooth."""
        if math.isinf(self._given_p):
            return gradient_of_f(None, "F has no gradient where the two largest losses are equal.", beyond_hull=True)
        note = "F is smooth where some loss exceeds a positive number."
        return gradient_of_f("thm:PS-cvx", note, beyond_hull=True, continuous=self._given_p == 1.0)

    def _inside(self, values: Tensor) -> Tensor:
        return values >= 0.0

    def forward(self, losses: Tensor) -> Tensor:
        if self._given_p == 1.0:
            return losses.sum()  # a loss of 0 counts, too
        largest = losses.detach().abs().amax()
        zero = largest == 0.0
        scale = torch.where(zero, 1.0, largest)  # F is homogeneous: no power overflows
        norm = scale * torch.linalg.vector_norm(losses / scale + zero.to(losses), self._given_p)
        return torch.where(zero, norm - norm.detach(), norm)  # the value is 0, with the slopes of equal losses


def entries(numbers: Sequence[float], losses: Tensor) -> Tensor:
    """Return a number for each loss, in the dtype and on the device of the losses."""
    if len(numbers) != len(losses):
        raise ParameterError(f"there are {len(losses)} losses, but {len(numbers)} numbers; give one for each loss")
    return torch.tensor(numbers, dtype=losses.dtype, device=losses.device)
