"""Aggregation of client updates, one per row: bound their lengths, combine them by a rule, and measure conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certification import certificate_of
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.cones import FLOAT32_ROWS, FLOAT64, conflicting
from paretograd.geometry.gramian import as_array, combine, gramian

#: Updates shorter than this, whose squares lose precision in float64, count as zero.
_ZERO = 1e-140

#: Treatment of the lengths of updates: keep them, scale all to the median length, or shorten those above it.
Bound = Literal["none", "normalize", "clip"]

#: A rule of the library, or a function from updates ``(m, n)`` to a direction ``(n,)``.
Rule = Aggregator | Callable[[Tensor], Tensor]


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
    if bound not in get_args(Bound):
        raise ParameterError(f"bound={bound!r}: use one of {', '.join(get_args(Bound))}")
    G = gramian(updates).cpu()  # small, and solved on the CPU anyway: one GPU synchronisation
    norms = G.diagonal().clamp(min=0.0).sqrt()
    factors = _factors(norms, bound)
    G = G * factors * factors[:, None]
    if isinstance(rule, Aggregator):
        found = rule.weights(G)
        direction = combine(found * factors, updates)
    else:
        found = torch.full_like(norms, torch.nan)
        direction = _answer(rule, updates if bound == "none" else updates * factors.to(updates)[:, None])
    gamma, conflicts = _gamma_and_conflicts(G, found, direction, updates, factors)
    return Combined(direction, found * factors, norms, gamma, conflicts)


def _answer(rule: Callable[[Tensor], Tensor], updates: Tensor) -> Tensor:
    """Call a user's function on the updates and validate its result."""
    found: object = rule(updates)
    wanted = updates.shape[1:]
    if not isinstance(found, Tensor) or found.shape != wanted:
        shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ShapeError(f"the rule returned {shown}; a tensor of shape {tuple(wanted)} is needed")
    return found.detach().to(updates)


def _factors(norms: Tensor, bound: Bound) -> Tensor:
    """Return the factor of each update. Zero updates keep the factor 1."""
    if bound == "none":
        return torch.ones_like(norms)
    something = norms > _ZERO
    if not bool(something.any()):
        return torch.ones_like(norms)
    middle = norms[something].median()
    wanted = torch.where(something, middle / torch.where(something, norms, 1.0), 1.0)
    return wanted if bound == "normalize" else wanted.clamp(max=1.0)


def _gamma_and_conflicts(
    G: Tensor, weights: Tensor, direction: Tensor, updates: Tensor, factors: Tensor
) -> tuple[float, tuple[int, ...]]:
    """Return gamma and the rows that the direction opposes."""
    if bool(torch.isfinite(weights).all()):
        certificate = certificate_of(as_array(G), as_array(weights), None, FLOAT64)
        return certificate.gamma, tuple(certificate.conflicts)
    even = torch.full_like(weights, 1.0 / len(weights))
    gamma = certificate_of(as_array(G), as_array(even), None, FLOAT64).gamma
    slopes = (updates.double() @ direction.double()).cpu() * factors
    lengths = as_array(G.diagonal().clamp(min=0.0).sqrt())
    opposed = conflicting(as_array(slopes), lengths, float(direction.double().norm()), tol=FLOAT32_ROWS)
    return gamma, tuple(opposed.nonzero()[0].tolist())
