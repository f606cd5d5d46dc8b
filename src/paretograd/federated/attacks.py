"""Attacks of hostile clients, for tests, the example app and benchmarks.

Attacks on updates take those of the honest clients, ``(m, n)``, and append the attackers' rows, ``(m + count, n)``. A
label flip changes a client's training labels. The others change a reply: its arrays or its metrics. `ON_UPDATES`,
`ON_LABELS`, `ON_ARRAYS` and `ON_METRICS` hold the attacks that one client can carry out alone, by name. The others need
to know the honest updates: `mimic`, `little_is_enough`, `min_max`, `min_sum` and `adaptive`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.checks import as_count, as_number
from paretograd.errors import ParameterError, ShapeError
from paretograd.federated.aggregation import Bound, answer, bounded_weights
from paretograd.federated.rules import Rule
from paretograd.geometry.gramian import gramian

Noise = Literal["relative", "literal"]

#: Default size of the noise, by its kind.
_SIZES: dict[Noise, float] = {"relative": 0.15, "literal": 0.01}

#: Lengths that `adaptive` tries, as multiples of the median length.
_LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 1000.0)

#: A model's array, in numpy or in torch.
_Array = TypeVar("_Array", NDArray[np.generic], Tensor)


def sign_flip(
    updates: Tensor, target: int, generator: torch.Generator, *, noise: float | None = None, kind: Noise = "relative"
) -> Tensor:
    """Append the update ``-g_k`` plus noise, for a client k: the paper's attack.

    For two exactly opposite updates the shortest convex combination is zero, and MGDA stops.

    Args:
        updates: updates of the honest clients, ``(m, n)``.
        target: the client k.
        generator: generator of the noise.
        noise: size of the noise; None for that of the federated study: 0.15 if relative, the paper's 0.01 if literal.
        kind: ``relative`` for Gaussian noise of length ``noise * |g_k|``; ``literal`` for the paper's
            ``noise * N(0, I)``, whose length grows with the number of parameters.
    """
    _check(updates)
    if kind not in get_args(Noise):
        raise ParameterError(f"kind={kind!r}: use one of {', '.join(get_args(Noise))}")
    _check_target(updates, target)
    noise = _SIZES[kind] if noise is None else noise
    victim = updates[target]
    drawn = torch.randn(victim.shape, generator=generator, device=victim.device, dtype=victim.dtype)
    size = noise * victim.norm() / drawn.norm() if kind == "relative" else noise
    return torch.cat([updates, (size * drawn - victim)[None]])


def zero_update(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients that return the global model: their update is zero, and so is MGDA's direction."""
    _check(updates)
    return torch.cat([updates, updates.new_zeros(count, updates.shape[1])])


def scaled_update(updates: Tensor, factor: float = -1e3, count: int = 1) -> Tensor:
    """Append clients that send the honest mean times a factor.

    With a negative factor this is inner-product manipulation (Xie et al., 2020, arXiv:1903.03936). A small one, such as
    -0.1, hides among the honest updates. A large one gives an update as long as a bound allows.
    """
    _check(updates)
    return torch.cat([updates, (factor * updates.mean(dim=0)).expand(count, -1)])


