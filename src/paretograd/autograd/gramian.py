"""``gramian``: inner products of gradients, from a Jacobian or straight from losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paretograd.autograd.engine import Engine, Pullback
from paretograd.autograd.graph import Graph, roots_of
from paretograd.autograd.inputs import check_losses, check_params
from paretograd.autograd.source import at_losses
from paretograd.errors import ParameterError
from paretograd.geometry import gramian as of_jacobian


def gramian(
    source: Tensor | Sequence[Tensor],
    params: Iterable[Tensor] | None = None,
    *,
    engine: Engine = "auto",
    chunk: int | None = None,
) -> Tensor:
    """The Gramian ``G = J @ J.T`` of the gradients, in float64.

    From a Jacobian of shape ``(..., m, n)``: rows of float16 or float32 gradients are multiplied exactly in
    float64, so that neither gradients of norm 1e-15 underflow nor those of norm 1e15 overflow.

    From losses, m scalars in a list or a vector: over ``params``, without storing the Jacobian where the layers allow
    it. The graph is kept, for the backward pass that follows.

    Args:
        source: a Jacobian, or losses.
        params: parameters to differentiate the losses by; None for all that they reach.
        engine: as for `backward`.
        chunk: how many losses to differentiate at a time.

    Returns:
        shape ``(..., m, m)``.
    """
    if isinstance(source, Tensor) and (source.ndim != 1 or not source.requires_grad):
        if params is not None:
            raise ParameterError(
                f"params goes with losses, a list of scalars or a vector; got a tensor of shape {tuple(source.shape)}"
            )
        return of_jacobian.gramian(source)
    losses = check_losses(source)
    graph = Graph(roots_of(losses))
    chosen = check_params(params, graph)
    with torch.no_grad(), torch.autocast(losses[0].device.type, enabled=False):
        return Pullback(losses, chosen, graph, at_losses(losses), engine=engine, chunk=chunk).gramian
