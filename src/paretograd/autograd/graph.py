"""`Graph`: the parameters that each loss reaches in torch's graph, and the operations that use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

_LEAF = "torch::autograd::AccumulateGrad"

#: Operations that only pass a parameter on: its transpose, and its copy in another precision under autocast.
_PASSING = frozenset({"TBackward0", "ToCopyBackward0"})

#: Nodes that pass each input on unchanged. Wrappers for several processes put them around a module. For torch, every
#: output of such a node depends on every input.
HANDING_ON = frozenset({"_DDPSinkBackward", "RegisterPostBackwardFunctionBackward"})

Edge = tuple[Node | None, int]


class Use(NamedTuple):
    """Use of a parameter in the computation.

    Attributes:
        node: the operation.
        position: index of the parameter among its inputs.
        transposed: True if it enters transposed.
    """

    node: Node
    position: int
    transposed: bool


class Graph:
    """The graph below some losses.

    Attributes:
        nodes: its operations, each after everything it uses.
        leaves: parameters that a loss reaches, in order of discovery.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        operations: names of all operations in the graph.
    """

    def __init__(self, roots: Sequence[tuple[Node, int]], skipped: frozenset[str] = frozenset()) -> None:
        """Traverse the graph.

        Args:
            roots: nodes, each with a bit for every loss that starts at it.
            skipped: names of nodes that pass their inputs on and are skipped.
        """
        self._skipped = skipped
        self.nodes = order = _postorder([node for node, _ in roots], skipped)
        masks = dict.fromkeys(order, 0)
        for node, bits in roots:
            masks[node] |= bits
        self._users: dict[Node, list[tuple[Node, int]]] = {node: [] for node in order}
        self.leaves: list[Tensor] = []
        self.reached_by: dict[int, int] = {}
        self._leaf_nodes: dict[int, Node] = {}
        names = set()
        for node in reversed(order):  # every user before what it uses
            name = node.name()
            names.add(name)
            if name == _LEAF:
                leaf: Tensor = node.variable  # type: ignore[attr-defined]
                self.leaves.append(leaf)
                self.reached_by[id(leaf)] = masks[node]
                self._leaf_nodes[id(leaf)] = node
            for position, (child, _) in enumerate(below(node, skipped) if skipped else node.next_functions):
                if child is not None:
                    masks[child] |= masks[node]
                    self._users[child].append((node, position))
        self.operations = frozenset(names)
        self._masks, self._roots = masks, [node for node, _ in roots]

    def use(self, leaf: Tensor) -> Use | None:
        """Return the only operation that uses a parameter; None if there is not exactly one."""
        node, transposed = self._leaf_nodes[id(leaf)], False
        while True:
            users = self._users[node]
            if len(users) != 1:
                return None
            user, position = users[0]
            name = user.name()
            if name not in _PASSING:
                return Use(user, position, transposed)
            transposed ^= name == "TBackward0"
            node = user

    def borders(self) -> dict[Node, tuple[int, list[tuple[int, GradientEdge]]]] | None:
        """Return the borders of the losses' own parts: operations of a single loss that use outputs of shared ones.

        Returns:
            for each of them the number of its loss and, by position, the shared outputs that it uses; None if the
            losses have no parts of their own, or share more than operations.
        """
        found: dict[Node, tuple[int, list[tuple[int, GradientEdge]]]] = {}
        if any(self._masks[root].bit_count() > 1 for root in self._roots):
            return None
        for node in self.nodes:
            if self._masks[node].bit_count() != 1:
                continue
            shared = [
                (position, GradientEdge(child, number))
                for position, (child, number) in enumerate(below(node, self._skipped))
                if child is not None and self._masks[child].bit_count() > 1
            ]
            if any(edge.node.name() == _LEAF for _, edge in shared):
                return None
            if shared:
                found[node] = (self._masks[node].bit_length() - 1, shared)
        return found or None

    def sinks(self, nodes: Sequence[Node]) -> set[Node]:
        """Return the nodes from which none of the other given nodes is reachable."""
        wanted = set(nodes)
        above = set()  # nodes from which another wanted node is reachable
        for node in self.nodes:  # everything a node uses comes before it
            if any(child in above or child in wanted for child, _ in below(node, self._skipped)):
                above.add(node)
        return wanted - above


def below(node: Node, skipped: frozenset[str]) -> Sequence[Edge]:
    """Return the edges to what a node uses, looking through skipped nodes."""
    edges = node.next_functions
    return edges if not skipped else [through(child, number, skipped) for child, number in edges]


def through(node: Node | None, number: int, skipped: frozenset[str]) -> Edge:
    """Follow an output through skipped nodes to the one that computed it."""
    while node is not None and node.name() in skipped:
        node, number = node.next_functions[number]
    return node, number


def _postorder(roots: Sequence[Node], skipped: frozenset[str]) -> list[Node]:
    """Return all nodes, each after everything it uses."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(below(root, skipped)))]
        while stack:
            node, children = stack[-1]
            for child, _ in children:
                if child is not None and child not in seen:
                    seen.add(child)
                    stack.append((child, iter(below(child, skipped) if skipped else child.next_functions)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order