def nan_update(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients that send NaN."""
    _check(updates)
    return torch.cat([updates, torch.full_like(updates[:1], torch.nan).expand(count, -1)])


def colluding(updates: Tensor, generator: torch.Generator, count: int = 2, factor: float = 1.0) -> Tensor:
    """Append colluding clients: all send minus the honest mean, plus slight noise that hides the collusion."""
    _check(updates)
    mean = updates.mean(dim=0)
    drawn = torch.randn((count, len(mean)), generator=generator, device=updates.device, dtype=updates.dtype)
    whisper = 1e-3 * mean.norm() * drawn / drawn.norm(dim=1, keepdim=True)
    return torch.cat([updates, whisper - factor * mean])


def gaussian_noise(updates: Tensor, generator: torch.Generator, factor: float = 10.0, count: int = 1) -> Tensor:
    """Append clients that send noise, about ``factor`` times as long as the honest updates are on average."""
    _check(updates, count)
    drawn = torch.randn((count, updates.shape[1]), generator=generator, device=updates.device, dtype=updates.dtype)
    size = as_number(factor, "factor") * updates.norm(dim=1).mean() / updates.shape[1] ** 0.5
    return torch.cat([updates, size * drawn])


def mimic(updates: Tensor, target: int = 0, count: int = 1) -> Tensor:
    """Append clients that copy one honest client, which then counts for several.

    This is the attack of Karimireddy et al. (2022, arXiv:2006.09365). No update is unusual. The attack hurts if clients
    differ, and most if the target is the same in all rounds.
    """
    _check(updates, count)
    _check_target(updates, target)
    return torch.cat([updates, updates[target].expand(count, -1)])


def little_is_enough(updates: Tensor, count: int = 1, deviations: float | None = None) -> Tensor:
    """Append clients that move every coordinate away from the mean, within the spread of the honest updates.

    The attack is called "a little is enough" (Baruch et al., 2019, arXiv:1902.06156).

    Args:
        updates: updates of the honest clients, ``(m, n)``.
        count: number of attackers.
        deviations: size of the shift in standard deviations; None for the paper's, at which enough honest clients are
            farther from the mean to form a majority with the attackers. It is zero for few attackers.
    """
    _check(updates, count)
    if deviations is None:
        honest, clients = len(updates), len(updates) + count
        supporters = max(clients // 2 + 1 - count, 0)
        deviations = max(NormalDist().inv_cdf(min(max((honest - supporters) / honest, 1e-3), 1.0 - 1e-3)), 0.0)
    shifted = updates.mean(dim=0) - as_number(deviations, "deviations") * _spread(updates)
    return torch.cat([updates, shifted.expand(count, -1)])


def min_max(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients that are no farther from any honest client than two honest clients are from each other.

    Within this limit they are as far from the mean as possible (Shejwalkar and Houmansadr, 2021). Each coordinate moves
    by a multiple of its standard deviation.
    """
    _check(updates, count)
    mean, away = updates.mean(dim=0), -_spread(updates)
    apart = updates - mean
    widest = _squared_distances(updates).max()
    # |mean + t away - g_k|^2 <= widest is a quadratic inequality in t for each client k.
    slopes, rest = apart @ away, (widest - apart.square().sum(dim=1)).clamp(min=0.0)
    return _shifted(updates, away, slopes, rest, count)


def min_sum(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients whose squared distances from the honest clients add up to no more than those of an honest client.

    Within this limit they are as far from the mean as possible (Shejwalkar and Houmansadr, 2021). Each coordinate moves
    by a multiple of its standard deviation.
    """
    _check(updates, count)
    away, apart = -_spread(updates), updates - updates.mean(dim=0)
    largest = _squared_distances(updates).sum(dim=1).max()
    rest = (largest - apart.square().sum()).clamp(min=0.0) / len(updates)
    return _shifted(updates, away, torch.zeros_like(rest)[None], rest[None], count)


def _shifted(updates: Tensor, away: Tensor, slopes: Tensor, rest: Tensor, count: int) -> Tensor:
    """Append the mean plus ``t away``, for the largest t with ``t^2 |away|^2 - 2 t slopes <= rest``."""
    square = away @ away
    if float(square) == 0.0:
        return torch.cat([updates, updates.mean(dim=0).expand(count, -1)])
    largest = ((slopes + (slopes.square() + square * rest).sqrt()) / square).min()
    return torch.cat([updates, (updates.mean(dim=0) + largest * away).expand(count, -1)])


def adaptive(
    updates: Tensor,
    rule: Rule,
    generator: torch.Generator,
    count: int = 1,
    *,
    bound: Bound = "clip",
    steps: int = 60,
) -> Tensor:
    """Append clients that know the rule and turn its direction against the honest mean.

    They search for rows that minimise the product of the server's direction with the mean of the honest updates. First
    they try four directions (against the mean, against the standard deviations with and without the signs of the mean,
    and the honest update that opposes the mean most), each with several lengths, starting from zero or from the mean.
    Then they improve the best by random steps in the span of the honest updates.

    Args:
        updates: updates of the honest clients, ``(m, n)``.
        rule: the rule of the server, which stays as it is: the search uses copies.
        generator: generator of the random steps.
        count: number of attackers.
        bound: the bound of the server on the lengths of updates.
        steps: number of random steps.
    """
    _check(updates, count)
    span = _Span(updates, rule, bound)
    best, rows = min(((span.progress(found), found) for found in span.candidates(count)), key=lambda pair: pair[0])
    for step in range(as_count(steps, "steps", 0)):
        # Every second step moves all attackers alike, and every third one is long.
        drawn = torch.randn(
            (1 if step % 2 else count, len(updates)), generator=generator, device=generator.device, dtype=torch.float64
        )
        found = rows.clone()
        found[:, : len(updates)] += (0.1 if step % 3 else 0.4) * drawn.cpu()
        progress = span.progress(found)
        if progress < best:
            best, rows = progress, found
    return torch.cat([updates, span.rows(rows)])


class _Span:
    """Combinations of the honest updates and of their spread, and what a rule makes of them.

    A rule that weights updates by their Gramian is evaluated without the rows: the Gramian of combinations follows from
    that of the basis.
    """

    def __init__(self, updates: Tensor, rule: Rule, bound: Bound) -> None:
        self._like, self._rule, self._bound = updates, rule, bound
        rows, m = updates.double(), len(updates)
        mean, spread = rows.mean(dim=0), _spread(rows)
        self._basis = torch.cat([rows, spread[None], (mean.sign() * spread)[None]])
        self._gramian = gramian(self._basis).cpu()
        self._honest = torch.eye(m, m + 2, dtype=torch.float64, device="cpu")
        self._mean = self._honest.mean(dim=0)

    def rows(self, combinations: Tensor) -> Tensor:
        """Return combinations of the basis, ``(k, m + 2)``, as updates, ``(k, n)``."""
        return (combinations.to(self._basis) @ self._basis).to(self._like)

    def progress(self, combinations: Tensor) -> float:
        """Return the product of the rule's direction with the honest mean, if the attackers send these combinations."""
        everyone = torch.cat([self._honest, combinations])
        # A copy, since some rules remember the updates or draw random numbers.
        rule = copy.deepcopy(self._rule)
        weights, factors = bounded_weights(everyone @ self._gramian @ everyone.mT, rule, self._bound)
        if weights is not None:
            return float((weights * factors) @ everyone @ self._gramian @ self._mean)
        bounded = (factors[:, None] * everyone).to(self._basis) @ self._basis
        return float(answer(rule, bounded) @ (self._mean.to(self._basis) @ self._basis))

    def candidates(self, count: int) -> list[Tensor]:
        """Return the combinations that all attackers send alike to begin with, each ``(count, m + 2)``."""
        middle = self._gramian.diagonal()[: len(self._honest)].sqrt().median()
        products = self._honest @ self._gramian @ self._mean
        unit = torch.eye(len(self._mean), dtype=torch.float64, device="cpu")
        towards = [-self._mean, -unit[-2], -unit[-1], unit[int(products.argmin())]]
        found = [torch.zeros_like(self._mean)]
        for direction in towards:
            length = (direction @ self._gramian @ direction).clamp(min=0.0).sqrt()
            scaled = direction * (middle / length if float(length) > 0.0 else 0.0)
            found += [base + size * scaled for base in (0.0 * self._mean, self._mean) for size in _LENGTHS]
        return [row.expand(count, -1) for row in found]


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Return wrong labels for a client to train on: class ``c`` becomes ``classes - 1 - c``.

    The client's update is as long as an honest one and passes every check.

    Args:
        labels: whole numbers from 0 to ``classes - 1``, any shape.
        classes: number of classes.
    """
    if labels.numel() and bool(((labels < 0) | (labels >= classes)).any()):
        raise ParameterError(f"classes={classes}: labels go from {int(labels.min())} to {int(labels.max())}")
    return classes - 1 - labels


def wrong_shape(arrays: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return a model whose last array is flattened and lacks one number."""
    found, name = dict(arrays), _last(arrays)
    found[name] = found[name].reshape(-1)[:-1]
    return found


def wrong_keys(arrays: Mapping[str, _Array], name: str = "backdoor") -> dict[str, _Array]:
    """Return a model whose last array has another name."""
    found = dict(arrays)
    found[name] = found.pop(_last(arrays))
    return found


def huge_examples(metrics: Mapping[str, float], weight: str = "num-examples", count: int = 10**12) -> dict[str, float]:
    """Return metrics that claim ``count`` training examples: with FedAvg, such a client dominates all others."""
    return {**metrics, weight: count}


def _check(updates: Tensor, count: int = 1) -> None:
    if updates.ndim != 2 or not len(updates):
        raise ShapeError(f"updates have shape (m, n), one row for each client; got {tuple(updates.shape)}")
    as_count(count, "count", 0)


def _check_target(updates: Tensor, target: int) -> None:
    if not 0 <= target < len(updates):
        raise ParameterError(f"target={target}: the clients are numbered 0 to {len(updates) - 1}")


def _spread(updates: Tensor) -> Tensor:
    """Return the standard deviation of each coordinate, ``(n,)``."""
    return updates.std(dim=0, correction=0)


def _squared_distances(updates: Tensor) -> Tensor:
    """Return the squared distances between the updates, ``(m, m)``."""
    distances: Tensor = torch.cdist(updates, updates, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square()


def _last(arrays: Mapping[str, _Array]) -> str:
    if not arrays:
        raise ShapeError("the model has no arrays to corrupt; give at least one")
    return list(arrays)[-1]


#: Functions from the honest updates and a generator to updates with one more attacker. A client that knows no other
#: updates uses its own in place of all.
ON_UPDATES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "sign-flip": lambda updates, generator: sign_flip(updates, 0, generator),
    "sign-flip-literal": lambda updates, generator: sign_flip(updates, 0, generator, kind="literal"),
    "zero": lambda updates, generator: zero_update(updates),
    "scaled": lambda updates, generator: scaled_update(updates),
    "nan": lambda updates, generator: nan_update(updates),
    "collude": lambda updates, generator: colluding(updates, generator, 1),
    "noise": lambda updates, generator: gaussian_noise(updates, generator),
}
#: Functions from labels and the number of classes to the attacker's training labels.
ON_LABELS: dict[str, Callable[[Tensor, int], Tensor]] = {"label-flip": flip_labels}
#: Functions from the arrays of a reply to those that the attacker sends.
ON_ARRAYS: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {"shape": wrong_shape, "keys": wrong_keys}
#: Functions from the metrics of a reply to those that the attacker sends.
ON_METRICS: dict[str, Callable[[Mapping[str, float]], dict[str, float]]] = {"boast": huge_examples}


def names() -> list[str]:
    """Return the names of all attacks that one client can carry out."""
    return [*ON_UPDATES, *ON_LABELS, *ON_ARRAYS, *ON_METRICS]
