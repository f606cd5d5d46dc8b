"""Combination of the views of single processes into the step that all of them make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paretograd.autograd.call import Call, no_param_reached
from paretograd.distributed.agreement import View, same
from paretograd.distributed.layout import Layout
from paretograd.errors import ParameterError, ProcessError


@dataclass(frozen=True)
class Settled:
    """The agreement of all processes.

    Attributes:
        counts: number of losses of each process.
        names: the names of all losses, if they have any.
        reached: for each parameter, a bit for every loss of any process that reaches it.
        compiled: True if some process has parameters of compiled models.
    """

    counts: list[int]
    names: tuple[str, ...] | None
    reached: tuple[int, ...]
    compiled: bool


def settle(kind: str | None, views: list[View]) -> Settled:
    """Combine the views of all processes, or raise if they do not match."""
    counts = [view.m for view in views]
    if kind == "objectives":
        names = _joined_names(views)
    else:
        same("the number of losses", counts)
        same("the names of the losses", [view.names for view in views])
        names = views[0].names
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
    return Settled(counts, names, tuple(reached), any(view.compiled for view in views))


def _joined_names(views: Sequence[View]) -> tuple[str, ...] | None:
    """Return the names of all losses, each of which belongs to one process; None if they have none."""
    having = [number for number, view in enumerate(views) if view.m]
    unnamed = [number for number in having if views[number].names is None]
    if unnamed and len(unnamed) < len(having):
        other = next(number for number in having if number not in unnamed)
        raise ProcessError(
            f"the losses of process {other} have names, and those of process {unnamed[0]} have none. Give a dictionary "
            "of losses on every process, or on none"
        )
    if unnamed:
        return None
    owner: dict[str, int] = {}
    for number in having:
        for name in views[number].names or ():
            if owner.setdefault(name, number) != number:
                raise ProcessError(
                    f"processes {owner[name]} and {number} both have a loss named {name!r}. With parallel='objectives' "
                    "each loss belongs to one process: give them different names. If they are parts of one loss, omit "
                    "parallel, or use parallel='data'"
                )
    return tuple(name for view in views for name in view.names or ())


def total_samples(layout: Layout, call: Call, count: int, total: int) -> list[int] | None:
    """Return the number of samples of all processes for each loss; None if they are not counted.

    Args:
        layout: how the processes share the model.
        call: the call, with the number of samples of this process, for all losses or for each.
        count: number of losses of this process.
        total: number of samples of all processes, if ``samples`` is a single number.
    """
    if call.samples is None or isinstance(call.samples, int):
        return None if call.samples is None else [total] * count
    mine = torch.tensor(list(call.samples), dtype=torch.int64, device="cpu")
    found: list[int] = layout.ranks.sum(mine).tolist()
    return found


def check_counts(call: Call, everyone: Sequence[int] | None) -> None:
    """Raise if samples are counted and no process has any for some loss."""
    empty = [k for k, count in enumerate(everyone or ()) if not count]
    if empty:
        raise ParameterError(f"samples: no process has samples for objective {', '.join(map(call.name, empty))}")


def scales(layout: Layout, call: Call, count: int, everyone: Sequence[int] | None) -> Tensor:
    """Return the factors of this process's part of each row: its share of the samples, or of the processes.

    `fully_shard` itself divides by the number of processes.

    Args:
        layout: how the processes share the model.
        call: the call, with the number of samples of this process, for all losses or for each.
        count: number of losses of this process.
        everyone: number of samples of all processes, for each loss.
    """
    ones = torch.ones(count, dtype=torch.float64, device="cpu")
    if layout.kind == "objectives":
        return ones
    divided = layout.ranks.size if layout.kind == "sharded" else 1
    if everyone is None:
        return ones * divided / layout.ranks.size
    mine = ones * torch.tensor(call.samples, dtype=torch.float64, device="cpu")
    return mine * divided / torch.tensor(everyone, dtype=torch.float64, device="cpu").clamp(min=1.0)
