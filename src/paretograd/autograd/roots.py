"""Nodes at which losses start in torch's graph: before they were joined to a vector and changed entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from paretograd.autograd.graph import Edge, below, through

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

Root = tuple[Node, int]


def roots_of(losses: Sequence[Tensor] | Tensor, skipped: frozenset[str] = frozenset()) -> list[Root]:
    """Return the nodes at which the losses start, each with the bits of its losses.

    Losses that were joined to a vector start before the joining, even if the vector was then scaled or otherwise
    changed entry by entry, and even if they were taken out of it again.
    """
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
    node, number = through(edge.node, edge.output_nr, skipped)
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
        parts = _joined(node, shape, skipped) if alike else None
        if parts is not None:
            joined = True
            found += [(node, 0), *((part, bits[k]) for k, part in enumerate(parts) if part is not None and k in bits)]
        elif alike and node.name() in _POINTWISE:
            found.append((node, 0))
            new = [edge for edge in below(node, skipped) if edge not in seen]
            seen.update(new)
            waiting += new
        else:  # another shape or an unknown operation: every entry may depend on it
            found.append((node, everyone))
    return found if joined else None


def _joined(node: Any, shape: Sequence[int], skipped: frozenset[str]) -> list[Node | None] | None:
    """Return the entries that a node joins along the first dimension (None for one without a graph), or None."""
    name = node.name()
    if name not in ("StackBackward0", "CatBackward0") or not _is_first(node._saved_dim, shape):
        return None
    edges = below(node, skipped)
    if len(edges) != shape[0]:
        return None
    if name == "CatBackward0" and any(part is None or _shape(part, number)[0] != 1 for part, number in edges):
        return None
    return [part for part, _ in edges]
