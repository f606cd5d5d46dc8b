"""Aggregation of client updates, one per row: bound their lengths, combine them by a rule, and measure conflicts.

What a rule needs to know of the updates is mostly their Gramian, a small matrix. `weigh` is all that is computed from
it. `combine_updates` applies the result to rows in memory, and `Streamed` to `Updates`, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certification import certificate_of
from paretograd.errors import ParameterError, ShapeError
from paretograd.federated.lengths import ZERO
from paretograd.federated.rules import CoordinateRule, GramianRule, Rule
from paretograd.federated.updates import Updates
from paretograd.geometry.cones import FLOAT32_ROWS, FLOAT64, conflicting
from paretograd.geometry.gramian import as_array, combine, gramian

#: Treatment of the lengths of updates: keep them, scale all to the median length, or shorten those above it.
Bound = Literal["none", "normalize", "clip"]

#: The length for ``bound``, from those of the updates; None if all are zero.
Limit = Callable[[list[float]], float | None]


class Combined(NamedTuple):
    """Result of combining m updates.

    Attributes:
        direction: shape ``(n,)``; the model moves by ``-lr`` times it.
        weights: weights of the original updates, ``(m,)``; NaN for a rule that has none.
        norms: lengths of the original updates, ``(m,)``.
        gamma: distance of the bounded updates from Pareto stationarity.
        conflicts: rows of the updates that the direction opposes.
    """

    direction: Tensor
    weights: Tensor
    norms: Tensor
    gamma: float
    conflicts: tuple[int, ...]


class Weighed(NamedTuple):
    """What follows from the Gramian of m updates.

    Attributes:
        weights: weights of the original updates, ``(m,)``; None if the rule needs more than the Gramian.
        factors: factor of each update by which its length is bounded, ``(m,)``.
        norms: lengths of the original updates, ``(m,)``.
        lengths: lengths of the bounded updates, ``(m,)``.
        gamma: distance of the bounded updates from Pareto stationarity.
        conflicts: rows that the direction opposes; none if the rule needs more than the Gramian.
    """

    weights: Tensor | None
    factors: Tensor
    norms: Tensor
    lengths: Tensor
    gamma: float
    conflicts: tuple[int, ...]


def combine_updates(updates: Tensor, rule: Rule, bound: Bound = "clip") -> Combined:
    """Combine the updates of m clients into one direction.

    A rule bounds the weight of a client, and ``bound`` limits the length of its update. Only both together bound the
    influence of one client. The median is taken over the nonzero updates: clients without data, which return the model
    unchanged, must not bound the others to zero. It is robust as long as fewer than half of these clients lie about
    their lengths.

    Args:
        updates: one row for each client, shape ``(m, n)``, finite.
        rule: the rule that combines them.
        bound: ``none`` keeps the lengths; ``normalize`` gives all updates the median length (FedMGDA+, Hu et al., 2022,
            gives all the same); ``clip`` shortens those above the median length.
    """
    _check_bound(bound)
    found = weigh(gramian(updates).cpu(), rule, bound)  # small, and solved on the CPU anyway: one GPU synchronisation
    if found.weights is not None:
        return Combined(combine(found.weights, updates), found.weights, found.norms, found.gamma, found.conflicts)
    bounded = updates if bound == "none" else updates * found.factors.to(updates)[:, None]
    direction = answer(rule, bounded)
    slopes = (updates.double() @ direction.double()).cpu() * found.factors
    opposed = _opposed(slopes, found.lengths, float(direction.double().norm()))
    return Combined(direction, torch.full_like(found.norms, torch.nan), found.norms, found.gamma, opposed)


def weigh(G: Tensor, rule: Rule, bound: Bound = "clip", limit: Limit | None = None) -> Weighed:
    """Bound the lengths of updates and weight them, from their Gramian alone.

    Args:
        G: Gramian of the updates, ``(m, m)``, in float64 on the CPU.
        rule: the rule. Only `Aggregator` and `GramianRule` have weights.
        bound: treatment of the lengths: see `combine_updates`.
        limit: the length for it; None for the median.
    """
    norms = G.diagonal().clamp(min=0.0).sqrt()
    found, factors = bounded_weights(G, rule, bound, limit)
    G = G * factors * factors[:, None]
    lengths = G.diagonal().clamp(min=0.0).sqrt()
    if found is None or not bool(torch.isfinite(found).all()):
        even = torch.full_like(norms, 1.0 / len(norms))
        gamma = certificate_of(as_array(G), as_array(even), None, FLOAT64).gamma
        return Weighed(None if found is None else found * factors, factors, norms, lengths, gamma, ())
    certificate = certificate_of(as_array(G), as_array(found), None, FLOAT64)
    return Weighed(found * factors, factors, norms, lengths, certificate.gamma, tuple(certificate.conflicts))


def bounded_weights(
    G: Tensor, rule: Rule, bound: Bound = "clip", limit: Limit | None = None
) -> tuple[Tensor | None, Tensor]:
    """Return the weights of the bounded updates, None if the rule needs more than the Gramian, and the bound's factors.

    Args:
        G, rule, bound, limit: see `weigh`.
    """
    _check_bound(bound)
    factors = _factors(G.diagonal().clamp(min=0.0).sqrt(), bound, limit or _median)
    if isinstance(rule, Aggregator | GramianRule):
        return rule.weights(G * factors * factors[:, None]), factors
    return None, factors


class Streamed:
    """The direction of a rule for updates that are read in blocks.

    The direction takes one pass over the updates. A function that is no rule of a known kind gets all rows at once, for
    which it needs twice the memory of float32 replies.

    Args:
        updates: the updates.
        G: their Gramian.
        rule: the rule; an error means that it has no answer.
        bound: treatment of the lengths: see `combine_updates`.
        limit: the length for it; None for the median.
    """

    def __init__(
        self, updates: Updates, G: Tensor, rule: Rule, bound: Bound = "clip", limit: Limit | None = None
    ) -> None:
        self.weighed = weigh(G, rule, bound, limit)
        self.conflicts = self.weighed.conflicts
        self._updates, self._rule = updates, rule
        self._whole: Tensor | None = None
        if isinstance(rule, CoordinateRule):
            next(self._by_coordinate(rule))  # raises now if at all
        elif self.weighed.weights is None:
            self._whole = answer(rule, self._bounded(updates.dense()))

    def pieces(self) -> Iterator[Tensor]:
        """Yield the direction in the blocks of columns, in float64. After the last one, `conflicts` are known."""
        if self.weighed.weights is not None:
            yield from self._updates.combine(self.weighed.weights)
            return
        slopes, square = torch.zeros_like(self.weighed.norms).numpy(), 0.0
        for block, piece in self._from_rows():
            row = piece.numpy()
            slopes += np.einsum("kj,j->k", block.numpy(), row)  # without BLAS: see `Updates.combine`
            square += float(np.einsum("j,j->", row, row))
            yield piece
        self.conflicts = _opposed(torch.from_numpy(slopes), self.weighed.lengths, square**0.5)

    def _from_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of the bounded updates with those of the direction."""
        if isinstance(self._rule, CoordinateRule):
            yield from self._by_coordinate(self._rule)
        else:
            assert self._whole is not None
            parts = torch.split(self._whole, self._updates.columns)
            for block, piece in zip(self._updates.blocks(), parts, strict=True):
                yield self._bounded(block), piece

    def _by_coordinate(self, rule: CoordinateRule) -> Iterator[tuple[Tensor, Tensor]]:
        for block in self._updates.blocks():
            bounded = self._bounded(block)
            yield bounded, answer(rule, bounded)

    def _bounded(self, rows: Tensor) -> Tensor:
        """Bound the lengths of rows in place."""
        array = rows.numpy()
        array *= self.weighed.factors.numpy()[:, None]
        return rows


