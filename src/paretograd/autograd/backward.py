"""``backward``: losses in, ``.grad`` out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.autograd.engine import Engine, Pullback
from paretograd.autograd.graph import Graph, roots_of
from paretograd.autograd.inputs import check_groups, check_losses
from paretograd.autograd.step import Step
from paretograd.errors import NonFiniteGradientError, ParameterError


def backward(
    losses: Sequence[Tensor] | Tensor,
    aggregator: Aggregator,
    params: Iterable[Tensor] | Iterable[Iterable[Tensor]] | None = None,
    *,
    shared: Iterable[Tensor] | None = None,
    specific: Iterable[Tensor] | None = None,
    retain_graph: bool = False,
    engine: Engine = "auto",
    chunk: int | None = None,
) -> Step:
    """Add the aggregated direction to the ``.grad`` of every parameter, as ``losses.sum().backward()`` would its own.

    A parameter that one loss alone reaches, such as those of a task's head, gets that loss's gradient; all others get
    the aggregator's direction, whose weights come from the Gramian over them. Which is which is read from the graph.

    Args:
        losses: m scalars, or a vector of m.
        aggregator: the rule.
        params: the parameters to fill; None for all that the losses reach. Frozen ones and those that no loss
            reaches are left alone. A list of lists makes groups that are aggregated apart, with weights of their own.
        shared: parameters to aggregate even if one loss alone reaches them.
        specific: parameters to give the sum of the losses' gradients even if several losses reach them.
        retain_graph: keep the graph for another backward pass.
        engine: ``jacobian`` holds the rows of the Jacobian; ``gramian`` the gradients of the outputs of layers, or
            nothing at all where these are many; ``auto`` takes what suits the number of parameters.
        chunk: how many losses to differentiate at a time, to save memory; None for all.

    Returns:
        the weights and the Gramian, with the certificate of the step and a flat dict of metrics on demand.
    """
    checked = check_losses(losses)
    shared, specific = _listed(shared), _listed(specific)
    if not isinstance(aggregator, Aggregator):
        raise ParameterError(f"aggregator={aggregator!r}: give a rule, such as paretograd.UPGrad()")
    if engine not in get_args(Engine):
        raise ParameterError(f"engine={engine!r}: use one of {', '.join(get_args(Engine))}")
    m = len(checked)
    graph = Graph(roots_of(checked))
    groups = check_groups(params, graph)
    sorted_groups = [_sort(group, graph, m, shared, specific) for group in groups]
    _check_chosen(groups, shared, specific)
    own = [param for _, alone in sorted_groups for param in alone]
    found: list[tuple[Tensor, Tensor]] = []
    if own:
        ones = torch.ones_like(checked) if isinstance(checked, Tensor) else None
        grads = torch.autograd.grad(checked, own, ones, retain_graph=True)
        _check_finite(own, grads, graph, m)
        found += list(zip(own, grads, strict=True))
    steps = []
    for number, (common, _) in enumerate(sorted_groups, start=1):
        keep = retain_graph or number < len(sorted_groups)
        pullback = Pullback(checked, common, graph, engine=engine, retain_graph=keep, chunk=chunk)
        steps.append(Step(aggregator.weights(pullback.gramian), pullback.gramian, aggregator))
        found += pullback.combine(steps[-1].weights)
    for param, grad in found:  # only now, when nothing can go wrong any more
        if param.grad is None:
            param.grad = grad.detach()
        else:
            param.grad += grad
    return steps[0] if len(steps) == 1 else Step.of_groups(steps)


def _sort(
    params: Sequence[Tensor],
    graph: Graph,
    m: int,
    shared: Iterable[Tensor] | None,
    specific: Iterable[Tensor] | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters to aggregate, and those that get the gradients of their own losses."""
    force_common, force_own = _ids(shared), _ids(specific)
    common, own = [], []
    for param in params:
        alone = m > 1 and graph.reached_by[id(param)].bit_count() == 1
        if id(param) in force_own or (alone and id(param) not in force_common):
            own.append(param)
        else:
            common.append(param)
    return common, own


def _listed(params: Iterable[Tensor] | None) -> list[Tensor] | None:
    return None if params is None else list(params)


def _ids(params: Iterable[Tensor] | None) -> set[int]:
    return {id(param) for param in params or ()}


def _check_chosen(
    groups: Sequence[Sequence[Tensor]], shared: Iterable[Tensor] | None, specific: Iterable[Tensor] | None
) -> None:
    common, own = _ids(shared), _ids(specific)
    if common & own:
        raise ParameterError("a parameter is both in shared and in specific; give it in one of them")
    if not (common | own) <= {id(param) for group in groups for param in group}:
        raise ParameterError("shared or specific holds a parameter that no loss reaches, or that params leaves out")


def _check_finite(params: Sequence[Tensor], grads: Sequence[Tensor], graph: Graph, m: int) -> None:
    bad = 0
    for param, grad in zip(params, grads, strict=True):
        if not bool(torch.isfinite(grad).all()):
            bad |= graph.reached_by[id(param)]
    if bad:
        raise NonFiniteGradientError([k for k in range(m) if bad >> k & 1])
