"""`LayersWay`: the Gramian from the gradients of layers' outputs, without the rows of the Jacobian.

One batched pass computes these gradients. There are two forms:

- *keep*: store them; they give both the Gramian and, weighted, the gradients of the parameters;
- *stream*: each layer adds its part to the Gramian during the pass, and nothing is stored; a second backward pass, of
  the weighted sum, gives the gradients.

Parameters without a rule for their layer use rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from paretograd.autograd.batched import Source, batched_rows, start, unwrapped, weighted_gradients
from paretograd.autograd.call import Plan
from paretograd.autograd.graph import release
from paretograd.autograd.kept import Kept, Vector
from paretograd.autograd.layers.layer import Layer, Part
from paretograd.autograd.layers.uses import split_layers, tied_layers
from paretograd.autograd.products import combination, inner_products, rounding, row_gramian
from paretograd.autograd.ways import NotFiniteError, Pairs, Way, present
from paretograd.geometry.gramian import Array, as_array, out_of_range
from paretograd.geometry.row_lists import accumulator, real

#: The gradients of layers' outputs are stored if they take at most this share of the Jacobian's memory.
_KEPT_SHARE = 0.25

#: Rows with at most this many entries are multiplied together with others.
_SHORT = 4096


class LayersWay(Way):
    """The gradients of a plan's losses by layers.

    Attributes:
        share: the share of the aggregated parameters, by size, that have a rule.
    """

    name = "gramian"

    def __init__(self, plan: Plan, *, retain: bool = False) -> None:
        """Differentiate.

        Args:
            plan: the work.
            retain: retain the graph until `release`, whatever the call says; otherwise until `combine`.
        """
        self._plan = plan
        self._retain = retain or plan.call.retain_graph
        source, self._of_losses = start(plan)
        self._own = [pair for pairs in self._of_losses.values() for pair in pairs]
        self._parts = [_LayerGroup(plan, params, source) for params in plan.groups]
        self.gramians = torch.stack([part.gramian for part in self._parts])
        self.array = np.stack([part.array for part in self._parts])
        self.eps = max((part.eps for part in self._parts), default=2e-16)
        total = sum(param.numel() for param in plan.common)
        self.share = sum(part.served for part in self._parts) / max(total, 1)
        if not all(bool(torch.isfinite(grad).all()) for _, grad in self._own):
            raise NotFiniteError([], list)  # only plain passes tell which
        if plan.call.keep_rows and self.passes:
            raise RuntimeError("the gradients of its layers are too large to keep until the update")

    @property
    def passes(self) -> bool:
        """True if `combine` runs a backward pass."""
        return any(part.streams for part in self._parts)

    def combine(self, weights: Sequence[Tensor]) -> Pairs:
        found = list(self._own)
        for part, chosen in zip(self._parts, weights, strict=True):
            free = not self._retain and part is self._parts[-1]
            found += part.combine(chosen, free, keep=self._plan.call.keep_rows)
        return found

    def release(self) -> None:
        if self._plan.call.keep_rows or self._plan.call.retain_graph:
            return
        if self._retain or not self._parts[-1].streams:
            release(self._plan.graph.nodes)

    def kept(self) -> Kept:
        return KeptLayers(self._plan, self._parts, self._of_losses, self.array.sum(axis=0), self.eps)


class KeptLayers(Kept):
    """The gradients of layers' outputs, with the inputs that the graph holds."""

    def __init__(
        self, plan: Plan, parts: Sequence[_LayerGroup], own: Mapping[int, Pairs], gramian: Array, eps: float
    ) -> None:
        held = {id(param) for part in parts for param in part.held()}
        held |= {id(param) for pairs in own.values() for param, _ in pairs}
        self.common = [param for param in plan.common if id(param) in held]
        self.params = [*self.common, *(param for param in plan.own if id(param) in held)]
        self.m, self.eps = plan.m, eps
        self._plan, self._parts, self._own = plan, parts, own
        self._gramian = gramian.copy()
        for k, pairs in own.items():  # of one loss each
            grads = [grad.to(accumulator(grad.dtype)) for _, grad in pairs]
            self._gramian[k, k] += sum(float(row_gramian(grad[None])) for grad in grads)

    def _measure(self, vectors: Sequence[Vector], *, exact: bool) -> Array:
        found = np.zeros((self.m + len(vectors),) * 2)
        found[: self.m, : self.m] = self._gramian
        for number, vector in enumerate(vectors, self.m):
            slopes = sum((part.slopes(vector) for part in self._parts), np.zeros(self.m))
            for k, pairs in self._own.items():
                slopes[k] += sum(float(_inner(grad, vector[id(param)])) for param, grad in pairs)
            found[: self.m, number] = found[number, : self.m] = slopes
            for other, earlier in enumerate(vectors[: number - self.m + 1], self.m):
                products = [_inner(earlier[id(param)], vector[id(param)]) for param in self.params]
                found[number, other] = found[other, number] = float(torch.stack(products).sum())
        return found

    def combine(self, weights: Tensor) -> Pairs:
        found = [pair for part in self._parts for pair in part.combine(weights, free=False, keep=True)]
        numbers = weights.tolist()
        return found + [(param, numbers[k] * grad) for k, pairs in self._own.items() for param, grad in pairs]

    def updating(self) -> AbstractContextManager[None]:
        """Let the parameters change. The graph holds them, too, but only its inputs of layers are read later."""
        hidden: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
        context: AbstractContextManager[None] = hidden(tuple(self.params))
        return context

    def _free(self) -> None:
        self.open = False
        release(self._plan.graph.nodes)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    kind = accumulator(torch.promote_types(real(one).dtype, real(other).dtype))
    rows = (real(values).reshape(1, -1).to(kind) for values in (one, other))
    return inner_products(*rows).reshape(()).cpu()


