"""Rules that see the losses, each with an independent F in arbitrary precision, as its paper writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath as mp
import torch
from torch import Tensor

import paretograd as pg

#: Digits of the references, so that their differences are exact to float64 at all scales.
mp.mp.dps = 80

Number = Any
Function = Callable[[Sequence[Number]], Number]


class Row(NamedTuple):
    """A rule for m losses, and its F; None for a weighting without one.

    Attributes:
        make: from m to the rule.
        F: from the losses to F, at the rule's initial parameters.
        positive: losses must be above 0.
    """

    make: Callable[[int], pg.Weighting]
    F: Function | None
    positive: bool = False


def preference(m: int) -> list[float]:
    """Unequal weights, one of them larger than the others by far."""
    return [1.0 + k + 20.0 * (k == 1) for k in range(m)]


def ideal(m: int) -> list[float]:
    return [-0.25 * k for k in range(m)]


def exact(values: Sequence[float]) -> list[Number]:
    return [mp.mpf(value) for value in values]


def norm(x: Sequence[Number]) -> Number:
    return mp.sqrt(sum(value**2 for value in x))


def pbi(f: Sequence[Number], w: Sequence[Number], z: Sequence[Number], theta: float) -> Number:
    unit = [value / norm(w) for value in w]
    excess = [a - b for a, b in zip(f, z, strict=True)]
    along = abs(sum(a * b for a, b in zip(excess, unit, strict=True)))
    return along + theta * norm([a - along * b for a, b in zip(excess, unit, strict=True)])


def stch(f: Sequence[Number], w: Sequence[Number], z: Sequence[Number], mu: float) -> Number:
    scaled = [c * (a - b) / mp.mpf(mu) for a, b, c in zip(f, z, w, strict=True)]
    top = max(scaled)
    return mp.mpf(mu) * (top + mp.log(sum(mp.exp(value - top) for value in scaled)))


def cosmos(f: Sequence[Number], r: Sequence[Number], penalty: float) -> Number:
    product = sum(a * b for a, b in zip(f, r, strict=True))
    return product - penalty * product / norm(r) / norm(f)


def uniform(m: int) -> list[Number]:
    return [mp.mpf(1.0 / m)] * m


def zeros(m: int) -> list[Number]:
    return [mp.mpf(0)] * m


ROWS: dict[str, Row] = {
    "sum": Row(lambda m: pg.WeightedSum(), lambda f: sum(f)),
    "weighted sum": Row(
        lambda m: pg.WeightedSum(preference(m)),
        lambda f: sum(w * x for w, x in zip(preference(len(f)), f, strict=True)),
    ),
    "gls": Row(lambda m: pg.GLS(), lambda f: mp.fprod(f) ** (mp.mpf(1) / len(f)), positive=True),
    "log-sum": Row(lambda m: pg.LogSum(), lambda f: sum(map(mp.log, f)), positive=True),
    "1-norm": Row(lambda m: pg.PNorm(1.0), lambda f: sum(f), positive=True),
    "1.5-norm": Row(
        lambda m: pg.PNorm(1.5), lambda f: sum(x ** mp.mpf(1.5) for x in f) ** (1 / mp.mpf(1.5)), positive=True
    ),
    "2-norm": Row(lambda m: pg.PNorm(), norm, positive=True),
    "30-norm": Row(lambda m: pg.PNorm(30), lambda f: sum(x**30 for x in f) ** (1 / mp.mpf(30)), positive=True),
    "inf-norm": Row(lambda m: pg.PNorm(float("inf")), max, positive=True),
    "tchebycheff": Row(lambda m: pg.Tchebycheff(), lambda f: max(x / mp.mpf(len(f)) for x in f)),
    "weighted tchebycheff": Row(
        lambda m: pg.Tchebycheff(preference(m), ideal(m)),
        lambda f: max(w * (x - z) for w, x, z in zip(preference(len(f)), f, ideal(len(f)), strict=True)),
    ),
    "stch": Row(lambda m: pg.STCH(), lambda f: stch(f, uniform(len(f)), zeros(len(f)), 1.0)),
    "weighted stch": Row(
        lambda m: pg.STCH(0.125, preference(m), ideal(m)),
        lambda f: stch(f, preference(len(f)), ideal(len(f)), 0.125),
    ),
    "pbi": Row(lambda m: pg.PBI(), lambda f: pbi(f, uniform(len(f)), zeros(len(f)), 5.0)),
    "weighted pbi": Row(
        lambda m: pg.PBI(preference(m), ideal(m), 0.5), lambda f: pbi(f, preference(len(f)), ideal(len(f)), 0.5)
    ),
    "cosmos": Row(lambda m: pg.COSMOS(), lambda f: cosmos(f, uniform(len(f)), 1.0)),
    "weighted cosmos": Row(lambda m: pg.COSMOS(preference(m), 0.25), lambda f: cosmos(f, preference(len(f)), 0.25)),
    "uncertainty": Row(pg.UncertaintyWeighting, lambda f: sum(f) / 2),
    "imtl-l": Row(pg.IMTLL, lambda f: sum(f)),
    "dwa": Row(lambda m: pg.DWA(), None),
    "rlw": Row(lambda m: pg.RLW(seed=3), None),
    "famo": Row(lambda m: pg.FAMO(), None, positive=True),
}

SCALARIZATIONS = [name for name, row in ROWS.items() if row.F is not None]


def slopes(F: Function, values: Sequence[float]) -> list[float]:
    """The gradient of F by central differences, with a step of 1e-25 of each value: exact to float64."""
    found = []
    for k, value in enumerate(values):
        step = mp.mpf(10) ** -25 * (abs(mp.mpf(value)) or 1)
        up, down = exact(values), exact(values)
        up[k] += step
        down[k] -= step
        found.append(float((F(up) - F(down)) / (2 * step)))
    return found


def drawn(m: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Positive losses of about one, no two of them equal."""
    return torch.rand(m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).add(0.1).to(dtype)
