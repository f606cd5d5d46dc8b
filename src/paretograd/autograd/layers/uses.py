"""Split of parameters by the layers that use them. Importing this module registers the rules of the package.

Most parameters have one use. Those of recurrent and siamese networks have several, whose gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from paretograd.autograd.graph import Graph, Use
from paretograd.autograd.layers import lookup, norm  # noqa: F401  # each registers its rules
from paretograd.autograd.layers.layer import Builder, Layer, Part, layer_of
from paretograd.autograd.layers.linear import Outer
from paretograd.autograd.layers.products import outer_gramian


def split_layers(params: Sequence[Tensor], graph: Graph) -> tuple[list[Layer], list[Tensor]]:
    """Return the operations with a rule, and the parameters without one or with several uses."""
    groups, rest = group_layers(params, graph)
    layers = [group[0] for group in groups if len(group) == 1]
    return layers, rest + [param for group in groups if len(group) > 1 for param in group[0].params]


def tied_layers(params: Sequence[Tensor], graph: Graph) -> tuple[list[Tied], list[Tensor]]:
    """Return the groups of operations that share a weight and are cheaper together than rows, and the other parameters.

    A group stores the gradients of all its outputs. If these have more rows than the weight has inputs, the rows of
    the Jacobian are smaller, and take no more products. The same holds for a table of embeddings that is also
    the weight of the output: there are as many outputs as words. A batched pass may start below the operations of a
    single loss, so they form no group either.
    """
    groups, rest = group_layers(params, graph)
    tied = []
    for group in groups:
        members = joinable(group)
        size = sum(layer.output_size for layer in group)
        plain = bool(members) and members[0].weight and members[0].form in ((1, False), (1, True))
        pays = plain and size <= members[0].params[0].numel()
        if pays and all(graph._masks[layer.node].bit_count() > 1 for layer in group):
            tied.append(Tied(members))
        else:
            rest += group[0].params
    return tied, rest


def joinable(group: Sequence[Layer]) -> list[Outer]:
    """Return the layers of a group if their inputs and outputs can be joined along the rows, and none otherwise."""
    members = [layer for layer in group if isinstance(layer, Outer) and layer.form is not None]
    return members if len(members) == len(group) and len({layer.form for layer in members}) == 1 else []


def group_layers(
    params: Sequence[Tensor], graph: Graph, build: Builder = layer_of
) -> tuple[list[list[Layer]], list[Tensor]]:
    """Return the layers of the parameters, in groups with the same parameters, and the parameters without a rule."""
    by_nodes: dict[frozenset[Node], list[tuple[Tensor, list[Use]]]] = {}
    rest = []
    for param in params:
        uses = graph.uses(param)
        nodes = frozenset(use.node for use in uses)
        if not uses or len(nodes) < len(uses):  # not listed, or one operation uses it twice
            rest.append(param)
        else:
            by_nodes.setdefault(nodes, []).append((param, uses))
    groups = []
    for pairs in by_nodes.values():
        group = _built(pairs, build)
        if group is None:
            rest += [param for param, _ in pairs]
        else:
            groups.append(group)
    return groups, rest


def _built(pairs: Sequence[tuple[Tensor, Sequence[Use]]], build: Builder) -> list[Layer] | None:
    """Return the layers of operations with the same parameters, in the order of the graph; None if one has no rule."""
    found: list[Layer] = []
    for node in (use.node for use in pairs[0][1]):
        layer = build(node, {use.position: (param, use) for param, uses in pairs for use in uses if use.node is node})
        if layer is None or (found and [*map(id, layer.params)] != [*map(id, found[0].params)]):
            return None
        found.append(layer)
    return found


class Tied(Layer):
    """Linear maps that share a weight: one map of all their inputs, with the gradients of all their outputs.

    Attributes:
        members: the layers.
        edges: their outputs, as autograd names them.
    """

    def __init__(self, members: Sequence[Outer]) -> None:
        super().__init__(members[0].node, members[0].params)
        self.members = members
        self.edges = [member.edge for member in members]
        self.output_shape = (sum(member.output_size for member in members),)

    def join(self, rows: Sequence[Tensor | None]) -> Tensor | None:
        """Return the gradients of all outputs, shape ``(m, *output)``, from those of each; None if there are none."""
        first = next((row for row in rows if row is not None), None)
        if first is None:
            return None
        flat = [
            first.new_zeros(len(first), member.output_size) if row is None else row.flatten(1)
            for member, row in zip(self.members, rows, strict=True)
        ]
        return torch.cat(flat, dim=1)

    def _each(self, grads: Tensor) -> list[Tensor]:
        """Return the gradients of each output, shape ``(m, *output)``, from those of all."""
        parts = torch.split(grads, [member.output_size for member in self.members], dim=1)
        return [part.reshape(-1, *member.output_shape) for member, part in zip(self.members, parts, strict=True)]

    def part(self, grads: Tensor) -> Part:
        pairs = list(zip(self.members, self._each(grads), strict=True))
        D = torch.cat([member.columns(rows) for member, rows in pairs], dim=1)
        X = torch.cat([member.inputs()[:, 0] for member in self.members])
        return Part(*outer_gramian(D, X, self.members[0].bias))

    def gradients(self, grad: Tensor) -> list[Tensor]:
        found = [member.gradients(rows[0]) for member, rows in zip(self.members, self._each(grad[None]), strict=True)]
        return [torch.stack(grads).sum(dim=0) for grads in zip(*found, strict=True)]
