"""Preparation of a call: validate it, find the layout, and agree on the work with all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd.backward import check_rule
from paretograd.autograd.choice import check_chosen, sort
from paretograd.autograd.graph import HANDING_ON, Graph
from paretograd.autograd.inputs import check_losses, check_passes, check_visible
from paretograd.autograd.processes import Call, as_params, check_parallel
from paretograd.autograd.roots import roots_of
from paretograd.autograd.rows import can_batch
from paretograd.autograd.source import Losses
from paretograd.distributed.agreement import View, agree
from paretograd.distributed.layout import Layout, UnknownLayoutError, fallback, find
from paretograd.distributed.ranks import Ranks
from paretograd.distributed.settle import Settled, scales, settle
from paretograd.errors import ParameterError

#: Limit on the samples of all processes, which have 31 bits.
_MOST_SAMPLES = 2**31

#: Processes of earlier calls. If these were always the same, they are told of an error in the next call.
_EARLIER: dict[tuple[int, ...], Ranks] = {}


@dataclass
class Work:
    """The work of this process in a step on which all agreed.

    Attributes:
        layout: how the processes share the model.
        losses: losses of this process.
        graph: their graph.
        m: total number of losses.
        counts: number of losses of each process if the processes have different ones; None if all have the same.
        groups: parameters to aggregate.
        own: parameters that get the sum of the gradients of their losses.
        reached: for each parameter, by ``id``, a bit for every loss of any process that reaches it.
        scales: factors of this process's part of each row, shape ``(losses,)``, float64.
        batched: True if passes may be batched.
    """

    layout: Layout
    losses: Losses
    graph: Graph
    m: int
    counts: list[int] | None
    groups: list[list[Tensor]]
    own: list[Tensor]
    reached: dict[int, int]
    scales: Tensor
    batched: bool

    @property
    def device(self) -> torch.device:
        """Device of the losses."""
        return self.losses[0].device if len(self.losses) else self.layout.ranks.device


@dataclass(frozen=True)
class _Seen:
    """Findings of this process alone."""

    losses: Losses
    graph: Graph
    layout: Layout
    groups: list[list[Tensor]]
    shared: list[Tensor] | None
    specific: list[Tensor] | None

    @property
    def params(self) -> list[Tensor]:
        return [param for group in self.groups for param in group]

    def view(self, call: Call) -> View:
        params, layout = self.params, self.layout
        place = {id(param): number for number, param in enumerate(params)}
        chosen = [[place[id(param)] for param in each or ()] for each in (self.shared, self.specific)]
        counted = "none" if call.samples is None else "all" if isinstance(call.samples, int) else "each"
        options = {
            "how they share the model": (layout.kind, layout.ranks.size),
            "the number of parameters": [len(group) for group in self.groups],
            "shared and specific": chosen,
            "chunk": call.chunk,
            "nonfinite": call.nonfinite,
            "whether samples are given": counted,
        }
        return View(
            params=tuple(map(id, params)),
            m=len(self.losses),
            shapes=tuple((tuple(param.shape), str(param.dtype)) for param in params),
            reached=tuple(self.graph.reached_by.get(id(layout.leaf(param)), 0) for param in params),
            batched=can_batch(self.graph.operations),
            options=options,
        )


def prepare(call: Call) -> Work | None:
    """Validate a call on all processes and return this process's work; None if the call concerns this process alone."""
    if call.parallel == "none":
        return None
    seen, layout = None, None
    error: Exception | None = None
    try:
        check_parallel(call.parallel, call.samples)
        losses = _losses(call)
        # Read before DTensors are made whole, while the parts of a vector can still be distinguished.
        graph = Graph(roots_of(losses, HANDING_ON), HANDING_ON) if len(losses) else Graph([])
        losses = _whole(losses) if isinstance(losses, Tensor) else [_whole(loss) for loss in losses]
        layout = find(call, graph.leaves)
        if layout is None:
            return None
        seen = _look(call, losses, graph, layout)
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
    view = None if seen is None else seen.view(call)
    kind = None if layout is None else layout.kind
    count = call.samples if isinstance(call.samples, int) else None
    copies = [] if seen is None or kind == "sharded" else seen.params
    settled, total = agree(ranks, view, copies, call.aggregator, count, error, lambda views: settle(kind, views))
    assert seen is not None
    return _work(call, seen, settled, total)


