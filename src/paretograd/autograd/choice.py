"""The choice of a way to differentiate, by measurement, and the check of every way against plain passes.

All ways give the same answer. So the first steps of a training run can try them, each being a valid step, and the
quickest that fits in memory is kept for graphs of the same kind. A way other than plain passes is compared with them
when a kind of graph is first seen, and refused if it differs.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.batched import BatchedRows, chunks_of, obstacle
from paretograd.autograd.by_layers import LayersWay
from paretograd.autograd.call import Plan, is_private
from paretograd.autograd.samples.way import SamplesWay
from paretograd.autograd.step import How
from paretograd.autograd.ways import NotFiniteError, Pairs, PlainRows, Way
from paretograd.callers import callers_level

#: Timed steps of each way, after the one that checks it.
_ROUNDS = 2

#: Ways whose times have at least this ratio count as equally quick.
_GAIN = 0.98

#: Ways are tried only if plain passes visit the operations of the graph this often on average.
_REPEATED = 1.5

#: Below this number of parameters, plain passes are not worth replacing on the CPU.
_FEW = 4096

#: Least share of the parameters that must have a rule for their layer.
_SERVED = 0.5

#: Default share of the free memory that rows may take.
_FREE_SHARE = 0.5

#: Most kinds of graphs that are remembered.
_KINDS = 64

#: What torch says if a tensor of a batched pass was kept beyond it and is used again.
_ESCAPED = "escaped from inside a function being vmapped"

#: The ways other than plain passes. Of ways that are equally quick, the simplest is kept: plain passes, then that
#: without rows.
_WAYS = ("gramian", "batched")


@dataclass
class _Kind:
    """Findings about one kind of graph.

    Attributes:
        about: a description.
        times: seconds of the timed steps of each way.
        refused: ways that cannot be taken, and why.
        skipped: ways that ``engine="auto"`` does not take, and why.
        checked: ways that agreed with plain passes.
        taken: ways that were taken since. They are not expected to fail any more, and free the graph.
        chunks: rows that a batched pass pushes through each segment at once; None for all.
        latest: how ``engine="auto"`` took its latest step; None before the first.
    """

    about: str
    times: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    chunks: list[int] | None = None
    latest: How | None = None

    def differentiate(self, way: str, plan: Plan, *, retain: bool) -> BatchedRows | LayersWay:
        """Differentiate in a way other than plain passes."""
        if way == "gramian":
            return LayersWay(plan, retain=retain)
        if way not in self.checked:
            self.chunks = chunks_of(plan)
        return BatchedRows(plan, retain=retain, chunks=self.chunks)

    @property
    def ways(self) -> list[str]:
        """The ways among which ``engine="auto"`` chooses, the simplest first."""
        return ["jacobian", *(way for way in _WAYS if way not in self.refused and way not in self.skipped)]

    def best(self) -> str | None:
        """Return the quickest way; None while some are still to be tried."""
        if any(len(self.times.get(way, ())) < _ROUNDS for way in self.ways):
            return None
        seconds = {way: min(self.times[way]) for way in self.ways}
        least = min(seconds.values())
        return next(way for way in self.ways if _GAIN * seconds[way] <= least)

    def next(self) -> str:
        """Return the way to take in the next step."""
        untried = (way for way in self.ways if len(self.times.get(way, ())) < _ROUNDS)
        return self.best() or next(untried)


_KNOWN: dict[tuple[object, ...], _Kind] = {}


def engine_report() -> str:
    """Return what ``engine="auto"`` found out: for each kind of graph how it took the latest step, and all times."""
    lines = []
    for kind in _KNOWN.values():
        if kind.latest is None:
            continue
        lines.append(f"{kind.about}: {kind.latest}")
        for way in ("jacobian", *_WAYS) if kind.times else ():
            seconds = kind.times.get(way)
            reasons = kind.skipped | kind.refused
            found = f"{1e3 * min(seconds):.3g} ms" if seconds else reasons.get(way, "not tried yet")
            lines.append(f"  {way:9s} {found}")
    return "\n".join(lines) or "no step has been taken with engine='auto'"


def forget_choices() -> None:
    """Forget all measurements, so that ``engine="auto"`` tries the ways again."""
    _KNOWN.clear()


class Differentiation:
    """One plan, differentiated in a chosen way. Call `finish` after the gradients were combined.

    Attributes:
        way: the gradients.
        how: the way that was taken, and why.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._timed, self._started = plan, "", 0.0
        self._kind: _Kind | None = None
        self.way, self.how = self._differentiate()

    def _differentiate(self) -> tuple[Way, How]:
        plan, call = self._plan, self._plan.call
        if call.per_sample:
            found = SamplesWay.of(plan)
            if isinstance(found, SamplesWay):
                return found, How("samples", 1.0, "per_sample=True")
            return PlainRows(plan), How("jacobian", 1.0, found)
        if call.engine == "jacobian":
            return PlainRows(plan), How("jacobian", 1.0, "engine='jacobian'")
        if plan.m == 1 or call.chunk == 1:
            return PlainRows(plan), How("jacobian", 1.0, "one loss at a time")
        kind = self._kind = _kind_of(plan)
        if call.engine != "auto":
            return self._take(kind, call.engine, f"engine='{call.engine}'")
        if kind.best() == "jacobian" and call.max_memory is None:  # nothing that follows could change that
            return PlainRows(plan), How("jacobian", 1.0, _why(kind))
        reason = self._obvious(kind)
        if reason is not None:
            return PlainRows(plan), How("jacobian", 1.0, reason)
        name, trying = kind.next(), kind.best() is None
        if trying or call.max_memory is not None:
            name, reason = self._within_memory(kind, name)
        if trying and not reason:
            self._timed, self._started = name, _now(plan.device)
        if name == "jacobian":
            return PlainRows(plan), How(name, 1.0, reason or _why(kind))
        return self._take(kind, name, reason or _why(kind))

    def _obvious(self, kind: _Kind) -> str | None:
        """Return why plain passes are taken without trying others; None if others may be better."""
        plan = self._plan
        if torch.are_deterministic_algorithms_enabled():
            return "deterministic algorithms are asked for, and a choice by time is not"
        if plan.device.type == "cpu" and sum(param.numel() for param in plan.common) <= _FEW:
            return "the model is small"
        if plan.graph.repetition < _REPEATED:
            return "the losses have graphs of their own"
        reason = obstacle(plan.graph)
        if reason is not None:
            kind.refused |= dict.fromkeys(_WAYS, reason)
            return reason
        if self._is_packed(kind.best() is not None):
            return "saved tensors are packed by hooks, as a checkpoint does"
        return None

    def _within_memory(self, kind: _Kind, name: str) -> tuple[str, str]:
        """Return the way to take if rows are limited to the memory that is allowed, and why."""
        plan = self._plan
        needed, limit = plan.row_bytes, plan.call.max_memory
        if limit is None:
            limit = int(_FREE_SHARE * _free_memory(plan.device))
        if needed <= limit or name == "gramian" or "gramian" not in kind.ways:
            return name, ""
        return "gramian", f"rows would take {needed / 2**20:,.0f} MiB of {limit / 2**20:,.0f} allowed"

    def _take(self, kind: _Kind, name: str, reason: str) -> tuple[Way, How]:
        """Take a way other than plain passes; fall back to these if it cannot be taken or differs from them."""
        plan = self._plan
        known = name in kind.checked
        refusal = kind.refused.get(name) or obstacle(plan.graph)
        if refusal is None and self._is_packed(known):
            refusal = "saved tensors are packed by hooks, as a checkpoint does"
        if refusal is not None:
            return self._fall_back(name, refusal)
        if not known:
            return self._check(kind, name, reason)
        try:
            way = kind.differentiate(name, plan, retain=name not in kind.taken)
        except NotFiniteError as error:
            if error.final:
                raise
            return PlainRows(plan), How("jacobian", 1.0, "a gradient is not finite; plain passes tell which")
        except RuntimeError as error:  # no memory for it
            if name in kind.taken:  # it worked before, and the graph may be freed
                raise
            self._refuse(kind, name, error)
            return self._fall_back(name, kind.refused[name])
        kind.taken.add(name)
        return way, How(name, _share(way), reason)

    def _check(self, kind: _Kind, name: str, reason: str) -> tuple[Way, How]:
        """Take a way for the first time, after plain passes, which are kept if it fails or differs from them."""
        plan = self._plan
        self._timed = ""  # a step with a check says nothing about time
        plain = PlainRows(plan, retain=True)
        groups, own = [list(group) for group in plan.groups], list(plan.own)
        try:
            way = kind.differentiate(name, plan, retain=True)
            share = _share(way)
            if plan.call.engine == "auto" and share < _SERVED:
                kind.skipped[name] = f"only {share:.0%} of the parameters have a rule for their layer"
                return plain, How("jacobian", 1.0, kind.skipped[name])
            difference = _difference(way, plain)
            if difference is None:
                way = kind.differentiate(name, plan, retain=True)  # the first one is used up
                kind.checked.add(name)
                return way, How(name, share, f"{reason}; checked against plain passes in this step")
            kind.refused[name] = difference
        except NotFiniteError:
            return plain, How("jacobian", 1.0, f"'{name}' overflows where plain passes do not")
        except RuntimeError as error:  # no batching rule for some operation, or no memory for it
            plan.groups, plan.own = groups, own
            self._refuse(kind, name, error)
        return plain, self._fall_back_how(name, kind.refused[name])

    def _refuse(self, kind: _Kind, name: str, error: RuntimeError) -> None:
        self._timed = ""
        text = str(error).strip()
        kind.refused[name] = text.splitlines()[0][:120] if text else repr(error)
        if _ESCAPED in text:
            reason = "an activation keeps its gradient, which retain_grad() asks for"
            kind.refused |= dict.fromkeys(_WAYS, reason)
            warnings.warn(
                f"{reason}: batched passes cannot provide it, and it cannot be used in this step. From now on, one "
                "plain pass is taken for each loss. Pass engine='jacobian' from the start",
                UserWarning,
                stacklevel=callers_level(),
            )

    def _is_packed(self, known: bool) -> bool:
        """Return True if saved tensors are packed. For a known kind of graph, look at some of them only."""
        graph = self._plan.graph
        return graph.looks_packed if known else graph.is_packed

    def _fall_back(self, name: str, reason: str) -> tuple[Way, How]:
        return PlainRows(self._plan), self._fall_back_how(name, reason)

    def _fall_back_how(self, name: str, reason: str) -> How:
        if self._plan.call.engine == name:
            warnings.warn(
                f"engine='{name}' is not possible for this model: {reason}. One plain pass is taken for each of the "
                f"{self._plan.m} losses, and their rows are held",
                UserWarning,
                stacklevel=callers_level(),
            )
        return How("jacobian", 1.0, f"'{name}' is not possible: {reason}")

    def finish(self) -> None:
        """Record how the step was taken, and the time if it tried a way."""
        if self._kind is not None and self._plan.call.engine == "auto":
            self._kind.latest = self.how
        if self._timed and self._kind is not None:
            seconds = _now(self._plan.device) - self._started
            self._kind.times.setdefault(self._timed, []).append(seconds)


