"""Scalarizations whose weights are learned: parameters that the user's optimizer holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Description
from paretograd.checks import whole_number
from paretograd.errors import ParameterError
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Scalarization, gradient_of_f

_NOTE = (
    "F changes with s from step to step. If all losses exceed a positive number, F is bounded below, and Theorem 1 "
    "covers plain gradient steps of the model and of s together, with one step size."
)


class _Learned(Scalarization):
    """A scalarization with a learned number s for each loss, in the attribute ``s``."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self._given_m = whole_number(type(self).__name__, "m", m)
        self.s = nn.Parameter(torch.zeros(self._given_m, device=torch.get_default_device()))

    @property
    def guarantee(self) -> Guarantee:
        """Condition (A) for F at the present s."""
        return gradient_of_f(None, _NOTE, in_cone=True, continuous=True)

    def _check_size(self, m: int) -> None:
        if m != self._given_m:
            raise ParameterError(f"{self!r} is for {self._given_m} losses; got {m}")


class UncertaintyWeighting(_Learned):
    r"""Uncertainty weighting: each loss is divided by a learned variance, of which $s$ is the logarithm.

    $$ F(f) = \frac12 \sum_k \big(e^{-s_k} f_k + s_k\big), \qquad \phi_k = \tfrac12 e^{-s_k} $$

    Give ``rule.parameters()`` to the optimizer, and call ``optimizer.zero_grad()`` before every step. At the best s,
    $s_k = \log f_k$, the direction is that of `GLS` and `LogSum`.

    This is the paper's form for regression. For a classification loss it has $e^{-s_k} f_k + \frac12 s_k$: give twice
    the cross entropy to get that. Most implementations use the form above for all losses.

    Args:
        m: the number of losses.
    """

    name = "uncertainty"
    label = "UW"
    description = Description(
        formula="F(f) = sum_k (exp(-s_k) f_k + s_k) / 2, s learned",
        reference="Kendall et al. 2018, arXiv:1705.07115",
        paper="-",
        when="Losses on different scales; slower to adapt than GLS, and less noisy.",
    )

    def forward(self, losses: Tensor) -> Tensor:
        return 0.5 * ((-self.s).exp() * losses + self.s).sum()


class IMTLL(_Learned):
    r"""IMTL-L: losses scaled by learned factors, which make all of them equal to one.

    $$ F(f) = \sum_k \big(e^{s_k} f_k - s_k\big), \qquad \phi_k = e^{s_k} $$

    Give ``rule.parameters()`` to the optimizer, and call ``optimizer.zero_grad()`` before every step. At the best s,
    $s_k = -\log f_k$, the direction is that of `LogSum`. IMTL combines it with `IMTLG`.

    Args:
        m: the number of losses.
    """

    name = "imtl-l"
    label = "IMTL-L"
    description = Description(
        formula="F(f) = sum_k (exp(s_k) f_k - s_k), s learned",
        reference="Liu et al. 2021, Towards Impartial Multi-task Learning, ICLR",
        paper="-",
        when="As uncertainty weighting, for losses of any kind.",
    )

    def forward(self, losses: Tensor) -> Tensor:
        return (self.s.exp() * losses - self.s).sum()
