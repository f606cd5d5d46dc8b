"""Reading torch's graph: which parameter each loss reaches, and in which operation each parameter is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

_LEAF = "torch::autograd::AccumulateGrad"

#: Operations that make a vector of scalars.
_JOINING = frozenset({"StackBackward0", "CatBackward0"})

#: Operations that only hand a parameter on: its transpose, and its copy in another precision under autocast.
_PASSING = frozenset({"TBackward0", "ToCopyBackward0"})


#: Nodes that hand each of their inputs on as it is: what wrappers for several processes put around a module. To torch
#: every output of such a node depends on every input.
HANDING_ON = frozenset({"_DDPSinkBackward", "RegisterPostBackwardFunctionBackward"})

Edge = tuple[Node | None, int]


class Use(NamedTuple):
    """Where a parameter enters the computation.

    Attributes:
        node: the operation.
        position: which of its inputs the parameter is.
        transposed: whether it enters transposed.
    """

    node: Node
    position: int
    transposed: bool


class Graph:
    """The graph below some losses.

    Attributes:
        nodes: its operations, each after everything it uses.
        leaves: parameters that a loss reaches, in the order in which they were found.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        operations: names of all operations in the graph.
    """

    def __init__(self, roots: Sequence[tuple[Node, int]], skipped: frozenset[str] = frozenset()) -> None:
        """Walk the graph.

        Args:
            roots: nodes, each with a bit for every loss that starts at it.
            skipped: names of nodes that hand their inputs on, and are not seen.
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
            for position, (child, _) in enumerate(_below(node, skipped) if skipped else node.next_functions):
                if child is not None:
                    masks[child] |= masks[node]
                    self._users[child].append((node, position))
        self.operations = frozenset(names)
        self._masks, self._roots = masks, [node for node, _ in roots]

    def use(self, leaf: Tensor) -> Use | None:
        """The one operation that uses a parameter; None if there are several, or if it is used in another way."""
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
        """Operations that one loss alone reaches, above some that several reach: where the losses' own parts end.

        Returns:
            for each of them the number of its loss and, by position, the outputs of the others that it uses; None
            where the losses have no such parts, or share more than operations.
        """
        found: dict[Node, tuple[int, list[tuple[int, GradientEdge]]]] = {}
        if any(self._masks[root].bit_count() > 1 for root in self._roots):
            return None
        for node in self.nodes:
            if self._masks[node].bit_count() != 1:
                continue
            below = [
                (position, GradientEdge(child, number))
                for position, (child, number) in enumerate(_below(node, self._skipped))
                if child is not None and self._masks[child].bit_count() > 1
            ]
            if any(edge.node.name() == _LEAF for _, edge in below):
                return None
            if below:
                found[node] = (self._masks[node].bit_length() - 1, below)
        return found or None

    def sinks(self, nodes: Sequence[Node]) -> set[Node]:
        """Those of the nodes from which none of the others is reached."""
        wanted = set(nodes)
        above = set()  # nodes from which a wanted one is reached, itself aside
        for node in self.nodes:  # everything a node uses comes before it
            if any(child in above or child in wanted for child, _ in _below(node, self._skipped)):
                above.add(node)
        return wanted - above


def _below(node: Node, skipped: frozenset[str]) -> Sequence[Edge]:
    """What a node uses, seen through those that are skipped."""
    edges = node.next_functions
    return edges if not skipped else [_through(child, number, skipped) for child, number in edges]


def _through(node: Node | None, number: int, skipped: frozenset[str]) -> Edge:
    while node is not None and node.name() in skipped:
        node, number = node.next_functions[number]
    return node, number


def roots_of(losses: Sequence[Tensor] | Tensor, skipped: frozenset[str] = frozenset()) -> list[tuple[Node, int]]:
    """The nodes at which the losses start, each with the bits of its losses.

    Losses that were joined to a vector, and perhaps taken out of it again, start where they were before.
    """
    if not isinstance(losses, Tensor):
        found = []
        for k, loss in enumerate(losses):
            edge = get_gradient_edge(loss)
            node, number = _through(edge.node, edge.output_nr, skipped)
            passed, start = _before_vector(node, number, skipped)
            found += [*((node, 0) for node in passed), (start, 1 << k)]
        return found
    edge = get_gradient_edge(losses)
    node = _through(edge.node, edge.output_nr, skipped)[0] or edge.node
    inputs = [child for child, _ in _below(node, skipped) if child is not None]
    if node.name() in _JOINING and len(inputs) == len(losses):
        return [(node, 0), *((child, 1 << k) for k, child in enumerate(inputs))]
    return [(node, (1 << len(losses)) - 1)]


def _before_vector(node: Any, number: int, skipped: frozenset[str]) -> tuple[list[Node], Node]:
    """Where a scalar was computed that is an entry of a stack of scalars, and what lies between; itself otherwise."""
    name = node.name()
    if name not in ("UnbindBackward0", "SelectBackward0"):
        return [], node
    stack = node.next_functions[0][0]
    if stack is None or stack.name() != "StackBackward0":
        return [], node
    entries = _below(stack, skipped)
    index = number if name == "UnbindBackward0" else node._saved_index
    if index >= len(entries):  # counted from the end, as an unsigned number
        index += len(entries) - 2**64
    entry = entries[index][0] if 0 <= index < len(entries) else None
    if entry is None or node._saved_dim != 0 or stack._saved_dim != 0:
        return [], node
    return [node, stack], entry


def _postorder(roots: Sequence[Node], skipped: frozenset[str]) -> list[Node]:
    """All nodes, each after everything it uses."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(_below(root, skipped)))]
        while stack:
            node, children = stack[-1]
            for child, _ in children:
                if child is not None and child not in seen:
                    seen.add(child)
                    stack.append((child, iter(_below(child, skipped) if skipped else child.next_functions)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order
