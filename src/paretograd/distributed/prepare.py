"""Preparation of a call: validate it, find the layout, and agree on the work with all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paretograd.autograd.call import (
    Call,
    Plan,
    check_chosen,
    check_rule,
    default_params,
    groups_of,
    sort,
)
from paretograd.autograd.graph import HANDING_ON, Graph, Losses, check_visible
from paretograd.autograd.sums import Sums
from paretograd.autograd.ways import hidden_heads, set_apart, shows_heads
from paretograd.distributed import wrappers
from paretograd.distributed.agreement import View, agree
from paretograd.distributed.layout import Layout, UnknownLayoutError, fallback, find, has_shards
from paretograd.distributed.ranks import Ranks
from paretograd.distributed.settle import Settled, scales, settle, total_samples
from paretograd.errors import ParameterError

#: Limit on the samples of all processes, which have 31 bits.
_MOST_SAMPLES = 2**31

#: Processes of earlier calls. If these were always the same, they are told of an error in the next call.
_EARLIER: dict[tuple[int, ...], Ranks] = {}


@dataclass(frozen=True)
class Mine:
    """The losses of this process.

    Attributes:
        m: number of losses.
        leaves: the tensors that they reach.
        reached: for each of them, by ``id``, a bit for every loss of this process that reaches it.
        device: device of the losses; None without losses.
        losses: the losses; none if their rows were added up before.
        graph: their graph.
        compiled: those of compiled models, by ``id``.
        sums: the rows that were added up, with their parameters for leaves; None if the losses are given.
    """

    m: int
    leaves: list[Tensor]
    reached: Mapping[int, int]
    device: torch.device | None
    losses: Losses
    graph: Graph
    compiled: set[int]
    sums: Sums | None = None

    @classmethod
    def of_losses(cls, call: Call) -> Mine:
        """Validate the losses of a call and read their graph."""
        losses = call.losses
        if call.parallel == "objectives" and not isinstance(losses, Tensor) and not list(losses):
            losses = []  # a process without objectives still takes part in the rest
        else:
            losses = call.checked_losses()
        # Read before DTensors are made whole, while the parts of a vector can still be distinguished.
        graph = Graph(losses, HANDING_ON)
        losses = _whole(losses) if isinstance(losses, Tensor) else [_whole(loss) for loss in losses]
        device = losses[0].device if len(losses) else None
        return cls(len(losses), graph.leaves, graph.reached_by, device, losses, graph, graph.compiled)

    @classmethod
    def of_sums(cls, call: Call, sums: Sums) -> Mine:
        """Validate the call of a step after micro-batches."""
        check_rule(call.aggregator)
        if call.parallel != "objectives":
            sums.check_rows()
        device = sums.device if sums.m else None
        leaves = list(sums.params.values())
        return cls(sums.m, leaves, sums.reached, device, [], Graph([]), sums.compiled, sums)


@dataclass
class Work(Plan):
    """The work of this process in a step on which all agreed.

    Losses and graph are its own. ``m`` and the names in the call are those of all processes.

    Attributes:
        layout: how the processes share the model.
        mine: what this process differentiates, or has differentiated.
        counts: number of losses of each process if the processes have different ones; None if all have the same.
        scales: factors of this process's part of each row, shape ``(losses,)``, float64.
        samples: number of samples of all processes, for each loss; None if they are not counted.
        some_compiled: True if some process has parameters of compiled models.
    """

    layout: Layout
    mine: Mine
    counts: list[int] | None
    scales: Tensor
    samples: list[int] | None
    some_compiled: bool

    @property
    def compiled(self) -> set[int]:
        """The parameters of compiled models on this process, by ``id``."""
        return {id(self.layout.target(leaf)) for leaf in self.mine.leaves if id(leaf) in self.mine.compiled}

    def find_heads(self, nonzero: Callable[[Sequence[Tensor]], Tensor]) -> dict[int, int]:
        """Take the parameters that `hidden_heads` finds out of those that are aggregated, and return them.

        Args:
            nonzero: returns 1 where this process's part of a row of a parameter is not zero, shape ``(params, m)``.
        """
        if not (self.some_compiled and self.call.has_rule) or (
            self.mine.sums is None and not shows_heads(self.call, self.m)
        ):
            return {}
        params, compiled = self.common, self.compiled
        inside = torch.tensor([[id(param) in compiled] for param in params], dtype=torch.int64, device="cpu")
        part = nonzero(params)
        counts = self.layout.ranks.sum(torch.cat([inside.to(part.device), part], dim=1)).tolist()
        losses = {
            id(param): [k for k, count in enumerate(found) if count]
            for param, (some, *found) in zip(params, counts, strict=True)
            if some
        }
        chosen = [param for param in params if id(param) in losses]
        heads = hidden_heads(self.call, self.m, chosen, lambda param: losses[id(param)])
        set_apart(self, heads)
        return heads

    @property
    def device(self) -> torch.device:
        """Device of the losses."""
        return self.mine.device or self.layout.ranks.device

    @property
    def chosen(self) -> Sequence[int]:
        """The numbers of this process's losses to differentiate."""
        return [k - self.first for k in super().chosen if self.first <= k < self.first + self.mine.m]

    @property
    def first(self) -> int:
        """The number of this process's first loss among those of all processes."""
        return 0 if self.counts is None else sum(self.counts[: self.layout.ranks.rank])


