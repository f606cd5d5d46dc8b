"""From losses to a Gramian, and from weights to gradients, without holding the Jacobian where layers allow it.

Three ways, of falling cost in memory:

- *rows*: the Jacobian itself, one block for each parameter;
- *outputs*: the gradients with respect to the outputs of layers, which give both the Gramian and, weighted, the
  gradients of the parameters;
- *stream*: each layer adds its part to the Gramian while the backward pass goes through it, and nothing is kept;
  one more backward pass, of the weighted sum, gives the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.graph import Graph, Use
from paretograd.autograd.layers import Layer, layer_of
from paretograd.autograd.products import combination, row_gramian
from paretograd.autograd.rows import gradient_rows, streamed_rows

Engine = Literal["auto", "gramian", "jacobian"]

#: The outputs of layers are kept if they take at most this share of the Jacobian.
_KEPT_SHARE = 0.25

#: Below this many parameters, reading the graph takes longer than it saves.
_FEW = 4096


class Pullback:
    """The gradients of m losses with respect to some parameters, in whatever form is cheapest to hold.

    Attributes:
        gramian: ``J @ J.T`` over these parameters, float64, shape ``(m, m)``.
    """

    def __init__(
        self,
        losses: Sequence[Tensor] | Tensor,
        params: Sequence[Tensor],
        graph: Graph,
        *,
        engine: Engine = "auto",
        retain_graph: bool = False,
        chunk: int | None = None,
        stream: bool | None = None,
    ) -> None:
        """Differentiate.

        Args:
            losses: m scalars, or a vector of them.
            params: parameters that the losses reach.
            graph: the losses' graph.
            engine: ``jacobian`` for rows, ``gramian`` for outputs or stream, ``auto`` for what suits the size.
            retain_graph: keep the graph for another backward pass.
            chunk: how many losses to differentiate at a time.
            stream: whether to drop the outputs' gradients on the way; None for what suits the size.
        """
        self._losses, self._params, self._retain = losses, params, retain_graph
        by_rows = engine == "jacobian" or (engine == "auto" and sum(p.numel() for p in params) <= _FEW)
        layers, rest = ([], list(params)) if by_rows else _split(params, graph)
        if stream is None:
            stream = chunk is None and _is_large(layers, rest)
        m, device = len(losses), losses[0].device
        self.gramian = torch.zeros(m, m, dtype=torch.float64, device=device)
        self._layers: list[tuple[Layer, Tensor]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._streamed = stream and bool(layers) and self._stream(layers, rest, graph)
        if self._streamed:
            return
        inputs: list[Tensor | GradientEdge] = [*(layer.edge for layer in layers), *rest]
        found = gradient_rows(losses, inputs, graph.operations, retain_graph=retain_graph, chunk=chunk)
        for layer, rows in zip(layers, found, strict=False):
            if rows is not None:
                self._layers.append((layer, rows))
                self._add(layer.gramian(rows))
        for param, rows in zip(rest, found[len(layers) :], strict=True):
            if rows is not None:
                self._rows.append((param, rows))
                self._add(row_gramian(rows))

    def _add(self, part: Tensor) -> None:
        self.gramian += part.detach().to(self.gramian.device)

    def _stream(self, layers: list[Layer], rest: list[Tensor], graph: Graph) -> bool:
        """Sum the Gramian while the batched backward pass goes on; False where it cannot be batched."""
        consumers = {layer.node: lambda rows, layer=layer: self._add(layer.gramian(rows)) for layer in layers}
        sinks = graph.sinks([layer.node for layer in layers])
        last = [layer for layer in layers if layer.node in sinks]
        found = streamed_rows(
            self._losses, [*(layer.edge for layer in last), *rest], consumers, graph.operations, exclude=sinks
        )
        if found is None:
            self.gramian.zero_()
            return False
        for layer, rows in zip(last, found, strict=False):
            if rows is not None:
                self._add(layer.gramian(rows))
        for rows in found[len(last) :]:
            if rows is not None:
                self._add(row_gramian(rows))
        return True

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each parameter with its gradient of ``sum_k w_k f_k``."""
        if self._streamed:
            return self._weighted_backward(weights)
        found = []
        with torch.no_grad():
            for layer, rows in self._layers:
                grads = layer.gradients(combination(weights, rows))
                found += list(zip(layer.params, grads, strict=True))
            found += [(param, combination(weights, rows)) for param, rows in self._rows]
        return [(param, grad.to(param.dtype).reshape(param.shape)) for param, grad in found]

    def _weighted_backward(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        if isinstance(self._losses, Tensor):
            outputs, seeds = [self._losses], [weights.to(self._losses)]
        else:
            outputs = list(self._losses)
            seeds = [weights[k].to(loss).reshape(loss.shape) for k, loss in enumerate(outputs)]
        grads = torch.autograd.grad(outputs, list(self._params), seeds, retain_graph=self._retain)
        return list(zip(self._params, grads, strict=True))


def _is_large(layers: Sequence[Layer], rest: Sequence[Tensor]) -> bool:
    """Whether the outputs of the layers are too many to keep, against the parameters."""
    count = sum(param.numel() for layer in layers for param in layer.params) + sum(param.numel() for param in rest)
    return sum(layer.output_size for layer in layers) > _KEPT_SHARE * count


def _split(params: Sequence[Tensor], graph: Graph) -> tuple[list[Layer], list[Tensor]]:
    """Operations with a rule, and the parameters that no rule serves."""
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
