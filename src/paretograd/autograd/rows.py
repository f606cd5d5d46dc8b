"""Gradients of all objectives at once, or one by one if an operation cannot be batched.

Only the last pass frees the graph: a pass that fails is repeated in another way, and the cause of non-finite numbers is
found by passes of single losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from paretograd.autograd.source import Losses, Source

Inputs = Sequence[Tensor | GradientEdge]

#: Graphs, identified by the names of their operations, whose batched backward pass failed. It is not tried again.
_UNBATCHABLE: set[frozenset[str]] = set()

#: Attributes in which each type of node keeps its saved tensors.
_SAVED: WeakKeyDictionary[type, list[str]] = WeakKeyDictionary()

#: Parts of the names of operations that communicate in their backward pass. In a batched pass they would send invalid
#: data without an error.
_COMMUNICATING = ("SyncBatchNorm", "c10d", "AllGatherIntoTensor", "ReduceScatterTensor", "AllToAllSingle")


def gradient_rows(
    source: Source, inputs: Inputs, operations: frozenset[str], chunk: int | None = None
) -> list[Tensor | None]:
    """Return the gradients of all losses with respect to each input: a tensor ``(m, *input)``, or None if unreached.

    Args:
        source: the start of the pass.
        inputs: parameters, or outputs of operations.
        operations: names of the operations in the graph, which identify it.
        chunk: number of losses at a time; None for all, 1 for one by one.
    """
    m = len(source.seeds[0])
    if not inputs:
        return []
    if m > 1 and chunk != 1 and can_batch(operations):
        try:
            return _batched(source, inputs, chunk or m)
        except RuntimeError:  # no batching rule for some operation, or no memory for it
            found = _one_by_one(source, inputs)
            _UNBATCHABLE.add(operations)  # one by one works, so batching was the cause
            return found
    return _one_by_one(source, inputs)


def streamed_rows(
    source: Source,
    inputs: Inputs,
    consumers: Mapping[Node, Callable[[Tensor], Tensor | None]],
    operations: frozenset[str],
) -> list[Tensor | None] | None:
    """Compute `gradient_rows`, and pass the gradients of some outputs to consumers on the way without storing them.

    Args:
        source: the start of the pass.
        inputs: parameters or outputs whose gradients are returned.
        consumers: for an operation, a function of the gradients ``(m, *output)`` of its output; it may return those of
            the first input, which torch then does not compute.
        operations: names of the operations in the graph.

    Returns:
        the gradients of the inputs, or None if the pass cannot be batched.
    """
    m = len(source.seeds[0])
    if m == 1 or not can_batch(operations):
        return None
    handles = [handle for node, consume in consumers.items() for handle in _intercept(node, consume, m)]
    try:
        return _batched(source, inputs, m)
    except RuntimeError:
        return None
    finally:
        for handle in handles:
            handle.remove()


def _intercept(node: Node, consume: Callable[[Tensor], Tensor | None], m: int) -> list[RemovableHandle]:
    """Pass the gradients that reach an operation to a consumer; if it returns some, they replace the operation's own.

    The operation itself then gets a single zero gradient, not m: torch only allows replacing what it computed.
    """
    answers: list[Tensor] = []

    def before(grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        if grads[0] is None:
            return None
        rows = unwrapped(grads[0], m)
        answer = consume(rows)
        if answer is None:
            return None
        answers.append(torch._C._functorch._add_batch_dim(answer, 0, torch._C._functorch.current_level()))
        return (rows.new_zeros(()).expand(rows.shape[1:]), *grads[1:])

    def after(found: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        return (answers.pop(), *found[1:]) if answers else None

    return [node.register_prehook(before), node.register_hook(after)]


def weighted_gradients(
    losses: Losses, params: Sequence[Tensor], weights: Tensor, *, free: bool = False
) -> list[Tensor | None]:
    """Return the gradient of ``sum_k w_k f_k`` with respect to each parameter, by one plain pass; None if unreached.

    With ``free``, the pass frees the graph, as torch's own does.
    """
    outputs, seeds = _seeded(losses, weights)
    return list(torch.autograd.grad(outputs, list(params), seeds, retain_graph=not free, allow_unused=True))


def not_finite(losses: Losses, inputs: Inputs) -> list[int]:
    """Return the losses whose own gradients hold NaN or infinity, by one pass for each.

    In a batched pass, a loss with an infinite slope makes all others NaN: zero times infinity.
    """
    bad = []
    for k in range(len(losses)):
        grads = gradients_of_one(losses, k, inputs)
        if not all(grad is None or bool(torch.isfinite(dense(grad)).all()) for grad in grads):
            bad.append(k)
    return bad


def can_batch(operations: frozenset[str]) -> bool:
    """Return True if no operation communicates and no batched pass through such a graph has failed yet."""
    return operations not in _UNBATCHABLE and not any(part in name for name in operations for part in _COMMUNICATING)


def note_unbatchable(operations: frozenset[str]) -> None:
    """Record that passes through such a graph cannot be batched."""
    _UNBATCHABLE.add(operations)


def release(nodes: Iterable[Node]) -> None:
    """Free the saved tensors of a graph, as a backward pass without ``retain_graph`` does.

    Torch frees them only in a pass, which would call users' hooks. So they are packed into nothing instead. Tensors
    that were already packed, for instance by a checkpoint, are freed with the graph.
    """
    for node in nodes:
        kind = type(node)
        if kind not in _SAVED:
            _SAVED[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        for name in _SAVED[kind]:
            with suppress(RuntimeError):  # already freed
                saved = getattr(node, name)
                for each in saved if isinstance(saved, tuple | list) else (saved,):
                    with suppress(RuntimeError):  # nothing saved, or already packed
                        each.register_hooks(_nothing, _freed)


def _nothing(_: Tensor) -> None:
    return None


def _freed(_: None) -> Tensor:
    raise RuntimeError(
        "Trying to backward through the graph a second time, after paretograd.backward freed what it saved. Specify "
        "retain_graph=True there if you need to"
    )


def _batched(source: Source, inputs: Inputs, chunk: int) -> list[Tensor | None]:
    """Run one pass for each chunk of losses under `torch.vmap`, where most operations take a batch of gradients."""
    reached: list[bool] = []

    def pull(seeds: list[Tensor]) -> list[Tensor]:
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            either(source.outputs), either(inputs), seeds, retain_graph=True, allow_unused=True
        )
        reached[:] = [grad is not None for grad in grads]
        return [grad for grad in grads if grad is not None]

    with quiet_loops():
        # A checkpoint draws its random numbers again: the same ones for all losses. Joining chunks makes a copy.
        size = chunk if chunk < len(source.seeds[0]) else None
        rows = iter(torch.vmap(pull, randomness="same", chunk_size=size)(source.seeds))
    return [next(rows) if found else None for found in reached]


@contextmanager
def quiet_loops() -> Iterator[None]:
    """Silence torch's warning that it loops over the batch in operations without a batching rule."""
    # A filter in Python would make all other warnings appear again at each step.
    enable: Callable[[bool], None] = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