@dataclass(frozen=True)
class _Seen:
    """Findings of this process alone. The call names the tensors that hold the ``.grad`` of parameters."""

    call: Call
    mine: Mine
    layout: Layout
    groups: list[list[Tensor]]

    @property
    def params(self) -> list[Tensor]:
        return [param for group in self.groups for param in group]

    def view(self) -> View:
        params, layout, call = self.params, self.layout, self.call
        place = {id(param): number for number, param in enumerate(params)}
        chosen = [[place[id(param)] for param in each or ()] for each in (call.shared, call.specific)]
        counted = "none" if call.samples is None else "all" if isinstance(call.samples, int) else "each"
        options = {
            "how they share the model": (layout.kind, layout.ranks.size),
            "whether rows were accumulated": self.mine.sums is not None,
            "the number of parameters": [len(group) for group in self.groups],
            "shared and specific": chosen,
            "chunk": call.chunk,
            "nonfinite": call.nonfinite,
            "metric and keep_rows": (call.metric is not None, call.keep_rows),
            "whether samples are given": counted,
        }
        return View(
            params=tuple(map(id, params)),
            m=self.mine.m,
            names=call.names,
            shapes=tuple((tuple(param.shape), str(param.dtype)) for param in params),
            reached=tuple(map(self._reached, params)),
            compiled=bool(self.mine.compiled),
            options=options,
        )

    def _reached(self, param: Tensor) -> int:
        """Return a bit for every loss of this process that reaches a parameter, or the whole tensor of a shard."""
        reached = self.mine.reached
        return reached.get(id(param), 0) or reached.get(id(self.layout.leaf(param)), 0)


def prepare(call: Call, sums: Sums | None = None, problem: Exception | None = None) -> Work | None:
    """Validate a call on all processes and return this process's work; None if the call concerns this process alone.

    Args:
        call: the call.
        sums: for a step after micro-batches, their rows. The call has no losses then.
        problem: an earlier error of this process, of which the others have not been told.
    """
    if call.parallel == "none":
        return None
    seen, layout = None, None
    error: Exception | None = None
    try:
        if problem is not None and sums is not None and not sums.m:
            raise problem
        mine = Mine.of_losses(call) if sums is None else Mine.of_sums(call, sums)
        named = call.params is not None or sums is not None
        layout = find(call, mine.leaves if named else default_params(mine.leaves))
        if layout is None:
            return None
        if problem is not None:
            raise problem
        seen = _look(call, mine, layout)
    except UnknownLayoutError as unknown:
        error = ParameterError(str(unknown))
        if call.samples is None:  # samples would imply that others take part
            raise error from None
    except Exception as found:  # noqa: BLE001  # the others must be told of any error
        error = found
    ranks = fallback(call, list(_EARLIER.values())) if layout is None else layout.ranks
    if ranks is None:
        assert error is not None
        raise error
    if ranks.key not in _EARLIER:
        for key in [key for key, earlier in _EARLIER.items() if not earlier.alive]:
            del _EARLIER[key]
        _EARLIER[ranks.key] = ranks
    view = None if seen is None else seen.view()
    kind = None if layout is None else layout.kind
    count = seen.call.samples if seen is not None and isinstance(seen.call.samples, int) else None
    copies = [] if seen is None or kind == "sharded" else seen.params
    settled, total = agree(ranks, view, copies, call.aggregator, count, error, lambda views: settle(kind, views))
    assert seen is not None
    return _work(seen, settled, total)


