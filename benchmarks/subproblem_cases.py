"""Rules with their own class, and the same rules written for `pg.Subproblem` in up to three ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import torch
from torch import Tensor

import paretograd as pg
from paretograd import subproblem as sp

Maker = Callable[[int], pg.Aggregator]  # a rule for m objectives


@dataclass(frozen=True)
class Case:
    """One rule.

    Attributes:
        dedicated: its own class.
        family: with a part of `paretograd.subproblem`.
        torch: with s as a torch function; None where s is not smooth.
        cvxpy: with s as a cvxpy expression.
    """

    name: str
    dedicated: pg.Aggregator
    family: Maker
    torch: Maker | None
    cvxpy: Maker

    def ways(self) -> dict[str, Maker]:
        """Return the available ways, by name."""
        torch = {} if self.torch is None else {"torch": self.torch}
        return {"family": self.family, **torch, "cvxpy": self.cvxpy}


def _family(s: sp.Scalarization, r: sp.Regularizer | None = None) -> Maker:
    return lambda m: pg.Subproblem(s, r)


def _torch(s: Callable[[Tensor], Tensor]) -> Maker:
    return lambda m: pg.Subproblem(s)


def _cvxpy(build: Callable[[Any, int], Any], r: sp.Regularizer | None = None, strict: bool = True) -> Maker:
    return lambda m: pg.Subproblem(sp.Cvxpy(lambda x: build(x, m)), r, m=m, strict=strict)


def _linear(m: int) -> list[float]:
    """Return the spectrum that decreases in equal steps."""
    return [2.0 * (m - k) / (m * (m + 1)) for k in range(m)]


def _half(m: int) -> list[float]:
    """Return the spectrum of the worst half: 2/m as often as possible, then the remainder."""
    return [min(max(1.0 - 2.0 * k / m, 0.0), 2.0 / m) for k in range(m)]


def _sorted(x: Any, spectrum: Sequence[float]) -> Any:
    """Return ``sum_i mu_i (-x)_(i)``, from the sums of the j largest, each weighted by the step of mu after j."""
    steps = [a - b for a, b in zip(spectrum, [*spectrum[1:], 0.0], strict=True)]
    parts = [step * cp.sum_largest(-x, j) for j, step in enumerate(steps[:-1], 1) if step > 1e-12]
    return sum(parts, -steps[-1] * cp.sum(x))  # cvxpy 1.9 fails on all m as the largest m


def _chi_square(x: Any, m: int) -> Any:
    """Return the worst case over weights with ``m |w|^2 <= 1.5``, as a minimum over a shift of x.

    The shift is one variable more, so that s has no value of its own and cannot be checked.
    """
    shift = cp.Variable()
    return shift + math.sqrt(1.5 / m) * cp.norm(cp.pos(-x - shift))


def _entropic(x: Tensor) -> Tensor:
    return 0.1 * (torch.logsumexp(-x / 0.1, 0) - math.log(len(x)))


CASES: tuple[Case, ...] = (
    Case("MGDA", pg.MGDA(), _family(sp.WorstCase()), None, _cvxpy(lambda x, m: cp.max(-x))),
    Case(
        "Capped MGDA",
        pg.CappedMGDA(eps=0.5),
        _family(sp.CVaR(eps=0.5)),
        None,
        _cvxpy(lambda x, m: _sorted(x, _half(m))),
    ),
    Case(
        "Geometric mean",
        pg.PowerMean(0.0),
        _family(sp.MinusPowerMean(0.0)),
        _torch(lambda x: -torch.exp(torch.log(x).mean())),
        _cvxpy(lambda x, m: -cp.geo_mean(x)),
    ),
    Case(
        "DualProj",
        pg.DualProj(),
        _family(sp.NonConflicting()),
        None,
        _cvxpy(lambda x, m: -cp.sum(x) / m + cp.transforms.indicator([x >= 0])),
    ),
    Case(
        "CAGrad",
        pg.CAGrad(c=0.5),
        _family(sp.WorstCase(), sp.MeanBall(0.5)),
        None,
        _cvxpy(lambda x, m: cp.max(-x), sp.MeanBall(0.5)),
    ),
    Case(
        "Entropic MGDA",
        pg.EntropicMGDA(temperature=0.1),
        _family(sp.Entropic(0.1)),
        _torch(_entropic),
        _cvxpy(lambda x, m: 0.1 * (cp.log_sum_exp(-x / 0.1) - math.log(m))),
    ),
    Case(
        "Spectral MGDA",
        pg.SpectralMGDA(),
        lambda m: pg.Subproblem(sp.Spectral(_linear(m))),
        None,
        _cvxpy(lambda x, m: _sorted(x, _linear(m))),
    ),
    Case(
        "Chi-square MGDA",
        pg.ChiSquareMGDA(radius=0.5),
        _family(sp.ChiSquare(0.5)),
        None,
        _cvxpy(_chi_square, strict=False),
    ),
)


def jacobian(m: int, seed: int) -> Tensor:
    """Return Gaussian rows with 4 m columns, norms over one decade, and a mean squared norm of one.

    The norms differ so that every constraint matters. For a mean square of one, the temperature of
    `sp.Entropic`, which is absolute, means the same as that of `pg.EntropicMGDA`.
    """
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(m, 4 * m, generator=generator, dtype=torch.float64)
    J *= 10.0 ** (torch.rand(m, 1, generator=generator, dtype=torch.float64) - 0.5)
    return J / J.square().sum(1).mean().sqrt()