def _share(way: Way) -> float:
    return way.share if isinstance(way, LayersWay) else 1.0


def _why(kind: _Kind) -> str:
    return "the first steps try each way" if kind.best() is None else "the quickest in the first steps"


def _kind_of(plan: Plan) -> _Kind:
    shapes = tuple((tuple(param.shape), param.dtype) for param in plan.common)
    call = plan.call
    mixed = call.keep_rows and not all(is_private(param, plan.reached) for param in plan.own)
    options = (call.has_rule, call.chunk, call.metric is not None, call.keep_rows, call.retain_graph, mixed)
    key = (plan.graph.signature, shapes, len(plan.groups), plan.m, plan.device, *options)
    if key not in _KNOWN:
        while len(_KNOWN) >= _KINDS:
            del _KNOWN[next(iter(_KNOWN))]
        size = sum(param.numel() for param in plan.common)
        about = f"{plan.m} losses, {size:,} shared parameters on {plan.device}"
        refused = {}
        if mixed:
            refused = dict.fromkeys(_WAYS, "it adds up the gradients of several losses where the rule is not applied")
        if call.metric is not None or (call.keep_rows and call.retain_graph):
            refused["gramian"] = "a metric needs rows, and so does keep_rows with retain_graph"
        _KNOWN[key] = _Kind(about, refused=refused)
    return _KNOWN[key]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _free_memory(device: torch.device) -> float:
    """Return the number of bytes that can still be allocated; infinity if it is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return math.inf


# ---- check -----------------------------------------------------------------------------------------------------------


def _difference(way: Way, plain: PlainRows) -> str | None:
    """Return how a way differs from plain passes, beyond rounding; None if they agree. The way is used up.

    The Gramians are compared, and the gradients for random weights, parameter by parameter. A wrong rule is off by a
    large part; the tolerances allow for the rounding of sums in another order.
    """
    tolerance, floor = _tolerances(plain)
    norms = np.sqrt(plain.array.diagonal(axis1=1, axis2=2))
    scale = norms[:, :, None] * norms[:, None, :]
    if (np.abs(way.array - plain.array) > tolerance * scale + floor * scale.max(initial=0.0)).any():
        return "its Gramian differs from that of plain passes"
    m = plain.plan.m
    draw = torch.from_numpy(np.random.default_rng(0).uniform(0.5, 1.5, m)).to(plain.plan.device)
    ours = {id(param): grad for param, grad in way.combine([draw] * len(plain.plan.groups))}
    wanted: Pairs = []
    for group in plain.plan.groups:
        wanted += plain.rows.combine(group, draw, keep=True)
    pairs = [(param, grad.to_dense(), ours.get(id(param))) for param, grad in wanted]
    total = math.sqrt(sum(_square(grad) for _, grad, _ in pairs))
    for param, grad, found in pairs:
        apart = math.sqrt(_square(grad if found is None else grad - found.to_dense()))
        if apart > tolerance * math.sqrt(_square(grad)) + floor * total:
            return f"its gradient of a parameter of shape {tuple(param.shape)} differs from that of plain passes"
    return None


def _square(values: Tensor) -> float:
    return (
        float(torch.linalg.vector_norm(values, dtype=torch.complex128 if values.is_complex() else torch.float64)) ** 2
    )


def _tolerances(plain: PlainRows) -> tuple[float, float]:
    """Return the relative difference that rounding may cause, and that relative to the whole gradient."""
    graph, params = plain.plan.graph, plain.plan.common
    short = any(param.dtype in (torch.bfloat16, torch.float16) for param in params)
    if short or any(name.startswith("ToCopyBackward") for name in graph.operations):
        return 0.2, 0.02
    return (1e-6, 1e-9) if plain.eps < 1e-15 else (1e-2, 1e-4)
