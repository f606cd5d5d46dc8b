"""``gramian``: inner products of gradients, from a Jacobian or directly from losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paretograd.autograd import processes
from paretograd.autograd.engine import Engine, Pullback
from paretograd.autograd.graph import Graph
from paretograd.autograd.hooks import set_aside
from paretograd.autograd.inputs import check_losses, check_params, check_passes, check_visible
from paretograd.autograd.opaque import opaque
from paretograd.autograd.processes import Call, Parallel, Params
from paretograd.autograd.roots import roots_of
from paretograd.autograd.source import at_losses
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry import gramian as of_jacobian


@opaque
def gramian(
    source: Tensor | Sequence[Tensor],
    params: Params | None = None,
    *,
    engine: Engine = "auto",
    chunk: int | None = None,
    parallel: Parallel = "auto",
    process_group: Any = None,
    samples: int | Sequence[int] | None = None,
) -> Tensor:
    """Return the Gramian ``G = J @ J.T`` of the gradients, as a float64 tensor.

    From a Jacobian of shape ``(..., m, n)``: rows of float16 or float32 gradients are multiplied exactly in
    float64, so that neither gradients of norm 1e-15 underflow nor those of norm 1e15 overflow. A Jacobian with a graph,
    as from ``create_graph=True``, raises an error: G would have no graph, and a matrix of losses looks the same. Pass
    ``jacobian.detach()``.

    From losses, m scalars in a list or a vector: over ``params``, without storing the Jacobian if the layers allow
    it. The graph is retained for the backward pass that follows. Gradients of parameters in float32 or a shorter dtype
    are multiplied in float32, and the products are summed in float64: entries have an error of about 1e-7 of the norms.

    Args:
        source: a Jacobian, or losses.
        params: parameters with respect to which to differentiate, or a module that has them; None for all that the
            losses reach.
        engine: as for `backward`.
        chunk: number of losses to differentiate at a time.
        parallel: how processes share the work, as for `backward`.
        process_group: as for `backward`.
        samples: as for `backward`.

    Returns:
        shape ``(..., m, m)``.
    """
    if isinstance(source, Tensor) and (source.ndim > 1 or not source.requires_grad):
        if source.grad_fn is not None:
            raise ShapeError(
                f"a tensor of shape {tuple(source.shape)} with a graph is neither losses nor a Jacobian. Losses are a "
                "list of scalars or a vector: pass losses.flatten(). A Jacobian must have no graph, since the Gramian "
                "would not keep it: pass jacobian.detach()"
            )
        if params is not None:
            raise ParameterError(
                "params can be given only with losses, a list of scalars or a vector; got a tensor of shape "
                f"{tuple(source.shape)}"
            )
        return of_jacobian.gramian(source)
    several = processes.handler()
    if several is not None:
        source, params, samples = map(processes.settled, (source, params, samples))
        total = several.gramian(
            Call(source, params, parallel, process_group, samples, chunk, has_rule=False, engine=engine)
        )
        if total is not None:
            return total
    losses = check_losses(source)
    processes.check_parallel(parallel, samples)
    check_passes(engine, chunk)
    graph = Graph(roots_of(losses))
    check_visible(graph)
    chosen = check_params(processes.as_params(params), graph)  # type: ignore[arg-type]
    with torch.no_grad(), torch.autocast(losses[0].device.type, enabled=False), set_aside(graph.leaves):
        return Pullback(losses, chosen, graph, at_losses(losses), engine=engine, chunk=chunk).gramian