def is_sharded(call: Call) -> bool:
    """Return True if the losses of a call reach parameters of which each process holds a part.

    If the call is wrong and does not tell, it is assumed from the models of this process.
    """
    if call.parallel != "auto":
        return False
    try:
        return has_shards(call, () if call.params is not None else Graph(call.checked_losses(), HANDING_ON).leaves)
    except Exception:  # noqa: BLE001  # reported later
        return bool(wrappers.sharded_params()) and not wrappers.ddp_modules()


def _look(call: Call, mine: Mine, layout: Layout) -> _Seen:
    check_visible(mine.graph)
    if mine.sums is not None and layout.kind != "data":  # the processes need no weights any more, or none at all
        mine.sums.check_counts()
        call = replace(call, samples=None)
    if call.scalarizes and layout.kind != "objectives":
        call.aggregator._check_size(mine.m)
    if call.per_sample and layout.kind != "objectives":
        raise ParameterError(
            "per_sample=True makes each sample an objective, and the processes have different samples: pass "
            "parallel='objectives' and the model as params"
        )
    if call.metric is not None and call.metric.roots([]) is None:
        raise ParameterError(
            "a function as metric needs whole gradients, and each process holds a part of them; give a diagonal"
        )
    if call.samples is not None and layout.kind == "objectives":
        raise ParameterError("samples weights processes with the same losses; omit it with parallel='objectives'")
    if isinstance(call.samples, int) and call.samples * layout.ranks.size >= _MOST_SAMPLES:
        raise ParameterError(f"samples={call.samples}: at most {_MOST_SAMPLES // layout.ranks.size - 1} can be counted")
    if not isinstance(call.samples, int | None) and len(call.samples) != mine.m:
        raise ParameterError(f"samples has {len(call.samples)} numbers for {mine.m} losses")
    # Groups are the user's; otherwise the layout knows which tensors hold the ``.grad`` of parameters.
    grouped = not isinstance(call.params, nn.Module | Tensor | None) and not any(
        isinstance(item, Tensor) for item in call.params
    )
    default = default_params(mine.leaves) if layout.params is None else layout.params
    groups = groups_of(call.params if grouped else None, default, layout.target)
    groups = [[param for param in group if param.requires_grad] for group in groups]
    layout.ranks.see([param for group in groups for param in group])
    shared, specific = (
        None if each is None else [layout.target(param) for param in each] for each in (call.shared, call.specific)
    )
    check_chosen(groups, [layout.target(leaf) for leaf in mine.leaves], shared, specific)
    return _Seen(replace(call, shared=shared, specific=specific), mine, layout, groups)


def _whole(loss: Any) -> Tensor:
    """Return a loss as a plain tensor, made whole if it is a DTensor."""
    return loss.full_tensor() if hasattr(loss, "full_tensor") else loss  # type: ignore[no-any-return]


def _work(seen: _Seen, settled: Settled, total: int) -> Work:
    call, layout, apart = replace(seen.call, names=settled.names), seen.layout, seen.layout.kind == "objectives"
    m = sum(settled.counts) if apart else settled.counts[0]
    reached = {id(param): bits for param, bits in zip(seen.params, settled.reached, strict=True) if bits}
    found = [[param for param in group if id(param) in reached] for group in seen.groups]
    groups, own = sort(call, found, reached, m)
    everyone = total_samples(layout, call, seen.mine.m, total)
    return Work(
        call=call,
        losses=seen.mine.losses,
        graph=seen.mine.graph,
        groups=groups,
        own=own,
        reached=reached,
        m=m,
        layout=layout,
        mine=seen.mine,
        counts=settled.counts if apart else None,
        scales=scales(layout, call, seen.mine.m, everyone),
        samples=everyone,
        some_compiled=settled.compiled,
    )
