"""`Pullback`: from losses to a Gramian, and from weights to gradients, without the Jacobian if the layers allow it.

There are three ways, in order of decreasing memory:

- *rows*: store the Jacobian itself, one block for each parameter;
- *outputs*: store the gradients with respect to the outputs of layers, which give both the Gramian and, weighted, the
  gradients of the parameters;
- *stream*: each layer adds its part to the Gramian during the backward pass, and nothing is stored; a second backward
  pass, of the weighted sum, gives the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.graph import Graph, Use
from paretograd.autograd.layers import Layer, Part
from paretograd.autograd.operations import layer_of
from paretograd.autograd.products import accumulator, combination, rounding, row_gramian
from paretograd.autograd.ranges import out_of_range
from paretograd.autograd.rows import gradient_rows, not_finite, streamed_rows, weighted_gradients
from paretograd.autograd.source import Losses, Source
from paretograd.errors import NonFiniteGradientError
from paretograd.geometry.gramian import as_array

Engine = Literal["auto", "gramian", "jacobian"]

#: The gradients of layers' outputs are stored if they take at most this share of the Jacobian's memory.
_KEPT_SHARE = 0.25

#: Below this number of parameters, reading the graph costs more time than it saves.
_FEW = 4096

#: Rows with at most this many entries are multiplied together with others.
_SHORT = 4096


class Pullback:
    """The gradients of m losses with respect to some parameters, stored in the cheapest form.

    Attributes:
        gramian: ``J @ J.T`` over these parameters, float64, shape ``(m, m)``.
        array: the same on the CPU, as an array.
        passes: True if `combine` runs a backward pass.
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
    """

    def __init__(
        self,
        losses: Losses,
        params: Sequence[Tensor],
        graph: Graph,
        source: Source,
        *,
        engine: Engine = "auto",
        chunk: int | None = None,
    ) -> None:
        """Differentiate.

        Args:
            losses: m scalars, or a vector of them.
            params: parameters that the losses reach.
            graph: the graph of the losses, which is retained.
            source: the start of the batched pass.
            engine: ``jacobian`` for rows, ``gramian`` for outputs or stream, ``auto`` to choose by size.
            chunk: number of losses to differentiate at a time.
        """
        self._losses, self._params, self._graph, self._chunk = losses, list(params), graph, chunk
        self._source = source
        by_rows = engine == "jacobian" or (engine == "auto" and sum(p.numel() for p in params) <= _FEW)
        self._rules, self._rest = ([], self._params) if by_rows else split_layers(params, graph)
        self.passes = chunk is None and bool(self._rules) and _is_large(self._rules, self._rest)
        self.eps = max((rounding(param) for param in params), default=2e-16)
        self._scales = torch.ones(len(losses), dtype=torch.float64, device="cpu")
        self._differentiate()
        self._check_finite()
        wanted = self._wanted_scales()
        if wanted is not None:
            self._rescale(wanted)

    def _differentiate(self) -> None:
        m = len(self._losses)
        self._layers: list[tuple[Layer, Tensor]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._parts: list[Tensor] = []
        self._short: list[Tensor] = []
        if not (self.passes and self._stream()):
            self.passes = False
            self._keep()
        self._parts += [
            row_gramian(torch.cat([rows for rows in self._short if rows.device == device], dim=1))
            for device in {rows.device for rows in self._short}
        ]
        device = self._losses[0].device
        total = torch.zeros(m, m, dtype=torch.float64, device=device)
        if self._parts:
            total = torch.stack([part.to(device) for part in self._parts]).sum(dim=0)
        self._parts.clear()
        self._short.clear()
        self.gramian = 0.5 * (total + total.T)
        self.array = as_array(self.gramian)

    def _keep(self) -> None:
        """Compute the Gramian from the gradients of layers' outputs, which are kept for the direction."""
        inputs: list[Tensor | GradientEdge] = [*(layer.edge for layer in self._rules), *self._rest]
        found = gradient_rows(self._source, inputs, self._graph.operations, self._chunk)
        for layer, rows in zip(self._rules, found, strict=False):
            if rows is not None:
                self._layers.append((layer, rows))
                self._take(layer, rows)
        for param, rows in zip(self._rest, found[len(self._rules) :], strict=True):
            if rows is not None:
                self._rows.append((param, rows))
                self._take_rows(rows)

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

    def _stream(self) -> bool:
        """Sum the Gramian during the batched backward pass. Return False if the pass cannot be batched."""
        sinks = self._graph.sinks([layer.node for layer in self._rules])
        last = [layer for layer in self._rules if layer.node in sinks]

        def consumer(layer: Layer) -> Callable[[Tensor], Tensor | None]:
            return lambda rows: layer.pull(rows, self._take(layer, rows))

        consumers = {layer.node: consumer(layer) for layer in self._rules if layer.node not in sinks}
        inputs: list[Tensor | GradientEdge] = [*(layer.edge for layer in last), *self._rest]
        found = streamed_rows(self._source, inputs, consumers, self._graph.operations)
        if found is None:
            self._parts.clear()
            self._short.clear()
            return False
        for layer, rows in zip(last, found, strict=False):
            if rows is not None:
                self._take(layer, rows)
        for rows in found[len(last) :]:
            if rows is not None:
                self._take_rows(rows)
        return True

    def _wanted_scales(self) -> Tensor | None:
        """Return factors that bring squared norms into the range of float32; None if all are already in it."""
        found = out_of_range(self.array) if self.eps > 1e-15 else None
        if found is None:
            return None
        large, small = found
        return torch.from_numpy(np.where(large, 2.0**-60, np.where(small, 2.0**50, 1.0)))

    def _check_finite(self) -> None:
        """Raise if a gradient is not finite. Continue if only the squares of finite gradients overflow."""
        if not np.isfinite(self.array).all():
            inputs: list[Tensor | GradientEdge] = list(self._params)
            bad = not_finite(self._losses, inputs)
            if bad or self.eps < 1e-15:
                raise NonFiniteGradientError(bad or list(range(len(self._losses))))

    def _rescale(self, scales: Tensor) -> None:
        """Differentiate the losses times ``scales``, and remove the factors from the Gramian afterwards."""
        source = self._source
        self._scales, self._source = scales, source.scaled(scales)
        self._differentiate()
        if np.isfinite(self.array).all():
            inverse = 1.0 / scales
            self.gramian *= (inverse * inverse[:, None]).to(self.gramian.device)
            self.array = as_array(self.gramian)
        else:  # half precision on the way, whose range is too small for the factors
            self._scales, self._source = torch.ones_like(scales), source
            self._differentiate()

    def combine(self, weights: Tensor, free: bool) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient of ``sum_k w_k f_k``, and release what was stored for it.

        Args:
            weights: shape ``(m,)``.
            free: True if the pass may free the graph.
        """
        if self.passes:
            return present(self._params, weighted_gradients(self._losses, self._params, weights, free=free))
        scaled = weights / self._scales.to(weights)
        found = []
        while self._layers:
            layer, rows = self._layers.pop()
            grad = combination(scaled, rows)
            del rows  # first, because the gradients can reuse its memory
            found += list(zip(layer.params, layer.gradients(grad), strict=True))
        while self._rows:
            param, rows = self._rows.pop()
            found.append((param, combination(scaled, rows)))
        return fitted(found)


def fitted(found: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Convert gradients to the dtype and shape of their parameters."""
    return [(param, grad.to(param.dtype).reshape(param.shape)) for param, grad in found]


def present(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """Pair parameters with their gradients and drop those without one, which may occur even in the graph."""
    return [(param, grad) for param, grad in zip(params, grads, strict=True) if grad is not None]


def _is_large(layers: Sequence[Layer], rest: Sequence[Tensor]) -> bool:
    """Return True if the outputs of the layers are too large to store, compared with the parameters."""
    count = sum(param.numel() for layer in layers for param in layer.params) + sum(param.numel() for param in rest)
    return sum(layer.output_size for layer in layers) > _KEPT_SHARE * count


def split_layers(params: Sequence[Tensor], graph: Graph) -> tuple[list[Layer], list[Tensor]]:
    """Return the operations with a rule, and the parameters without one."""
    by_node: dict[Node, dict[int, tuple[Tensor, Use]]] = {}
    rest = []
    for param in params:
        use = graph.use(param)
        if use is None:
            rest.append(param)
        else:
            by_node.setdefault(use.node, {})[use.position] = (param, use)
    layers = []
    for node, uses in by_node.items():
        layer = layer_of(node, uses)
        if layer is None:
            rest += [param for param, _ in uses.values()]
        else:
            layers.append(layer)
    return layers, rest