def unwrapped(grad: Tensor, m: int) -> Tensor:
    """Return the gradients of all m losses, shape ``(m, *grad)``, behind a gradient under `torch.vmap`."""
    level = torch._C._functorch.current_level()
    values, dim = torch._C._functorch._unwrap_batched(grad, level)
    return values.expand(m, *values.shape) if dim is None else values.movedim(dim, 0)


def _seeded(losses: Losses, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the losses as outputs, and weights of shape ``(..., m)`` as their gradients."""
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
        # Omit outputs on which this loss does not depend, and with them everything that lies only below them.
        used = [i for i, seed in enumerate(source.seeds) if bool(seed[k].any())]
        if not used:
            continue
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            either([source.outputs[i] for i in used]),
            either(inputs),
            [source.seeds[i][k] for i in used],
            retain_graph=True,
            allow_unused=True,
        )
        for i, grad in enumerate(grads):
            if grad is None:
                continue
            row = dense(grad)
            if i not in rows:
                rows[i] = row.new_zeros((m, *row.shape))
            rows[i][k] = row
    return [rows.get(i) for i in range(len(inputs))]


def gradients_of_one(losses: Losses, k: int, inputs: Inputs) -> Sequence[Tensor | None]:
    """Return the gradient of one loss with respect to each input."""
    if isinstance(losses, Tensor):
        output, seed = losses, torch.zeros_like(losses)
        seed[k] = 1.0
    else:
        output, seed = losses[k], torch.ones_like(losses[k])
    return torch.autograd.grad(output, either(inputs), seed, retain_graph=True, allow_unused=True)


def dense(grad: Tensor) -> Tensor:
    """Convert a sparse gradient, such as that of an embedding, to a dense one."""
    return grad.to_dense() if grad.is_sparse else grad


def either(inputs: Inputs) -> Sequence[Tensor]:
    """Cast for the type checker: torch accepts a mix of parameters and edges, but its annotations do not."""
    return inputs  # type: ignore[return-value]
