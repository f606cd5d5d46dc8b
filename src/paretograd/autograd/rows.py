"""Gradients of all objectives at once, or one after the other where an operation cannot be batched.

No pass frees the graph: a pass that fails is repeated in another way, and what went wrong in one that did not give
finite numbers is found by passes of single losses. `release` frees it in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from paretograd.autograd.source import Losses, Source

Inputs = Sequence[Tensor | GradientEdge]

#: The nesting level of the only vmap that a batched backward pass runs under.
_LEVEL = 1

#: Graphs, by the names of their operations, whose batched backward pass failed: not tried again.
_UNBATCHABLE: set[frozenset[str]] = set()


def gradient_rows(
    source: Source, inputs: Inputs, operations: frozenset[str], chunk: int | None = None
) -> list[Tensor | None]:
    """The gradient of every loss by every input: one tensor ``(m, *input)`` each, None if unreached.

    Args:
        source: where to start.
        inputs: parameters, or outputs of operations.
        operations: names of the operations in the graph, by which it is known again.
        chunk: how many losses at a time; None for all, 1 for one after the other.
    """
    m = len(source.seeds[0])
    if not inputs:
        return []
    if m > 1 and chunk != 1 and operations not in _UNBATCHABLE:
        try:
            return _batched(source, inputs, chunk or m)
        except RuntimeError:  # no batching rule for some operation, or no memory for it
            found = _one_by_one(source, inputs)
            _UNBATCHABLE.add(operations)  # as it can be done in this way, it was the batching
            return found
    return _one_by_one(source, inputs)


def streamed_rows(
    source: Source,
    inputs: Inputs,
    consumers: Mapping[Node, Callable[[Tensor], None]],
    operations: frozenset[str],
    exclude: Container[Node],
) -> list[Tensor | None] | None:
    """As `gradient_rows`, with the gradients of some outputs handed to consumers on the way, and not kept.

    Args:
        source: where to start.
        inputs: what to return the gradients of.
        consumers: for an operation, what takes the gradients ``(m, *output)`` of its output.
        operations: names of the operations in the graph.
        exclude: operations that the pass ends at, whose outputs are among the inputs.

    Returns:
        the gradients of the inputs, or None where the pass cannot be batched.
    """
    m = len(source.seeds[0])
    if m == 1 or operations in _UNBATCHABLE:
        return None

    def hand_over(consume: Callable[[Tensor], None]) -> Callable[[tuple[Tensor, ...]], None]:
        def hook(grads: tuple[Tensor, ...]) -> None:
            if grads[0] is not None:
                consume(torch._remove_batch_dim(grads[0], _LEVEL, m, 0))

        return hook

    handles = [node.register_prehook(hand_over(use)) for node, use in consumers.items() if node not in exclude]
    try:
        return _batched(source, inputs, m)
    except RuntimeError:
        return None
    finally:
        for handle in handles:
            handle.remove()


def weighted_gradients(losses: Losses, params: Sequence[Tensor], weights: Tensor) -> list[Tensor | None]:
    """The gradient of ``sum_k w_k f_k`` by each parameter, in one plain pass; None where there is none."""
    outputs, seeds = _seeded(losses, weights)
    return list(torch.autograd.grad(outputs, list(params), seeds, retain_graph=True, allow_unused=True))


def not_finite(losses: Losses, inputs: Inputs) -> list[int]:
    """The losses whose own gradients hold NaN or infinity, by a pass for each.

    In a batched pass, a loss with an infinite slope gives NaN to all others: zero times infinity.
    """
    bad = []
    for k in range(len(losses)):
        grads = gradients_of_one(losses, k, inputs)
        if not all(grad is None or bool(torch.isfinite(_dense(grad)).all()) for grad in grads):
            bad.append(k)
    return bad


def release(losses: Losses, params: Sequence[Tensor]) -> None:
    """Free what the graph saved, as a backward pass does that need not be repeated.

    Torch frees it while a pass goes through, so one is made that carries no gradient, and so computes nothing.
    """
    items = [losses] if isinstance(losses, Tensor) else list(losses)
    nodes = {get_gradient_edge(loss).node for loss in items}
    handles = [node.register_prehook(_nothing) for node in nodes]
    try:
        torch.autograd.grad(items, list(params), items, allow_unused=True)  # any gradients do: they are dropped at once
    finally:
        for handle in handles:
            handle.remove()


def _nothing(grads: tuple[Tensor, ...]) -> tuple[None, ...]:
    return (None,) * len(grads)


def _batched(source: Source, inputs: Inputs, chunk: int) -> list[Tensor | None]:
    parts = []
    for start in range(0, len(source.seeds[0]), chunk):
        seeds = [seed[start : start + chunk] for seed in source.seeds]
        parts.append(
            torch.autograd.grad(
                _either(source.outputs),
                _either(inputs),
                seeds,
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
            )
        )
    return list(parts[0]) if len(parts) == 1 else [_joined(rows) for rows in zip(*parts, strict=True)]


def _seeded(losses: Losses, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The losses as outputs, and weights of shape ``(..., m)`` as their gradients."""
    if isinstance(losses, Tensor):
        return [losses], [weights.to(losses)]
    columns = [weights[..., k].to(loss).reshape((*weights.shape[:-1], *loss.shape)) for k, loss in enumerate(losses)]
    return list(losses), columns


def _joined(rows: Sequence[Tensor | None]) -> Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.cat(present) if present else None


def _one_by_one(source: Source, inputs: Inputs) -> list[Tensor | None]:
    m = len(source.seeds[0])
    rows: dict[int, Tensor] = {}
    for k in range(m):
        # An output that this loss does not depend on is left out, and with it all that lies below it alone.
        used = [i for i, seed in enumerate(source.seeds) if bool(seed[k].any())]
        if not used:
            continue
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            _either([source.outputs[i] for i in used]),
            _either(inputs),
            [source.seeds[i][k] for i in used],
            retain_graph=True,
            allow_unused=True,
        )
        for i, grad in enumerate(grads):
            if grad is None:
                continue
            dense = _dense(grad)
            if i not in rows:
                rows[i] = dense.new_zeros((m, *dense.shape))
            rows[i][k] = dense
    return [rows.get(i) for i in range(len(inputs))]


def gradients_of_one(losses: Losses, k: int, inputs: Inputs) -> Sequence[Tensor | None]:
    """The gradient of one loss."""
    if isinstance(losses, Tensor):
        output, seed = losses, torch.zeros_like(losses)
        seed[k] = 1.0
    else:
        output, seed = losses[k], torch.ones_like(losses[k])
    return torch.autograd.grad(output, _either(inputs), seed, retain_graph=True, allow_unused=True)


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _either(inputs: Inputs) -> Sequence[Tensor]:
    """Torch takes parameters and edges side by side; its annotations know the one or the other only."""
    return inputs  # type: ignore[return-value]