class _LayerGroup:
    """The gradients over one group of parameters."""

    def __init__(self, plan: Plan, params: Sequence[Tensor], source: Source) -> None:
        self._losses, self._params, self._graph, self._source = plan.losses, list(params), plan.graph, source
        self._rules, rest = split_layers(params, plan.graph)
        self._tied, self._rest = tied_layers(rest, plan.graph)
        served = [*self._rules, *self._tied]
        self.served = sum(param.numel() for layer in served for param in layer.params)
        self.streams = bool(served) and _is_large(served, self._rest)
        self.eps = rounding(params)
        self._scales = torch.ones(plan.m, dtype=torch.float64, device="cpu")
        self.gramian, self.array = self._differentiate(source)
        wanted = self._wanted_scales()
        if wanted is not None:
            self._rescale(wanted)
        if not np.isfinite(self.array).all():
            raise NotFiniteError([], list)

    def _differentiate(self, source: Source) -> tuple[Tensor, Array]:
        m, device = len(self._scales), self._losses[0].device
        self._layers: list[tuple[Layer, Tensor]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._parts: list[Tensor] = []
        self._short: list[Tensor] = []
        if self.streams:
            self._stream(source)
        else:
            self._keep(source)
        self._parts += [
            row_gramian(torch.cat([rows for rows in self._short if rows.device == place], dim=1))
            for place in {rows.device for rows in self._short}
        ]
        total = torch.zeros(m, m, dtype=torch.float64, device=device)
        if self._parts:
            total = torch.stack([part.to(device) for part in self._parts]).sum(dim=0)
        self._parts.clear()
        self._short.clear()
        gramian = 0.5 * (total + total.T)
        return gramian, as_array(gramian)

    def _keep(self, source: Source) -> None:
        """Compute the Gramian from the gradients of layers' outputs, which are kept for the direction."""
        layers = [*self._tied, *self._rules]
        found = self._joined(batched_rows(source, self._inputs(self._rules)))
        for layer, rows in zip(layers, found, strict=False):
            if rows is not None:
                self._layers.append((layer, rows))
                self._take(layer, rows)
        for param, rows in zip(self._rest, found[len(layers) :], strict=True):
            if rows is not None:
                self._rows.append((param, rows))
                self._take_rows(rows)

    def _inputs(self, layers: Sequence[Layer]) -> list[Tensor | GradientEdge]:
        """Return what to differentiate with respect to: all outputs of tied layers, those of layers, the rest."""
        edges = [edge for layer in self._tied for edge in layer.edges]
        return [*edges, *(layer.edge for layer in layers), *self._rest]

    def _joined(self, found: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Join the gradients of the outputs of each tied layer, which come first."""
        rows = iter(found)
        return [*(layer.join([next(rows) for _ in layer.edges]) for layer in self._tied), *rows]

    def _take(self, layer: Layer, grads: Tensor) -> Part:
        part = layer.part(grads)
        if part.gramian is not None:
            self._parts.append(part.gramian)
        self._short += part.rows
        return part

    def _take_rows(self, rows: Tensor) -> None:
        if rows.numel() > _SHORT * len(rows) or rows.is_complex():
            self._parts.append(row_gramian(rows))
        else:
            self._short.append(rows.reshape(len(rows), -1).to(accumulator(rows.dtype)))

    def _stream(self, source: Source) -> None:
        """Sum the Gramian during the batched backward pass."""
        sinks = self._graph.sinks([layer.node for layer in self._rules])
        last = [layer for layer in self._rules if layer.node in sinks]

        def consumer(layer: Layer) -> Callable[[Tensor], Tensor | None]:
            return lambda rows: layer.pull(rows, self._take(layer, rows))

        consumers = {layer.node: consumer(layer) for layer in self._rules if layer.node not in sinks}
        layers = [*self._tied, *last]
        found = self._joined(_consumed_rows(source, self._inputs(last), consumers))
        for layer, rows in zip(layers, found, strict=False):
            if rows is not None:
                self._take(layer, rows)
        for rows in found[len(layers) :]:
            if rows is not None:
                self._take_rows(rows)

    def _wanted_scales(self) -> Tensor | None:
        """Return factors that bring squared norms into the range of float32; None if all are already in it."""
        found = out_of_range(self.array, self.eps)
        if found is None:
            return None
        large, small = found
        return torch.from_numpy(np.where(large, 2.0**-60, np.where(small, 2.0**50, 1.0)))

    def _rescale(self, scales: Tensor) -> None:
        """Differentiate the losses times ``scales``, and remove the factors from the Gramian afterwards."""
        self._scales = scales
        self.gramian, self.array = self._differentiate(self._source.scaled(scales))
        if np.isfinite(self.array).all():
            inverse = 1.0 / scales
            self.gramian *= (inverse * inverse[:, None]).to(self.gramian.device)
            self.array = as_array(self.gramian)
        else:  # half precision on the way, whose range is too small for the factors
            self._scales = torch.ones_like(scales)
            self.gramian, self.array = self._differentiate(self._source)

    def combine(self, weights: Tensor, free: bool, keep: bool = False) -> Pairs:
        """Return each parameter with its gradient of ``sum_k w_k f_k``, and release what was stored for it.

        Args:
            weights: shape ``(m,)``.
            free: free the graph, if a pass is needed.
            keep: release nothing.
        """
        if self.streams:
            return present(self._params, weighted_gradients(self._losses, self._params, weights, free=free))
        scaled = weights / self._scales.to(weights)
        layers, others = (list(self._layers), list(self._rows)) if keep else (self._layers, self._rows)
        found: Pairs = []
        while layers:
            layer, rows = layers.pop()
            grad = combination(scaled, rows)
            del rows  # first, because the gradients can reuse its memory
            found += list(zip(layer.params, layer.gradients(grad), strict=True))
        while others:
            param, rows = others.pop()
            found.append((param, combination(scaled, rows)))
        return fitted(found)

    def held(self) -> list[Tensor]:
        """Return the parameters that have gradients."""
        return [param for layer, _ in self._layers for param in layer.params] + [param for param, _ in self._rows]

    def slopes(self, vector: Vector) -> Array:
        """Return the inner products of all losses' gradients with a vector."""
        parts = [layer.slopes(rows, [vector[id(param)] for param in layer.params]) for layer, rows in self._layers]
        for param, rows in self._rows:
            kind = accumulator(real(rows).dtype)
            flat = real(rows).reshape(len(rows), -1).to(kind)
            parts.append(inner_products(flat, real(vector[id(param)]).reshape(1, -1).to(kind))[:, 0])
        total = torch.stack([part.to(self.gramian.device) for part in parts]).sum(dim=0)
        return as_array(total / self._scales.to(total))


def _consumed_rows(
    source: Source, inputs: Sequence[Tensor | GradientEdge], consumers: Mapping[Node, Callable[[Tensor], Tensor | None]]
) -> list[Tensor | None]:
    """Compute `batched_rows`, and pass the gradients of some outputs to consumers on the way without storing them.

    Args:
        source: the start of the pass.
        inputs: parameters or outputs whose gradients are returned.
        consumers: for an operation, a function of the gradients ``(m, *output)`` of its output; it may return those of
            the first input, which torch then does not compute.
    """
    m = len(source.seeds[0])
    handles = [handle for node, consume in consumers.items() for handle in _intercept(node, consume, m)]
    try:
        return batched_rows(source, inputs)
    finally:
        for handle in handles:
            handle.remove()


def _intercept(node: Node, consume: Callable[[Tensor], Tensor | None], m: int) -> list[RemovableHandle]:
    """Pass the gradients that reach an operation to a consumer; if it returns some, they replace the operation's own.

    The operation itself then gets a single zero gradient, not m: torch only allows replacing what it computed.
    """
    answers: list[Tensor] = []

    def before(grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        if grads[0] is None:
            return None
        rows = unwrapped(grads[0], m)
        answer = consume(rows)
        if answer is None:
            return None
        answers.append(torch._C._functorch._add_batch_dim(answer, 0, torch._C._functorch.current_level()))
        return (rows.new_zeros(()).expand(rows.shape[1:]), *grads[1:])

    def after(found: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        return (answers.pop(), *found[1:]) if answers else None

    return [node.register_prehook(before), node.register_hook(after)]


def fitted(found: Pairs) -> Pairs:
    """Convert gradients to the dtype and shape of their parameters."""
    return [(param, grad.to(param.dtype).reshape(param.shape)) for param, grad in found]


def _is_large(layers: Sequence[Layer], rest: Sequence[Tensor]) -> bool:
    """Return True if the outputs of the layers are too large to store, compared with the parameters."""
    count = sum(param.numel() for layer in layers for param in layer.params) + sum(param.numel() for param in rest)
    return sum(layer.output_size for layer in layers) > _KEPT_SHARE * count