def _look(call: Call, losses: Losses, graph: Graph, layout: Layout) -> _Seen:
    check_passes(call.engine, call.chunk)
    if call.has_rule:
        check_rule(call.aggregator, call.nonfinite)
    check_visible(graph)
    if call.per_sample and layout.kind != "objectives":
        raise ParameterError(
            "per_sample=True makes each sample an objective, and the processes have different samples: pass "
            "parallel='objectives' and the model as params"
        )
    if call.samples is not None and layout.kind == "objectives":
        raise ParameterError("samples weights processes with the same losses; omit it with parallel='objectives'")
    if isinstance(call.samples, int) and call.samples * layout.ranks.size >= _MOST_SAMPLES:
        raise ParameterError(f"samples={call.samples}: at most {_MOST_SAMPLES // layout.ranks.size - 1} can be counted")
    if not isinstance(call.samples, int | None) and len(call.samples) != len(losses):
        raise ParameterError(f"samples has {len(call.samples)} numbers for {len(losses)} losses")
    groups = _groups(call, graph, layout)
    layout.ranks.see([param for group in groups for param in group])
    shared, specific = (
        None if each is None else [layout.target(param) for param in each] for each in (call.shared, call.specific)
    )
    check_chosen(groups, [layout.target(leaf) for leaf in graph.leaves], shared, specific)
    return _Seen(losses, graph, layout, groups, shared, specific)


def _losses(call: Call) -> Losses:
    losses = call.losses
    if call.parallel == "objectives" and not isinstance(losses, Tensor) and not list(losses):
        return []  # a process without objectives still takes part in the rest
    return check_losses(losses)


def _whole(loss: Any) -> Tensor:
    """Return a loss as a plain tensor, made whole if it is a DTensor."""
    return loss.full_tensor() if hasattr(loss, "full_tensor") else loss  # type: ignore[no-any-return]


def _groups(call: Call, graph: Graph, layout: Layout) -> list[list[Tensor]]:
    """Return the tensors that hold the ``.grad`` of the parameters to fill, in groups."""
    given = as_params(call.params)
    items: list[Any] = [given] if isinstance(given, Tensor) else list(given or ())
    if items and not any(isinstance(item, Tensor) for item in items):
        groups = [[layout.target(param) for param in item] for item in items]
    else:
        params = layout.params if layout.params is not None else graph.leaves
        groups = [[layout.target(param) for param in params]]
    for param in (param for group in groups for param in group):
        if not param.is_leaf:
            raise ParameterError(f"params holds a tensor of shape {tuple(param.shape)} that is not a leaf of the graph")
    unique = [list({id(param): param for param in group if param.requires_grad}.values()) for group in groups]
    if len({id(param) for group in unique for param in group}) < sum(map(len, unique)):
        raise ParameterError("a parameter is in two groups of params; give it in one of them")
    return unique


def _work(call: Call, seen: _Seen, settled: Settled, total: int) -> Work:
    layout, apart = seen.layout, seen.layout.kind == "objectives"
    m = sum(settled.counts) if apart else settled.counts[0]
    reached = {id(param): bits for param, bits in zip(seen.params, settled.reached, strict=True) if bits}
    groups, own = [], []
    for group in seen.groups:
        shared = [param for param in group if id(param) in reached]
        if call.aggregator is None:  # the Gramian is over all parameters
            groups.append(shared)
            continue
        common, alone = sort(shared, reached, m, seen.shared, seen.specific)
        groups.append(common)
        own += alone
    return Work(
        layout=layout,
        losses=seen.losses,
        graph=seen.graph,
        m=m,
        counts=settled.counts if apart else None,
        groups=groups,
        own=own,
        reached=reached,
        scales=scales(layout, len(seen.losses), call.samples, total),
        batched=settled.batched,
    )
