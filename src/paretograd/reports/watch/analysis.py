"""What a recording tells: who conflicts with whom, what the direction raises, and what other rules would have done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paretograd.aggregators.registry import get
from paretograd.autograd.recording import Record, read_recording
from paretograd.certificates.update import CONFLICT
from paretograd.certification import certificate_of
from paretograd.errors import DataError
from paretograd.geometry import cones
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import Array, as_array
from paretograd.solvers.min_norm import gamma_of

Value = TypeVar("Value", bound=np.generic)

#: Rules that a report tries on the recorded Gramians.
OTHERS = ("mean", "mgda", "upgrad", "dualproj", "nash-mtl", "fairgrad", "cagrad", "pcgrad", "imtl-g", "aligned-mtl")
#: Numbers of a Gramian times Gramians that they are tried on, at most: seconds for two losses as for a hundred.
_WORK = 300_000
_FEWEST, _MOST = 24, 300


@dataclass(frozen=True)
class Run:
    """A recording in numbers. R records of m losses; NaN for what was not recorded.

    Attributes:
        labels: names of the losses.
        rules: labels of the rules, in the order in which they acted.
        steps: number of each recorded step, ``(R,)``.
        losses: their values, ``(R, m)``.
        weights: ``(R, m)``; the mean over groups that were aggregated separately.
        gramians: ``(R, m, m)``; the sum over groups.
        eps: rounding of the Gramians, ``(R,)``.
        slopes: of all losses along the direction, ``(R, m)``.
        raised: 1 if the direction increases a loss, else 0, ``(R, m)``.
        hidden: 1 if rounding hides whether it does, else 0, ``(R, m)``.
        norm: of the direction, ``(R,)``.
        gamma: distance from Pareto stationarity, ``(R,)``.
        updated: 1 if the optimizer's change increases a loss, else 0, ``(R, m)``.
    """

    labels: tuple[str, ...]
    rules: tuple[str, ...]
    steps: NDArray[np.int64]
    losses: Array
    weights: Array
    gramians: Array
    eps: Array
    slopes: Array
    raised: Array
    hidden: Array
    norm: Array
    gamma: Array
    updated: Array

    @property
    def m(self) -> int:
        """Number of losses."""
        return len(self.labels)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """True for records with a finite Gramian, ``(R,)``."""
        return np.asarray(np.isfinite(self.gramians).all(axis=(1, 2)))

    @property
    def has_gradients(self) -> bool:
        """Return True if some record knows the gradients; those of rules that see the losses do not."""
        return bool(self.finite.any())

    @property
    def lengths(self) -> Array:
        """Norms of the gradients, ``(R, m)``."""
        return np.asarray(np.sqrt(np.maximum(self.gramians.diagonal(axis1=1, axis2=2), 0.0)))

    @property
    def cosines(self) -> Array:
        """Cosines between the gradients, ``(R, m, m)``; zero for a zero gradient."""
        scale = self.lengths[:, :, None] * self.lengths[:, None, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(scale == 0.0, 0.0, np.clip(self.gramians / scale, -1.0, 1.0)))

    @property
    def shares(self) -> Array:
        """Share of each loss in the lengths of the terms of the direction, ``(R, m)``."""
        sizes = np.abs(self.weights) * self.lengths
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sizes / sizes.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Pair:
    """Two losses.

    Attributes:
        first: number of the one.
        second: number of the other.
        share: of the steps in which their gradients point apart.
        early: the same in the first third of the records.
        late: the same in the last third.
        cosine: between their gradients, mean.
    """

    first: int
    second: int
    share: float
    early: float
    late: float
    cosine: float


@dataclass(frozen=True)
class Other:
    """What a rule makes of the recorded Gramians.

    Attributes:
        name: of the rule.
        label: of the rule.
        raised: share of the steps in which each loss increases, ``(m,)``.
        any: share of the steps in which some loss increases.
        count: losses that increase, mean over the steps.
        worst: the least cosine of the direction with a gradient, median over the steps; NaN if no direction is known.
        typical: the mean of these cosines, median over the steps.
        norm: of the direction, median over the steps.
    """

    name: str
    label: str
    raised: Array
    any: float
    count: float
    worst: float
    typical: float
    norm: float


def analyse(path: str | Path) -> Run:
    """Read a recording, and certify the direction of every record again."""
    recording = read_recording(path)
    if not recording.records:
        raise DataError(f"{path} has no record yet; wait for the first step, or give another run")
    m, records = recording.head.m, recording.records
    rows = [_row(record, m) for record in records]
    slopes, raised, hidden, norm, gamma = (np.array([row[i] for row in rows]) for i in range(5))
    nothing = np.full(m, np.nan)
    return Run(
        labels=recording.head.labels,
        rules=tuple(dict.fromkeys(record.rule for record in records)),
        steps=np.array([record.step for record in records], dtype=np.int64),
        losses=np.array([nothing if record.losses is None else record.losses for record in records]),
        weights=np.array([record.weights.mean(axis=0) for record in records]),
        gramians=np.array([_total(record, m) for record in records]),
        eps=np.array([record.eps for record in records]),
        slopes=slopes,
        raised=raised,
        hidden=hidden,
        norm=norm,
        gamma=gamma,
        updated=np.array(
            [nothing if record.update is None else _marked(record.update.conflicts, m) for record in records]
        ),
    )


def _total(record: Record, m: int) -> Array:
    return np.full((m, m), np.nan) if record.gramians is None else np.asarray(record.gramians.sum(axis=0))


def _marked(numbers: Sequence[int], m: int) -> Array:
    found = np.zeros(m)
    found[list(numbers)] = 1.0
    return found


def _row(record: Record, m: int) -> tuple[Array, Array, Array, float, float]:
    """Return slopes, raised, hidden, norm and gamma of a record."""
    nothing, G = np.full(m, np.nan), _total(record, m)
    if record.gramians is None or not np.isfinite(G).all():
        return nothing, nothing, nothing, np.nan, np.nan
    if record.direction is not None:
        found = record.direction
        return found.slopes, _marked(found.conflicts, m), np.zeros(m), found.norm, gamma_of(G, record.eps)
    if not np.isfinite(record.weights).all():
        return nothing, nothing, nothing, np.nan, gamma_of(G, record.eps)
    rounding = Rounding(record.eps, record.eps)
    if len(record.weights) == 1:
        one = certificate_of(G, record.weights[0], None, rounding)
        return np.array(one.slopes), _marked(one.conflicts, m), _marked(one.unknown, m), one.norm, one.gamma
    parts = list(zip(record.gramians, record.weights, strict=True))
    slopes = np.sum([cones.slopes(each, w) for each, w in parts], axis=0)
    errors = np.sum([cones.slope_errors(each, w, rounding) for each, w in parts], axis=0)
    norm = float(np.linalg.norm([cones.norm(each, w) for each, w in parts]))
    lengths, tol = np.sqrt(G.diagonal()), cones.conflict_tolerance(rounding.eps)
    raised = cones.conflicting(slopes, lengths, norm, tol=tol, errors=errors)
    hidden = ~raised & (slopes - errors < -max(tol, rounding.resolution) * norm * lengths)
    return slopes, raised.astype(float), hidden.astype(float), norm, gamma_of(G, record.eps)


def thirds(values: NDArray[Value]) -> tuple[NDArray[Value], NDArray[Value]]:
    """Return the first and the last third of some records, at least one of each."""
    count = max(1, len(values) // 3)
    return values[:count], values[-count:]


def conflicting_pairs(run: Run) -> list[Pair]:
    """Return all pairs of losses, those that conflict most often first."""
    cosines = run.cosines[run.finite]
    apart = cosines < -CONFLICT
    early, late = thirds(apart)
    means = [values.mean(axis=0) for values in (apart, early, late, cosines)]
    pairs = [Pair(i, j, *(float(mean[i, j]) for mean in means)) for i, j in combinations(range(run.m), 2)]
    return sorted(pairs, key=lambda pair: (-pair.share, pair.cosine))


def other_rules(run: Run, names: Sequence[str] = OTHERS) -> list[Other]:
    """Solve other rules on the recorded Gramians, evenly chosen ones if there are many."""
    places = np.flatnonzero(run.finite)
    most = int(np.clip(_WORK // run.m**2, _FEWEST, _MOST))
    if len(places) > most:
        places = places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(int))]
    return [_other(name, run, places) for name in names] if len(places) else []


def _other(name: str, run: Run, places: NDArray[np.intp]) -> Other:
    rule, raised, worst, typical, norms = get(name), [], [], [], []
    for place in places:
        G, eps = run.gramians[place], float(run.eps[place])
        with rule.one_step():
            weights = as_array(rule.solve(torch.from_numpy(G)).weights)
        found = certificate_of(G, weights, None, Rounding(eps, eps))
        lengths = np.sqrt(G.diagonal())
        live = lengths > 0.0
        if found.norm > 0.0 and live.any():
            cosines = np.array(found.slopes)[live] / (lengths[live] * found.norm)
            worst.append(cosines.min())
            typical.append(cosines.mean())
        raised.append(_marked(found.conflicts, run.m))
        norms.append(found.norm)
    every = np.array(raised)
    return Other(
        name=name,
        label=rule.label,
        raised=every.mean(axis=0),
        any=float(every.any(axis=1).mean()),
        count=float(every.sum(axis=1).mean()),
        worst=float(np.median(worst)) if worst else np.nan,
        typical=float(np.median(typical)) if typical else np.nan,
        norm=float(np.median(norms)),
    )
