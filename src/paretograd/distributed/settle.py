"""Combination of the views of single processes into the step that all of them make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paretograd.autograd.call import no_param_reached
from paretograd.distributed.agreement import View, same
from paretograd.distributed.layout import Layout
from paretograd.errors import ParameterError


@dataclass(frozen=True)
class Settled:
    """The agreement of all processes.

    Attributes:
        counts: number of losses of each process.
        reached: for each parameter, a bit for every loss of any process that reaches it.
    """

    counts: list[int]
    reached: tuple[int, ...]


def settle(kind: str | None, views: list[View]) -> Settled:
    """Combine the views of all processes, or raise if they do not match."""
    counts = [view.m for view in views]
    if kind != "objectives":
        same("the number of losses", counts)
    for what in views[0].options:
        same(what, [view.options[what] for view in views])
    same("the parameters, by shape and dtype", [view.shapes for view in views])
    if kind == "sharded":
        same("which loss reaches which parameter, which sharding needs", [view.reached for view in views])
    reached, first = [0] * len(views[0].reached), 0
    for view in views:
        reached = [bits | more << first for bits, more in zip(reached, view.reached, strict=True)]
        first += view.m if kind == "objectives" else 0
    if not any(reached):
        raise no_param_reached(len(reached))
    return Settled(counts, tuple(reached))


def scales(layout: Layout, count: int, samples: int | Sequence[int] | None, total: int) -> Tensor:
    """Return the factors of this process's part of each row: its share of the samples, or of the processes.

    `fully_shard` itself divides by the number of processes.

    Args:
        layout: how the processes share the model.
        count: number of losses of this process.
        samples: number of samples of this process, for all losses or for each.
        total: number of samples of all processes, if ``samples`` is a single number.
    """
    kind, ranks = layout.kind, layout.ranks
    ones = torch.ones(count, dtype=torch.float64, device="cpu")
    if kind == "objectives":
        return ones
    divided = ranks.size if kind == "sharded" else 1
    if samples is None:
        return ones * divided / ranks.size
    if isinstance(samples, int):
        mine, everyone = ones * samples, ones * total
    else:
        mine = torch.tensor(list(samples), dtype=torch.float64, device="cpu")
        everyone = ranks.sum(mine).cpu()
    _check_counts(everyone)
    return mine * divided / everyone


def _check_counts(everyone: Tensor) -> None:
    empty: Sequence[int] = (everyone == 0).nonzero().flatten().tolist()
    if empty:
        raise ParameterError(f"samples: no process has samples for objective {', '.join(map(str, empty))}")
