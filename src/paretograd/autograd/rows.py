"""Gradients of all objectives at once, or one after the other where an operation cannot be batched."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

#: The nesting level of the only vmap that a batched backward pass runs under.
_LEVEL = 1

#: Graphs, by the names of their operations, whose batched backward pass succeeded or failed.
_BATCHABLE: dict[frozenset[str], bool] = {}


def gradient_rows(
    losses: Sequence[Tensor] | Tensor,
    inputs: Sequence[Tensor | GradientEdge],
    operations: frozenset[str],
    *,
    retain_graph: bool,
    chunk: int | None = None,
) -> list[Tensor | None]:
    """The gradient of every loss with respect to every input: one tensor ``(m, *input)`` each, None if unreached.

    Args:
        losses: m scalars, or a vector of them.
        inputs: parameters, or outputs of operations.
        operations: names of the operations in the graph, by which it is known again.
        retain_graph: keep the graph for another backward pass.
        chunk: how many losses at a time; None for all, 1 for one after the other.
    """
    m = len(losses)
    if not inputs:
        return []
    known = _BATCHABLE.get(operations)
    if m > 1 and chunk != 1 and known is not False:
        try:
            # A pass that fails half-way must not have freed what the loop below needs.
            found = _batched(losses, inputs, chunk or m, retain_graph or known is None)
        except RuntimeError:  # no batching rule for some operation, or no memory for it
            _BATCHABLE[operations] = False
        else:
            _BATCHABLE[operations] = True
            return found
    return _one_by_one(losses, inputs, retain_graph)


def streamed_rows(
    losses: Sequence[Tensor] | Tensor,
    inputs: Sequence[Tensor | GradientEdge],
    consumers: Mapping[Node, Callable[[Tensor], None]],
    operations: frozenset[str],
    exclude: Container[Node],
) -> list[Tensor | None] | None:
    """As `gradient_rows`, with the gradients of some outputs handed to consumers on the way, and not kept.

    Args:
        losses: m scalars, or a vector of them.
        inputs: what to return the gradients of.
        consumers: for an operation, what takes the gradients ``(m, *output)`` of its output.
        operations: names of the operations in the graph.
        exclude: operations that the pass ends at, whose outputs are among the inputs.

    Returns:
        the gradients of the inputs, or None where the pass cannot be batched. The graph is kept.
    """
    m = len(losses)
    if m == 1 or _BATCHABLE.get(operations) is False:
        return None

    def hand_over(consume: Callable[[Tensor], None]) -> Callable[[tuple[Tensor, ...]], None]:
        def hook(grads: tuple[Tensor, ...]) -> None:
            if grads[0] is not None:
                consume(torch._remove_batch_dim(grads[0], _LEVEL, m, 0))

        return hook

    handles = [node.register_prehook(hand_over(use)) for node, use in consumers.items() if node not in exclude]
    try:
        return _batched(losses, inputs, m, retain_graph=True)
    except RuntimeError:
        _BATCHABLE[operations] = False
        return None
    finally:
        for handle in handles:
            handle.remove()


def _batched(
    losses: Sequence[Tensor] | Tensor, inputs: Sequence[Tensor | GradientEdge], chunk: int, retain_graph: bool
) -> list[Tensor | None]:
    m = len(losses)
    parts = []
    for start in range(0, m, chunk):
        stop = min(start + chunk, m)
        if isinstance(losses, Tensor):
            outputs: Sequence[Tensor] = [losses]
            seeds = [torch.eye(m, dtype=losses.dtype, device=losses.device)[start:stop]]
        else:
            outputs = losses
            eye = torch.eye(m)[start:stop]
            seeds = [eye[:, k].to(loss).reshape(-1, *loss.shape) for k, loss in enumerate(losses)]
        keep = retain_graph or stop < m
        parts.append(
            torch.autograd.grad(
                outputs, _either(inputs), seeds, retain_graph=keep, is_grads_batched=True, allow_unused=True
            )
        )
    return list(parts[0]) if len(parts) == 1 else [_joined(rows) for rows in zip(*parts, strict=True)]


def _joined(rows: Sequence[Tensor | None]) -> Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.cat(present) if present else None


def _one_by_one(
    losses: Sequence[Tensor] | Tensor, inputs: Sequence[Tensor | GradientEdge], retain_graph: bool
) -> list[Tensor | None]:
    m = len(losses)
    rows: dict[int, Tensor] = {}
    for k in range(m):
        keep = retain_graph or k < m - 1
        grads = torch.autograd.grad(losses[k], _either(inputs), retain_graph=keep, allow_unused=True)
        for i, grad in enumerate(grads):
            if grad is not None:
                rows.setdefault(i, grad.new_zeros((m, *grad.shape)))[k] = grad
    return [rows.get(i) for i in range(len(inputs))]


def _either(inputs: Sequence[Tensor | GradientEdge]) -> Sequence[Tensor]:
    """Torch takes parameters and edges side by side; its annotations know the one or the other only."""
    return inputs  # type: ignore[return-value]
