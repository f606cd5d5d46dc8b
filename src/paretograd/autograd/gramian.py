"""``gramian`` and ``jacobian``: inner products of gradients, and the gradients themselves, to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from paretograd.autograd.backward import undisturbed
from paretograd.autograd.call import Call, Engine, Parallel, Params, Plan, listed, named, plan_of
from paretograd.autograd.choice import Differentiation
from paretograd.autograd.entry import handler, opaque, settled
from paretograd.autograd.rows import Rows
from paretograd.autograd.ways import NotFiniteError, plain_rows
from paretograd.errors import NonFiniteGradientError, ParameterError, ShapeError
from paretograd.geometry import gramian as of_jacobian


@opaque
def gramian(
    source: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    params: Params | None = None,
    *,
    engine: Engine = "auto",
    chunk: int | None = None,
    max_memory: int | None = None,
    parallel: Parallel = "auto",
    process_group: Any = None,
    samples: int | Sequence[int] | None = None,
) -> Tensor:
    """Return the Gramian ``G = J @ J.T`` of the gradients, as a float64 tensor.

    From a Jacobian of shape ``(..., m, n)``: rows of float16 or float32 gradients are multiplied exactly in
    float64, so that neither gradients of norm 1e-15 underflow nor those of norm 1e15 overflow. A Jacobian with a graph,
    as from ``create_graph=True``, raises an error: G would have no graph, and a matrix of losses looks the same. Pass
    ``jacobian.detach()``.

    From losses, m scalars in a list, a dictionary or a vector: over ``params``. The graph is retained for the backward
    pass that follows. Gradients of parameters in float32 or a shorter dtype are multiplied in float32, and the products
    are summed in float64: entries have an error of about 1e-7 of the norms.

    Args:
        source: a Jacobian, or losses.
        params: parameters with respect to which to differentiate, or a module that has them; None for all that the
            losses reach.
        engine: as for `backward`.
        chunk: as for `backward`.
        max_memory: as for `backward`.
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
    losses, names = named(source)
    call = Call(
        losses=settled(losses),
        names=names,
        params=settled(params),
        has_rule=False,
        engine=engine,
        chunk=chunk,
        max_memory=max_memory,
        parallel=parallel,
        process_group=process_group,
        samples=settled(samples),
    )
    several = handler()
    total = None if several is None else several.gramian(call)
    if total is not None:
        return total
    plan = plan_of(call)
    with _differentiating(plan):
        differentiation = Differentiation(plan)
        differentiation.finish()
        return differentiation.way.gramians.sum(dim=0)


@opaque
def jacobian(
    losses: Mapping[str, Tensor] | Sequence[Tensor] | Tensor, params: Params | None = None
) -> dict[str, Tensor] | list[Tensor]:
    """Return the rows of the Jacobian, by one plain pass for each loss: for each parameter a tensor ``(m, *param)``.

    The graph is retained.

    Args:
        losses: m scalars, a vector of m, or a dictionary.
        params: parameters with respect to which to differentiate, or a module that has them; None for all that the
            losses reach.

    Returns:
        a list in the order of ``params``; for a module, a dictionary by the names of its parameters. A loss that does
        not reach a parameter has a row of zeros there.
    """
    values, names = named(losses)
    plan = plan_of(Call(losses=settled(values), names=names, params=settled(params), has_rule=False))
    with _differentiating(plan):
        rows = Rows(plan.m, plan.device)
        plain_rows(plan, True, rows, own=rows)  # without a rule, there are no others
        if isinstance(params, nn.Module):
            return {name: rows.block(param) for name, param in params.named_parameters() if param.requires_grad}
        return [rows.block(param) for param in listed(plan.common if params is None else plan.call.params) or ()]


@contextmanager
def _differentiating(plan: Plan) -> Iterator[None]:
    """Run passes undisturbed, and name the losses whose gradients are not finite."""
    try:
        with undisturbed(plan):
            yield
    except NotFiniteError as found:
        raise NonFiniteGradientError(found.objectives, names=plan.call.names) from None