def answer(rule: Callable[[Tensor], Tensor], updates: Tensor) -> Tensor:
    """Call a function on the updates and validate its result."""
    found: object = rule(updates)
    wanted = updates.shape[1:]
    if not isinstance(found, Tensor) or found.shape != wanted:
        shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ShapeError(f"the rule returned {shown}; a tensor of shape {tuple(wanted)} is needed")
    return found.detach().to(updates)


def _check_bound(bound: Bound) -> None:
    if bound not in get_args(Bound):
        raise ParameterError(f"bound={bound!r}: use one of {', '.join(get_args(Bound))}")


def _factors(norms: Tensor, bound: Bound, limit: Limit) -> Tensor:
    """Return the factor of each update. Zero updates keep the factor 1."""
    length = None if bound == "none" else limit(norms.tolist())
    if length is None:
        return torch.ones_like(norms)
    something = norms > ZERO
    wanted = torch.where(something, length / torch.where(something, norms, 1.0), 1.0)
    return wanted if bound == "normalize" else wanted.clamp(max=1.0)


def _median(lengths: list[float]) -> float | None:
    """Return the median of the lengths that are not zero, the lower of two."""
    something = sorted(length for length in lengths if length > ZERO)
    return something[(len(something) - 1) // 2] if something else None


def _opposed(slopes: Tensor, lengths: Tensor, length: float) -> tuple[int, ...]:
    """Return the rows that a direction opposes, from its products with the bounded updates."""
    found = conflicting(as_array(slopes), as_array(lengths), length, tol=FLOAT32_ROWS)
    return tuple(found.nonzero()[0].tolist())
