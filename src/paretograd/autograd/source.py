"""Start of a batched backward pass: at the losses, or below the part that each loss has for itself.

The heads of m tasks form m small graphs. A batched pass would push m rows through each of them, all zero but one. One
plain pass through all heads gives the gradient of each loss at the top of the shared part, and the gradients of the
heads' own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.graph import Graph

Losses = Sequence[Tensor] | Tensor


class Source(NamedTuple):
    """Outputs to start from, each with the gradients of the m losses with respect to it, shape ``(m, *output)``."""

    outputs: list[Tensor | GradientEdge]
    seeds: list[Tensor]

    def scaled(self, scales: Tensor) -> Source:
        """Return the source for losses times factors, shape ``(m,)``."""
        return Source(self.outputs, [seed * _column(scales, seed) for seed in self.seeds])


def _column(scales: Tensor, seed: Tensor) -> Tensor:
    return scales.to(seed).reshape(-1, *(1,) * (seed.ndim - 1))


def at_losses(losses: Losses) -> Source:
    """Return a source that starts at the losses themselves."""
    m = len(losses)
    if isinstance(losses, Tensor):
        return Source([losses], [torch.eye(m, dtype=losses.dtype, device=losses.device)])
    eye = torch.eye(m, device=losses[0].device)
    return Source(list(losses), [eye[:, k].to(loss).reshape(m, *loss.shape) for k, loss in enumerate(losses)])


def below_heads(losses: Losses, graph: Graph, own: Sequence[Tensor]) -> tuple[Source, list[Tensor | None]] | None:
    """Return a source that starts where the losses' own parts end.

    Args:
        losses: m scalars, or a vector of them.
        graph: their graph.
        own: parameters that only one loss reaches.

    Returns:
        the source, and the gradients of ``own``; None if the losses have no parts of their own.
    """
    borders = graph.borders() if len(losses) > 1 else None
    if borders is None:
        return None
    rows: dict[tuple[Node, int], dict[int, Tensor]] = {}
    edges: dict[tuple[Node, int], GradientEdge] = {}
    handles = []
    for node, (loss, below) in borders.items():
        for _, edge in below:
            edges[edge.node, edge.output_nr] = edge
        handles.append(node.register_hook(_collect(rows, loss, below)))
    outputs = [losses] if isinstance(losses, Tensor) else list(losses)
    kinds = {(output.dtype, output.device) for output in outputs}
    ones = {(dtype, device): torch.ones((), dtype=dtype, device=device) for dtype, device in kinds}
    try:
        grads = torch.autograd.grad(
            outputs,
            [*own, *edges.values()],  # type: ignore[arg-type]  # torch accepts a mix of both
            [ones[output.dtype, output.device].expand_as(output) for output in outputs],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    starts = {key: found for key, found in rows.items() if found}
    seeds = [_stacked(found, len(losses)) for found in starts.values()]
    return Source([edges[key] for key in starts], seeds), list(grads[: len(own)])


def _collect(
    rows: dict[tuple[Node, int], dict[int, Tensor]], loss: int, below: Sequence[tuple[int, GradientEdge]]
) -> Callable[[tuple[Tensor | None, ...], tuple[Tensor | None, ...]], None]:
    def hook(grad_inputs: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> None:
        for position, edge in below:
            grad = grad_inputs[position]
            if grad is not None:
                found = rows.setdefault((edge.node, edge.output_nr), {})
                found[loss] = grad if loss not in found else found[loss] + grad

    return hook


def _stacked(found: dict[int, Tensor], m: int) -> Tensor:
    if len(found) == m:
        return torch.stack([found[loss] for loss in range(m)])
    first = next(iter(found.values()))
    rows = first.new_zeros((m, *first.shape))
    for loss, grad in found.items():
        rows[loss] = grad
    return rows
