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
from paretograd.autograd.layers import Layer
from paretograd.autograd.operations import layer_of
from paretograd.autograd.products import accumulator, combination, row_gramian
from paretograd.autograd.rows import gradient_rows, not_finite, streamed_rows, weighted_gradients
from paretograd.autograd.source import Losses, Source
from paretograd.errors import NonFiniteGradientError

Engine = Literal["auto", "gramian", "jacobian"]

#: The outputs of layers are kept if they take at most this share of the Jacobian.
_KEPT_SHARE = 0.25

#: Below this many parameters, reading the graph takes longer than it saves.
_FEW = 4096

#: Squared norms outside these lose digits, or all, in sums of float32 products.
_SMALL, _LARGE = 1e-20, 1e30


class Pullback:
    """The gradients of m losses with respect to some parameters, in whatever form is cheapest to hold.

    Attributes:
        gramian: ``J @ J.T`` over these parameters, float64, shape ``(m, m)``.
        eps: rounding of its entries, relative to the norms of the gradients.
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
            graph: the losses' graph, which is kept.
            source: where the batched pass starts.
            engine: ``jacobian`` for rows, ``gramian`` for outputs or stream, ``auto`` for what suits the size.
            chunk: how many losses to differentiate at a time.
        """
        self._losses, self._params, self._graph, self._chunk = losses, list(params), graph, chunk
        self._source = source
        by_rows = engine == "jacobian" or (engine == "auto" and sum(p.numel() for p in params) <= _FEW)
        self._rules, self._rest = ([], self._params) if by_rows else split_layers(params, graph)
        self._streams = chunk is None and bool(self._rules) and _is_large(self._rules, self._rest)
        self.eps = max((torch.finfo(accumulator(p.dtype)).eps for p in params), default=2e-16)
        self._scales = torch.ones(len(losses), dtype=torch.float64)
        self._differentiate()
        self._check_finite()
        wanted = self._wanted_scales()
        if wanted is not None:
            self._rescale(wanted)

    def _differentiate(self) -> None:
        m = len(self._losses)
        self._layers: list[tuple[Layer, Tensor]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        self.gramian = torch.zeros(m, m, dtype=torch.float64, device=self._losses[0].device)
        if self._streams and self._stream():
            return
        self._streams = False
        inputs: list[Tensor | GradientEdge] = [*(layer.edge for layer in self._rules), *self._rest]
        found = gradient_rows(self._source, inputs, self._graph.operations, self._chunk)
        for layer, rows in zip(self._rules, found, strict=False):
            if rows is not None:
                self._layers.append((layer, rows))
                self._add(layer.gramian(rows))
        for param, rows in zip(self._rest, found[len(self._rules) :], strict=True):
            if rows is not None:
                self._rows.append((param, rows))
                self._add(row_gramian(rows))

    def _add(self, part: Tensor) -> None:
        self.gramian += part.detach().to(self.gramian.device)

    def _stream(self) -> bool:
        """Sum the Gramian while the batched backward pass goes on; False where it cannot be batched."""
        consumers = {layer.node: lambda rows, layer=layer: self._add(layer.gramian(rows)) for layer in self._rules}
        sinks = self._graph.sinks([layer.node for layer in self._rules])
        last = [layer for layer in self._rules if layer.node in sinks]
        inputs: list[Tensor | GradientEdge] = [*(layer.edge for layer in last), *self._rest]
        found = streamed_rows(self._source, inputs, consumers, self._graph.operations, sinks)
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

    def _wanted_scales(self) -> Tensor | None:
        """Factors that bring squared norms back into the range of float32; None if all are in it."""
        squares, largest = self.gramian.diagonal().cpu(), self.gramian.abs().amax(dim=1).cpu()
        large = ~(squares <= _LARGE)
        small = (squares < _SMALL) & (largest > 0.0)
        if self.eps < 1e-15 or not bool((large | small).any()):
            return None
        return torch.where(large, 2.0**-60, torch.where(small, 2.0**50, 1.0)).double()

    def _check_finite(self) -> None:
        """Raise where a gradient is not finite; where only squares of finite ones overflow, go on."""
        if not bool(torch.isfinite(self.gramian).all()):
            inputs: list[Tensor | GradientEdge] = list(self._params)
            bad = not_finite(self._losses, inputs)
            if bad or self.eps < 1e-15:
                raise NonFiniteGradientError(bad or list(range(len(self._losses))))

    def _rescale(self, scales: Tensor) -> None:
        """Differentiate again, with the losses times factors that are taken out of the Gramian afterwards."""
        source = self._source
        self._scales, self._source = scales, source.scaled(scales)
        self._differentiate()
        if bool(torch.isfinite(self.gramian).all()):
            inverse = (1.0 / scales).to(self.gramian.device)
            self.gramian *= inverse * inverse[:, None]
        else:  # half precision on the way, which has no room for the factors
            self._scales, self._source = torch.ones_like(scales), source
            self._differentiate()

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each parameter with its gradient of ``sum_k w_k f_k``."""
        if self._streams:
            return present(self._params, weighted_gradients(self._losses, self._params, weights))
        scaled = weights.cpu() / self._scales
        found = []
        for layer, rows in self._layers:
            grads = layer.gradients(combination(scaled, rows))
            found += list(zip(layer.params, grads, strict=True))
        found += [(param, combination(scaled, rows)) for param, rows in self._rows]
        return fitted(found)


def fitted(found: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Gradients in the dtype and shape of their parameters."""
    return [(param, grad.to(param.dtype).reshape(param.shape)) for param, grad in found]


def present(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """Parameters with a gradient, and these: one may be in the graph and get none all the same."""
    return [(param, grad) for param, grad in zip(params, grads, strict=True) if grad is not None]


def _is_large(layers: Sequence[Layer], rest: Sequence[Tensor]) -> bool:
    """Whether the outputs of the layers are too many to keep, against the parameters."""
    count = sum(param.numel() for layer in layers for param in layer.params) + sum(param.numel() for param in rest)
    return sum(layer.output_size for layer in layers) > _KEPT_SHARE * count


def split_layers(params: Sequence[Tensor], graph: Graph) -> tuple[list[Layer], list[Tensor]]:
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
