"""`segments`: places where all passes go through one tensor, so that they can stop there and go on later.

Plain passes through a shared trunk retain its activations until the last pass, while the rows of all earlier passes are
held. With the trunk cut into segments, all passes go through one segment before the next, and the activations of a
segment are freed when its rows are there. So about the larger of the two is held, not the sum. The numbers do not
change.
"""

from __future__ import annotations

from typing import NamedTuple

from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.graph import LEAF, Graph

#: Number of segments to aim at. More of them save little memory, and each costs one more call of torch for each loss.
_COUNT = 4

#: Operations at whose output a graph is cut. They save no tensors, so that a pass that ends there can run them.
_CUT = "AddBackward0"

#: Parts of the graph with at most this many operations count as the way to a parameter, and not as a branch.
_TWIG = 16


class Segment(NamedTuple):
    """A part of the graph that all passes go through.

    Attributes:
        leaves: the leaves that it reaches, by ``id``.
        end: the output of the graph below at which it ends, None for the last one.
        below: an output that the operation at the end uses. A pass that is asked for it, too, runs this operation, and
            therefore returns the gradient at the end as it was before a user's hook changes it. The next segment starts
            with this operation again, so that the hook's answer counts once.
    """

    leaves: set[int]
    end: GradientEdge | None
    below: GradientEdge | None


def segments(graph: Graph, m: int) -> list[Segment]:
    """Cut the graph of m losses into segments, from the losses to the leaves; one if it cannot be cut."""
    twigs = _twigs(graph)
    trunk = [node for node in reversed(graph.nodes) if node not in twigs]  # every user before what it uses
    place = {node: number for number, node in enumerate(trunk)}
    everyone = (1 << m) - 1
    pending: dict[Node, set[int]] = {root: {-1} for root in graph.roots if root not in twigs}
    found: list[Segment] = []
    leaves: set[int] = set()
    seen: dict[Node, int] = {}
    count = 0
    for node in trunk:
        alone = len(pending) == 1 and len(pending.get(node, ())) == 1 and -1 not in pending[node]
        if alone and _COUNT * count >= len(trunk) and node.name() == _CUT and graph.mask(node) == everyone:
            (output,) = pending[node]
            # Of what the operation uses, the first in the order is not reached through anything else.
            below = [GradientEdge(child, n) for child, n in node.next_functions if child in place]
            if below:
                first = min(below, key=lambda edge: place[edge.node])
                found.append(Segment(leaves, GradientEdge(node, output), first))
                leaves, count = set(), 0
        count += 1
        pending.pop(node, None)
        for child, number in node.next_functions:
            if child is None:
                continue
            if child not in twigs:
                pending.setdefault(child, set()).add(number)
            elif not _take_twig(child, leaves, seen, len(found)):
                return [_whole(graph)]
    found.append(Segment(leaves, None, None))
    return found if len(found) > 1 else [_whole(graph)]


def _whole(graph: Graph) -> Segment:
    return Segment({id(leaf) for leaf in graph.leaves}, None, None)


def _twigs(graph: Graph) -> set[Node]:
    """Return the operations below which the graph is small."""
    sizes: dict[Node, int] = {}
    for node in graph.nodes:  # everything a node uses comes before it
        size = 1
        for child, _ in node.next_functions:
            if child is not None:
                size += sizes.get(child, _TWIG)
        if size <= _TWIG:
            sizes[node] = size
    return set(sizes)


def _take_twig(twig: Node, leaves: set[int], seen: dict[Node, int], segment: int) -> bool:
    """Add the leaves below a twig to a segment. Return False if an earlier segment uses it, too.

    A pass of the earlier one would not end before such a leaf's gradient is complete.
    """
    waiting = [twig]
    while waiting:
        node = waiting.pop()
        if seen.setdefault(node, segment) != segment:
            return False
        if node.name() == LEAF:
            leaves.add(id(node.variable))  # type: ignore[attr-defined]
        waiting += [child for child, _ in node.next_functions if child is not None]
    return True
