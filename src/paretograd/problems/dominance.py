"""Pareto dominance, non-dominated subsets and the hypervolume of a set of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paretograd.errors import DTypeError, InputError, MissingExtraError, ShapeError

#: Number of points compared with all candidates at once; bounds the memory.
_BLOCK = 256


def dominates(first: Tensor, second: Tensor) -> Tensor:
    """Return True where ``first`` is at least as good in every objective and better in one, shape ``(...)``, bool.

    Args:
        first: losses, shape ``(..., m)``; smaller is better.
        second: losses of a shape that broadcasts with ``first``.
    """
    return (first <= second).all(-1) & (first < second).any(-1)


def non_dominated(losses: Tensor) -> Tensor:
    """Return a mask of the points that no other point dominates, shape ``(N,)``, bool.

    Equal points do not dominate each other. Pairs (m = 2) are sorted. Otherwise each point is compared with the
    non-dominated ones before it in lexicographic order, which include a dominating point if there is one. 10,000 points
    that are all non-dominated take a fraction of a second.

    Args:
        losses: shape ``(N, m)``; smaller is better. Infinity is allowed, NaN is not.
    """
    _check_losses(losses)
    if not len(losses):
        return torch.zeros(0, dtype=torch.bool, device=losses.device)
    distinct, place = torch.unique(losses.detach(), dim=0, return_inverse=True)  # in lexicographic order
    kept = _sorted_pairs(distinct) if distinct.shape[1] == 2 else _in_blocks(distinct)
    return kept[place]


def hypervolume(losses: Tensor, reference: Tensor | Sequence[float]) -> float:
    """Return the volume of the region that the points dominate, up to the reference point. Larger is better.

    Points that are not below the reference in every objective add nothing. The value is exact. It is computed by
    moocore, which the extra ``moo`` installs.

    Args:
        losses: shape ``(N, m)``.
        reference: m numbers, above the losses of interest.
    """
    _check_losses(losses)
    corner = torch.as_tensor(reference, dtype=torch.float64, device="cpu").detach()
    if corner.shape != losses.shape[1:] or not bool(corner.isfinite().all()):
        raise ShapeError(f"the reference point has m = {losses.shape[1]} finite numbers; got {corner.tolist()}")
    moocore = _import_moocore()
    points = losses.detach().cpu().to(torch.float64)
    return float(moocore.hypervolume(points.numpy(), ref=corner.numpy()))


def _sorted_pairs(points: Tensor) -> Tensor:
    """Non-dominated mask of distinct pairs in lexicographic order: the second number must be below all before it."""
    second = points[:, 1]
    kept = torch.ones(len(points), dtype=torch.bool, device=points.device)
    kept[1:] = second[1:] < second.cummin(0).values[:-1]
    return kept


def _in_blocks(points: Tensor) -> Tensor:
    """Non-dominated mask of distinct points in lexicographic order. Since none are equal, ``<=`` means dominance."""
    kept = torch.ones(len(points), dtype=torch.bool, device=points.device)
    survivors = points[:0]
    for begin in range(0, len(points), _BLOCK):
        block = points[begin : begin + _BLOCK]
        alive = ~_below(survivors, block).any(0)
        block = block[alive]
        among = _below(block, block).fill_diagonal_(False).any(0)
        alive[alive.clone()] = ~among
        kept[begin : begin + _BLOCK] = alive
        survivors = torch.cat([survivors, block[~among]])
    return kept


def _below(first: Tensor, second: Tensor) -> Tensor:
    """Return True at ``(a, b)`` if point a is at most point b in every objective; one objective at a time."""
    below = torch.ones(len(first), len(second), dtype=torch.bool, device=first.device)
    for a, b in zip(first.unbind(-1), second.unbind(-1), strict=True):
        below &= a.unsqueeze(1) <= b
    return below


def _check_losses(losses: Tensor) -> None:
    if not isinstance(losses, Tensor):
        raise DTypeError(f"losses are a torch tensor; got {type(losses).__name__}")
    if not losses.is_floating_point():
        raise DTypeError(f"losses are of a floating-point dtype; got {losses.dtype}")
    if losses.ndim != 2 or losses.shape[1] == 0:
        raise ShapeError(f"losses have shape (N, m), one point per row; got {tuple(losses.shape)}")
    if bool(losses.isnan().any()):
        rows = losses.isnan().any(1).nonzero().flatten().tolist()
        raise InputError(f"NaN is neither better nor worse than any number; drop the points {rows[:8]}")


def _import_moocore() -> Any:
    try:
        import moocore
    except ImportError:
        raise MissingExtraError(
            "the hypervolume needs moocore, which is not installed; install it with: pip install 'paretograd[moo]'"
        ) from None
    return moocore
