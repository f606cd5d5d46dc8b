"""Updates of clients, one row each, to one direction: their norms bounded, combined by a rule, and looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certification import certificate_of
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.cones import FLOAT64
from paretograd.geometry.gramian import as_array, combine, gramian

#: Lengths below this, whose squares lose their digits in float64, are those of an update of zero.
_ZERO = 1e-140

#: What to do about the lengths of updates: nothing, scale all to the median length, or shorten those above it.
Bound = Literal["none", "normalize", "clip"]

#: A rule of the library, or a function from updates ``(m, n)`` to a direction ``(n,)``.
Rule = Aggregator | Callable[[Tensor], Tensor]


class Combined(NamedTuple):
    """What a round makes of m updates.

    Attributes:
        direction: shape ``(n,)``; the model moves by ``-lr`` times it.
        weights: of the updates as they came, ``(m,)``; NaN for a rule that has none.
        norms: lengths of the updates as they came, ``(m,)``.
        gamma: distance of the bounded updates from Pareto stationarity.
        conflicts: updates that the direction opposes, by their row.
    """

    direction: Tensor
    weights: Tensor
    norms: Tensor
    gamma: float
    conflicts: tuple[int, ...]


def combine_updates(updates: Tensor, rule: Rule, bound: Bound = "clip") -> Combined:
    """One direction from the updates of m clients.

    A rule bounds what a client's weight can be, and ``bound`` how long its update can be; only both together bound what
    one client can do. The median is that of the updates that are not zero: clients without data of their own, which
    send the model back as it came, must not bound the others to nothing. It stands as long as fewer than half of those
    lie about their lengths.

    Args:
        updates: one row for each client, shape ``(m, n)``, finite.
        rule: how to combine them.
        bound: ``none``; ``normalize`` to give all the median length (FedMGDA+, Hu et al., 2022, gives all the same);
            ``clip`` to shorten those above the median length.
    """
    if bound not in get_args(Bound):
        raise ParameterError(f"bound={bound!r}: use one of {', '.join(get_args(Bound))}")
    G = gramian(updates).cpu()  # small, and solved on the host anyway: a GPU is waited for once
    norms = G.diagonal().clamp(min=0.0).sqrt()
    factors = _factors(norms, bound)
    G = G * factors * factors[:, None]
    if isinstance(rule, Aggregator):
        found = rule.weights(G)
        direction = combine(found * factors, updates)
    else:
        found = torch.full_like(norms, torch.nan)
        direction = _answer(rule, updates if bound == "none" else updates * factors.to(updates)[:, None])
    seen = _looked_at(G, found, direction, updates, factors)
    return Combined(direction, found * factors, norms, *seen)


def _answer(rule: Callable[[Tensor], Tensor], updates: Tensor) -> Tensor:
    """What a function makes of the updates."""
    found: object = rule(updates)
    wanted = updates.shape[1:]
    if not isinstance(found, Tensor) or found.shape != wanted:
        shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ShapeError(f"the rule answered with {shown}; a tensor of shape {tuple(wanted)} is needed")
    return found.detach().to(updates)


def _factors(norms: Tensor, bound: Bound) -> Tensor:
    """What each update is multiplied with; an update of zero stays as it is."""
    if bound == "none":
        return torch.ones_like(norms)
    something = norms > _ZERO
    if not bool(something.any()):
        return torch.ones_like(norms)
    middle = norms[something].median()
    wanted = torch.where(something, middle / torch.where(something, norms, 1.0), 1.0)
    return wanted if bound == "normalize" else wanted.clamp(max=1.0)


def _looked_at(
    G: Tensor, weights: Tensor, direction: Tensor, updates: Tensor, factors: Tensor
) -> tuple[float, tuple[int, ...]]:
    """gamma, and the rows that the direction opposes."""
    if bool(torch.isfinite(weights).all()):
        certificate = certificate_of(as_array(G), as_array(weights), None, FLOAT64)
        return certificate.gamma, tuple(certificate.conflicts)
    even = torch.full_like(weights, 1.0 / len(weights))
    gamma = certificate_of(as_array(G), as_array(even), None, FLOAT64).gamma
    slopes = (updates.double() @ direction.double()).cpu() * factors
    slack = 1e-6 * G.diagonal().clamp(min=0.0).sqrt() * direction.double().norm().cpu()
    return gamma, tuple((slopes < -slack).nonzero()[:, 0].tolist())
