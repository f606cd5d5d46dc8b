"""`segments`: places where all passes go through one tensor, so that they can stop there and go on later.

Plain passes through a shared trunk retain its activations until the last pass, while the rows of all earlier passes are
held. With the trunk cut into segments, all passes go through one segment before the next, and the activations of a
segment are freed when its rows are there. So about the larger of the two is held, not the sum. The numbers do not
change. Batched passes push several rows at once through each segment, as many as the width of the segment allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.call import Plan
from paretograd.autograd.graph import LEAF, PASSING, Graph, saved_tensors

#: Operations at whose output a graph is cut. They pass their gradient on to what they add, and are therefore left out:
#: a segment ends above such an operation, and the next one starts below it. So hooks of users are called once.
_CUT = "AddBackward0"

#: Parts of the graph with at most this many operations count as the way to a parameter, and not as a branch.
_TWIG = 16

#: Number of gradients as large as the widest output of a segment that a pass through it holds at a time. Transformers
#: hold 1.6 on a GPU. Convolutions hold more, but smaller chunks of them are slow.
_TEMPORARIES = 2

#: Estimated memory up to which all rows go at once, relative to that of a loop. The estimates are high.
_SHARE = 1.15

#: Bytes below which memory does not matter.
SMALL = 64 * 2**20


class Segment(NamedTuple):
    """A part of the graph that all passes go through.

    Attributes:
        nodes: its operations, without those that only pass a parameter on.
        leaves: the leaves that it reaches, by ``id``.
        ends: the output of an addition below at which it ends; nothing for the last one.
        starts: the terms of this addition, at which the next segment starts with the gradient of the end.
    """

    nodes: list[Node]
    leaves: set[int]
    ends: Sequence[GradientEdge] = ()
    starts: Sequence[GradientEdge] = ()


def whole(graph: Graph) -> Segment:
    """Return a graph as one segment, whose operations need not be known."""
    return Segment([], {id(leaf) for leaf in graph.leaves})


def segments(graph: Graph, m: int) -> list[Segment]:
    """Cut the graph of m losses wherever possible, from the losses to the leaves; return one segment if it is not."""
    twigs = _twigs(graph)
    trunk = [node for node in reversed(graph.nodes) if node not in twigs]  # every user before what it uses
    everyone = (1 << m) - 1
    pending: dict[Node, set[int]] = {root: {-1} for root in graph.roots}
    found = [Segment([], set())]
    seen: dict[Node, int] = {}
    for node in trunk:
        alone = len(pending) == 1 and len(pending.get(node, ())) == 1 and -1 not in pending[node]
        if alone and node.name() == _CUT and graph.mask(node) == everyone:
            terms = _terms(graph, node)
            if terms:
                found[-1] = found[-1]._replace(ends=[GradientEdge(node, 0)], starts=terms)
                found.append(Segment([], set()))
        found[-1].nodes.append(node)
        pending.pop(node, None)
        for child, number in graph.edges[node]:
            if child is None:
                continue
            if child not in twigs:
                pending.setdefault(child, set()).add(number)
            elif not _take_twig(graph, child, found[-1], seen, len(found)):
                return [whole(graph)._replace(nodes=trunk)]
    return found


def _terms(graph: Graph, node: Node) -> list[GradientEdge]:
    """Return the terms of an addition if their gradients are that of the sum; else nothing."""
    edges = [GradientEdge(child, number) for child, number in graph.edges[node] if child is not None]
    total = node._input_metadata[0]
    plain = node._saved_alpha == 1 and all(  # type: ignore[attr-defined]
        edge.node.name() != LEAF
        and edge.node._input_metadata[edge.output_nr].shape == total.shape
        and edge.node._input_metadata[edge.output_nr].dtype == total.dtype
        for edge in edges
    )
    return edges if plain else []


def _twigs(graph: Graph) -> set[Node]:
    """Return the operations, other than the losses' own, below which the graph is small."""
    sizes: dict[Node, int] = {}
    for node in graph.nodes:  # everything a node uses comes before it
        size = 1
        for child, _ in graph.edges[node]:
            if child is not None:
                size += sizes.get(child, _TWIG)
        if size <= _TWIG:
            sizes[node] = size
    return set(sizes) - set(graph.roots)


def _take_twig(graph: Graph, twig: Node, segment: Segment, seen: dict[Node, int], number: int) -> bool:
    """Add a twig to a segment, which has the given number. Return False if an earlier segment uses it, too.

    A pass of the earlier one would not end before such a leaf's gradient is complete.
    """
    waiting = [twig]
    while waiting:
        node = waiting.pop()
        if node in seen:
            if seen[node] != number:
                return False
            continue
        seen[node] = number
        if node.name() == LEAF:
            segment.leaves.add(id(node.variable))  # type: ignore[attr-defined]
        elif node.name() not in PASSING:
            segment.nodes.append(node)
        waiting += [child for child, _ in graph.edges[node] if child is not None]
    return True


def joined(parts: Sequence[Segment]) -> Segment:
    """Return adjacent segments as one."""
    nodes = [node for part in parts for node in part.nodes]
    return Segment(nodes, set().union(*(part.leaves for part in parts)), parts[-1].ends, parts[-1].starts)


def in_quarters(parts: Sequence[Segment]) -> list[Segment]:
    """Join segments to about four. More would save little memory, and each costs one more call for each loss."""
    total = sum(len(part.nodes) for part in parts)
    found: list[list[Segment]] = [[]]
    for part in parts:
        if found[-1] and 4 * sum(len(each.nodes) for each in found[-1]) >= total:
            found.append([])
        found[-1].append(part)
    return [joined(each) for each in found]


def chunks(parts: Sequence[Segment], plan: Plan) -> list[int]:
    """Return for each segment how many rows may go through it at once to hold no more memory than a loop of passes.

    A loop holds the activations and the rows, and then the rows twice, when it joins them to a matrix.

    Args:
        parts: the segments of the plan's graph, as cut.
        plan: the work.
    """
    m, sizes = plan.m, {id(param): plan.m * plan.row_size(param) for param in plan.common}
    rows = [sum(sizes.get(key, 0) for key in part.leaves) for part in parts]
    saved, whole_rows = _saved(parts), m * sum(param.nbytes for param in plan.common)
    limit = max(SMALL, whole_rows + max(sum(saved), whole_rows))
    found = []
    for number, part in enumerate(parts):
        held = sum(saved[number:]) + sum(rows[: number + 1])
        width = _TEMPORARIES * max(map(_width, part.nodes), default=0)
        if m * width <= _SHARE * limit - held:
            found.append(m)
        else:
            fitting = max(1, min(m, int((limit - held) // width)))
            found.append(-(-m // -(-m // fitting)))  # as many passes, of nearly equal size
    return found


def _saved(parts: Sequence[Segment]) -> list[int]:
    """Return the bytes of the activations that each segment saved. Parameters that were saved do not count."""
    seen: set[int] = set()
    found = []
    for part in parts:
        total = 0
        for tensor in (getattr(saved, "data", None) for node in part.nodes for saved in saved_tensors(node)):
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            fixed = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
            if not fixed and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        found.append(total)
    return found


def _width(node: Node) -> int:
    """Return the bytes of the outputs of an operation."""
    return sum(torch.Size(about.shape).numel() * about.dtype.itemsize for about in node._input_metadata)
