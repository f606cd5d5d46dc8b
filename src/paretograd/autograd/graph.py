"""`Graph`: the parameters that each loss reaches in torch's graph, and the operations that use them.

Losses that were joined to a vector count as separate: they start before the joining, even if the vector was then scaled
or otherwise changed entry by entry, and even if they were taken out of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from paretograd.errors import ParameterError

LEAF = "torch::autograd::AccumulateGrad"

_CAST = "ToCopyBackward0"

#: Operations that only pass a parameter on: its transpose, and its copy in another precision under autocast.
PASSING = frozenset({"TBackward0", _CAST})

#: Nodes that pass each input on unchanged. Wrappers for several processes put them around a module. For torch, every
#: output of such a node depends on every input.
HANDING_ON = frozenset({"_DDPSinkBackward", "RegisterPostBackwardFunctionBackward"})

#: The node of a model under `torch.compile`. For torch, all its outputs depend on all its inputs.
COMPILED = "CompiledFunctionBackward"

#: Operations whose output has the shape of an input and depends entry by entry on it. Those on the last line change
#: shapes in general; if they do not, they change nothing.
_POINTWISE = frozenset(
    f"{name}Backward{number}"
    for number in range(3)
    for name in (
        *("Mul", "Div", "Add", "Sub", "Rsub", "Neg", "Addcmul", "Addcdiv", "Lerp", "ToCopy", "Clone", "Where"),
        *("Pow", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Exp2", "Expm1", "Log", "Log1P", "Log2", "Log10"),
        *("Clamp", "ClampMin", "ClampMax", "Maximum", "Minimum", "NanToNum", "MaskedFill", "Abs", "Relu"),
        *("Sigmoid", "LogSigmoid", "Softplus", "Tanh"),
        *("View", "Alias", "Expand", "Squeeze"),
    )
)

#: Operations that are looked at for packed tensors if all would take too long.
_LOOKED_AT = 16

Losses = Sequence[Tensor] | Tensor
Edge = tuple[Node | None, int]
Root = tuple[Node, int]

#: Attributes in which each type of node keeps its saved tensors.
_SAVED: WeakKeyDictionary[type, list[str]] = WeakKeyDictionary()


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
        edges: for each of them, what it uses: operations, and the numbers of their outputs.
        roots: those at which the losses start.
        leaves: tensors without an operation that a loss reaches, in order of discovery.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        operations: names of all operations in the graph.
        signature: hash of the names of all nodes in order, the same for all graphs of one kind.
    """

    def __init__(self, losses: Losses, skipped: frozenset[str] = frozenset()) -> None:
        """Traverse the graph.

        Args:
            losses: scalars, or a vector of them.
            skipped: names of nodes that pass their inputs on and are skipped.
        """
        roots = _roots_of(losses, skipped)
        order, edges, self._reused = _edges_below([node for node, _ in roots], skipped)
        self.nodes, self.edges = order, edges
        masks = dict.fromkeys(order, 0)
        for node, bits in roots:
            masks[node] |= bits
        self.leaves: list[Tensor] = []
        self.reached_by: dict[int, int] = {}
        self._leaf_nodes: dict[int, Node] = {}
        names = [node.name() for node in reversed(order)]
        for node, name in zip(reversed(order), names, strict=True):  # every user before what it uses
            mask = masks[node]
            if name == LEAF:
                leaf: Tensor = node.variable  # type: ignore[attr-defined]
                self.leaves.append(leaf)
                self.reached_by[id(leaf)] = mask
                self._leaf_nodes[id(leaf)] = node
            for child, _ in edges[node]:
                if child is not None:
                    masks[child] |= mask
        self.operations, self.signature = frozenset(names), hash(tuple(names))
        self._masks, self.roots = masks, [node for node, _ in roots]

    @cached_property
    def _users(self) -> dict[Node, list[tuple[Node, int]]]:
        users: dict[Node, list[tuple[Node, int]]] = {node: [] for node in self.nodes}
        for node in reversed(self.nodes):
            for position, (child, _) in enumerate(self.edges[node]):
                if child is not None:
                    users[child].append((node, position))
        return users

    @cached_property
    def casts(self) -> dict[int, GradientEdge]:
        """The copies in half precision that autocast made of parameters, by the ``id`` of those with no other use.

        The gradient of such a parameter is that of the copy, in a longer dtype: the same numbers in twice the memory.
        """
        found: dict[int, GradientEdge] = {}
        if _CAST not in self.operations:
            return found
        leaves: dict[Node | None, Tensor] = {
            node: leaf
            for leaf, node in zip(self.leaves, self._leaf_nodes.values(), strict=True)
            if leaf.dtype is torch.float32 and node not in self._reused
        }
        for node, edges in self.edges.items():
            if len(edges) == 1 and edges[0][0] in leaves and node.name() == _CAST:
                leaf, about = leaves[edges[0][0]], node._input_metadata[0]
                if about.dtype in (torch.bfloat16, torch.float16) and about.device == leaf.device:
                    found[id(leaf)] = GradientEdge(node, 0)
        return found

    @cached_property
    def shared_losses(self) -> int:
        """A bit for every loss with an operation that a later loss uses, too. The graphs of the others can be freed."""
        found, most = 0, (1 << (max(self._masks.values()).bit_length() - 1)) - 1
        for node, mask in self._masks.items():
            if mask & (mask - 1) and node.name() != LEAF:
                found |= mask & ~(1 << (mask.bit_length() - 1))
                if found == most:
                    break
        return found

    @cached_property
    def joins(self) -> bool:
        """True if some operations come after losses were joined to a vector. All losses use them."""
        return 0 in self._masks.values()

    @cached_property
    def is_packed(self) -> bool:
        """True if some saved tensors are packed by hooks, as a checkpoint does; reading them may compute them anew."""
        return _any_packed(self.nodes)

    @cached_property
    def looks_packed(self) -> bool:
        """True if saved tensors of a few operations are packed. This is quicker, and misses a small packed part."""
        return _any_packed(self.nodes[:: len(self.nodes) // _LOOKED_AT + 1])

    def mask(self, node: Node) -> int:
        """Return a bit for every loss that reaches an operation."""
        return self._masks[node]

    @property
    def repetition(self) -> float:
        """Number of operations that one pass for each loss visits, relative to the number of operations."""
        return sum(mask.bit_count() for mask in self._masks.values()) / max(len(self._masks), 1)

    def uses(self, leaf: Tensor) -> list[Use]:
        """Return the operations that use a parameter."""
        found, waiting = [], [(self._leaf_nodes[id(leaf)], False)]
        while waiting:
            node, transposed = waiting.pop()
            for user, position in self._users[node]:
                name = user.name()
                if name in PASSING:
                    waiting.append((user, transposed ^ (name == "TBackward0")))
                else:
                    found.append(Use(user, position, transposed))
        return found

    def use(self, leaf: Tensor) -> Use | None:
        """Return the only operation that uses a parameter; None if there is not exactly one."""
        found = self.uses(leaf)
        return found[0] if len(found) == 1 else None

    @cached_property
    def compiled(self) -> set[int]:
        """The ids of the leaves that compiled models use."""
        reached: set[Node] = set()
        for node in reversed(self.nodes) if COMPILED in self.operations else ():  # every user before what it uses
            if node in reached or node.name() == COMPILED:
                reached |= {child for child, _ in self.edges[node] if child is not None}
        return {key for key, node in self._leaf_nodes.items() if node in reached}

    def borders(self) -> dict[Node, tuple[int, list[tuple[int, GradientEdge]]]] | None:
        """Return the borders of the losses' own parts: operations of a single loss that use outputs of shared ones.

        Returns:
            for each of them the number of its loss and, by position, the shared outputs that it uses; None if the
            losses have no parts of their own, or share more than operations.
        """
        found: dict[Node, tuple[int, list[tuple[int, GradientEdge]]]] = {}
        if any(self._masks[root].bit_count() > 1 for root in self.roots):
            return None
        for node in self.nodes:
            if self._masks[node].bit_count() != 1:
                continue
            shared = [
                (position, GradientEdge(child, number))
                for position, (child, number) in enumerate(self.edges[node])
                if child is not None and self._masks[child].bit_count() > 1
            ]
            if any(edge.node.name() == LEAF for _, edge in shared):
                return None
            if shared:
                found[node] = (self._masks[node].bit_length() - 1, shared)
        return found or None

    def sinks(self, nodes: Sequence[Node]) -> set[Node]:
        """Return the nodes from which none of the other given nodes is reachable."""
        wanted = set(nodes)
        above = set()  # nodes from which another wanted node is reachable
        for node in self.nodes:  # everything a node uses comes before it
            if any(child in above or child in wanted for child, _ in self.edges[node]):
                above.add(node)
        return wanted - above


def _any_packed(nodes: Iterable[Node]) -> bool:
    return any(getattr(saved, "unpack_hook", None) is not None for node in nodes for saved in saved_tensors(node))


def below(node: Node, skipped: frozenset[str]) -> Sequence[Edge]:
    """Return the edges to what a node uses, looking through skipped nodes."""
    edges = node.next_functions
    return edges if not skipped else [_through(child, number, skipped) for child, number in edges]


def _through(node: Node | None, number: int, skipped: frozenset[str]) -> Edge:
    """Follow an output through skipped nodes to the one that computed it."""
    while node is not None and node.name() in skipped:
        node, number = node.next_functions[number]
    return node, number


def _edges_below(
    roots: Sequence[Node], skipped: frozenset[str]
) -> tuple[list[Node], dict[Node, Sequence[Edge]], set[Node | None]]:
    """Return all nodes, each after everything it uses; the edges from each to what it uses; those used repeatedly."""
    order: list[Node] = []
    edges: dict[Node, Sequence[Edge]] = {}
    reused: set[Node | None] = set()
    stack: list[Node | tuple[Node]] = list(reversed(roots))
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):  # everything it uses is there
            order.append(node[0])
            continue
        if node in edges:
            reused.add(node)
            continue
        found = edges[node] = below(node, skipped) if skipped else node.next_functions
        stack.append((node,))
        for child, _ in reversed(found):
            if child in edges:
                reused.add(child)
            elif child is not None:
                stack.append(child)
    return order, edges, reused


def release(nodes: Iterable[Node]) -> None:
    """Free the saved tensors of a graph, as a backward pass without ``retain_graph`` does.

    Torch frees them only in a pass, which would call users' hooks. So they are packed into nothing instead. Tensors
    that were already packed, for instance by a checkpoint, are freed with the graph.
    """
    for node in nodes:
        for saved in saved_tensors(node):
            with suppress(RuntimeError):  # nothing saved, or already packed
                saved.register_hooks(_nothing, _freed)


def saved_tensors(node: Node) -> Iterator[Any]:
    """Yield what torch saved for a node, without unpacking it."""
    kind = type(node)
    if kind not in _SAVED:
        _SAVED[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
    for name in _SAVED[kind]:
        with suppress(RuntimeError):  # already freed
            saved = getattr(node, name)
            yield from saved if isinstance(saved, tuple | list) else (saved,)


def _nothing(_: Tensor) -> None:
    return None


def _freed(_: None) -> Tensor:
    raise RuntimeError(
        "Trying to backward through the graph a second time, after paretograd.backward freed what it saved. Specify "
        "retain_graph=True there if you need to"
    )


# ---- losses that were joined to a vector -----------------------------------------------------------------------------


def starts_of(losses: Losses) -> list[tuple[Tensor | GradientEdge, Tensor]]:
    """Return where the backward pass of each loss starts, and the gradient to start with.

    A loss that was joined to a vector starts before the joining, so that its pass visits no other loss.
    """
    if isinstance(losses, Tensor):
        if not losses._backward_hooks:
            parts = _joined(*_start(losses, frozenset()), losses.shape, frozenset())
            if parts is not None and all(node is not None for node, _ in parts):
                return [_edge_start(node, number) for node, number in parts]
        eye = torch.eye(len(losses), dtype=losses.dtype, device=losses.device)
        return [(losses, seed) for seed in eye]
    return [_start_of_one(loss) for loss in losses]


def _start_of_one(loss: Tensor) -> tuple[Tensor | GradientEdge, Tensor]:
    if loss.grad_fn is not None and not loss._backward_hooks:
        entry = _entry(loss.grad_fn, loss.output_nr, frozenset())
        if entry is not None:
            (vector, number), index = entry
            assert vector is not None
            parts = _joined(vector, number, _shape(vector, number), frozenset())
            if parts is not None and parts[index][0] is not None:
                return _edge_start(*parts[index])
    return loss, torch.ones_like(loss)


def _edge_start(node: Any, number: int) -> tuple[GradientEdge, Tensor]:
    about = node._input_metadata[number]
    return GradientEdge(node, number), torch.ones(tuple(about.shape), dtype=about.dtype, device=about.device)


def _roots_of(losses: Losses, skipped: frozenset[str]) -> list[Root]:
    """Return the nodes at which the losses start, each with the bits of its losses."""
    if isinstance(losses, Tensor):
        start = _start(losses, skipped)
        apart = _apart(start, {k: 1 << k for k in range(len(losses))}, skipped)
        return apart or [(start[0], (1 << len(losses)) - 1)]
    found: list[Root] = []
    entries: dict[Edge, dict[int, int]] = {}  # of vectors, the bits of their losses
    takers: dict[Edge, list[Root]] = {}
    for k, loss in enumerate(losses):
        node, number = _start(loss, skipped)
        entry = _entry(node, number, skipped)
        if entry is None:
            found.append((node, 1 << k))
            continue
        vector, index = entry
        bits = entries.setdefault(vector, {})
        bits[index] = bits.get(index, 0) | 1 << k
        takers.setdefault(vector, []).append((node, 1 << k))
    for vector, bits in entries.items():
        apart = _apart(vector, bits, skipped)
        found += takers[vector] if apart is None else [*((node, 0) for node, _ in takers[vector]), *apart]
    return found


def _start(loss: Tensor, skipped: frozenset[str]) -> tuple[Node, int]:
    edge = get_gradient_edge(loss)
    node, number = _through(edge.node, edge.output_nr, skipped)
    return (edge.node, edge.output_nr) if node is None else (node, number)


def _shape(node: Any, number: int) -> tuple[int, ...]:
    return tuple(node._input_metadata[number].shape)


def _is_first(dim: int, shape: Sequence[int]) -> bool:
    """Return True if a dimension is the first; torch stores negative ones as unsigned numbers."""
    return len(shape) > 0 and dim in (0, 2**64 - len(shape))


def _entry(node: Any, number: int, skipped: frozenset[str]) -> tuple[Edge, int] | None:
    """Return the tensor of which an output is an entry along the first dimension, and the index; None if it is not."""
    name = node.name()
    if name not in ("UnbindBackward0", "SelectBackward0"):
        return None
    vector, output = below(node, skipped)[0]
    if vector is None:
        return None
    shape = _shape(vector, output)
    if not _is_first(node._saved_dim, shape):
        return None
    count = shape[0]
    index = number if name == "UnbindBackward0" else node._saved_index
    if index >= count:  # a negative index, stored as an unsigned number
        index += count - 2**64
    return (vector, output), index


def _apart(start: Edge, bits: Mapping[int, int], skipped: frozenset[str]) -> list[Root] | None:
    """Return the nodes at which the entries of a tensor, along its first dimension, start.

    Args:
        start: the tensor.
        bits: the bits of the entries that are losses, by index.
        skipped: names of nodes that are skipped.

    Returns:
        nodes with the bits that start there, 0 for pass-through nodes; None if no entries were joined.
    """
    shape, everyone = _shape(*start), 0
    for bit in bits.values():
        everyone |= bit
    found: list[Root] = []
    joined, waiting, seen = False, [start], {start}
    while waiting:
        node, number = waiting.pop()
        if node is None:
            continue
        alike = _shape(node, number) == shape
        parts = _joined(node, number, shape, skipped) if alike else None
        if parts is not None:
            joined = True
            found += [(node, 0)]
            found += [(part, bits[k]) for k, (part, _) in enumerate(parts) if part is not None and k in bits]
        elif alike and node.name() in _POINTWISE:
            found.append((node, 0))
            new = [edge for edge in below(node, skipped) if edge not in seen]
            seen.update(new)
            waiting += new
        else:  # another shape or an unknown operation: every entry may depend on it
            found.append((node, everyone))
    return found if joined else None


def _joined(node: Any, number: int, shape: Sequence[int], skipped: frozenset[str]) -> list[Edge] | None:
    """Return the entries that a node joins along the first dimension, or None. An entry may have no graph."""
    name = node.name()
    if number or name not in ("StackBackward0", "CatBackward0") or not _is_first(node._saved_dim, shape):
        return None
    edges = list(below(node, skipped))
    if len(edges) != shape[0]:
        return None
    if name == "CatBackward0" and any(part is None or _shape(part, number)[0] != 1 for part, number in edges):
        return None
    return edges


def check_visible(graph: Graph) -> None:
    """Raise if torch's reentrant checkpoint hides parameters, which would be omitted silently."""
    if "CheckpointFunctionBackward" in graph.operations:
        raise ParameterError(
            "the losses were computed through torch.utils.checkpoint with use_reentrant=True, which hides its "
            "parameters; pass use_reentrant=False there"
        )
