"""``backward``: from losses to ``.grad``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.autograd import processes
from paretograd.autograd.choice import check_chosen, is_private, listed, sort
from paretograd.autograd.engine import Engine, Pullback, present
from paretograd.autograd.graph import Graph
from paretograd.autograd.hooks import filled, seen, set_aside
from paretograd.autograd.idle import warn_of_idle
from paretograd.autograd.inputs import check_groups, check_losses, check_passes, check_visible
from paretograd.autograd.opaque import opaque
from paretograd.autograd.processes import Call, Parallel, Params
from paretograd.autograd.roots import roots_of
from paretograd.autograd.rows import not_finite, release, weighted_gradients
from paretograd.autograd.samples import by_samples
from paretograd.autograd.source import at_losses, below_heads
from paretograd.autograd.step import Step
from paretograd.errors import NonFiniteGradientError, ParameterError


@opaque
def backward(
    losses: Sequence[Tensor] | Tensor,
    aggregator: Aggregator | AggregatorModule,
    params: Params | None = None,
    *,
    shared: Params | Iterable[nn.Module] | None = None,
    specific: Params | Iterable[nn.Module] | None = None,
    retain_graph: bool = False,
    engine: Engine = "auto",
    chunk: int | None = None,
    per_sample: bool = False,
    nonfinite: Literal["raise", "propagate"] = "raise",
    parallel: Parallel = "auto",
    process_group: Any = None,
    samples: int | Sequence[int] | None = None,
) -> Step:
    """Add the aggregated direction to the ``.grad`` of every parameter, in place of ``losses.sum().backward()``.

    A parameter that only one loss reaches, such as those of a task's head, gets that loss's gradient. All others get
    the aggregator's direction, whose weights come from the Gramian over them. The graph tells which is which.

    Args:
        losses: m scalars, or a vector of m.
        aggregator: the rule, or the module that `Aggregator.as_module` returned for it.
        params: the parameters to fill, or a module that has them; None for all that the losses reach. Frozen parameters
            and those that no loss reaches are left alone. A list of lists defines groups that are aggregated
            separately, each with its own weights.
        shared: parameters, or modules that have them, to aggregate even if only one loss reaches them. Here and in
            ``specific``, parameters that no loss reaches are left alone.
        specific: parameters, or modules that have them, that get the sum of the losses' gradients even if several
            losses reach them.
        retain_graph: keep the graph for another backward pass.
        engine: ``jacobian`` stores the rows of the Jacobian; ``gramian`` stores the gradients of the layers' outputs,
            or nothing at all if these are large; ``auto`` chooses by the number of parameters.
        chunk: number of losses to differentiate at a time, to save memory; None for all.
        per_sample: declare that the losses are a vector whose k-th entry depends only on the k-th sample of the batch.
            All gradients then come from one plain pass, if the layers keep samples along their first dimension.
        nonfinite: treatment of a gradient that holds NaN or infinity. ``raise`` raises an error that names its
            objective and leaves every ``.grad`` unchanged; ``propagate`` passes it on to ``.grad``, where a
            ``GradScaler`` sees it and skips the step. The step is then not `finite`, and its weights are NaN.
        parallel: how processes share the work, once `torch.distributed` is initialised. ``auto`` reads it from the
            model (DDP, `fully_shard`, DTensor parameters); with ``data`` all processes hold the same parameters, and
            each its own batch; with ``objectives`` all hold the same parameters, and each some of the losses; with
            ``none`` this process works alone.
        process_group: the processes that share the work, for ``data`` and ``objectives``; None for all, or those of
            the model.
        samples: number of samples over which this process's losses are means, or one number per loss, if batches may
            differ between processes; None weights all processes equally.

    Returns:
        the weights and the Gramian, with the certificate of the step and a flat dict of metrics on demand.
    """
    if isinstance(aggregator, AggregatorModule):
        aggregator = aggregator.aggregator
    common, own = listed(shared), listed(specific)
    several = processes.handler()
    if several is not None:
        losses, params, samples = map(processes.settled, (losses, params, samples))
        step = several.backward(
            Call(
                losses,
                params,
                parallel,
                process_group,
                samples,
                chunk,
                aggregator,
                common,
                own,
                retain_graph,
                per_sample,
                nonfinite,
                engine=engine,
            )
        )
        if step is not None:
            return step
    checked = check_losses(losses)
    processes.check_parallel(parallel, samples)
    check_passes(engine, chunk)
    check_rule(aggregator, nonfinite)
    graph = Graph(roots_of(checked))
    check_visible(graph)
    groups = check_groups(processes.as_params(params), graph)
    check_chosen(groups, graph.leaves, common, own)
    with torch.no_grad(), torch.autocast(checked[0].device.type, enabled=False):
        try:
            with set_aside(graph.leaves), aggregator.one_step():  # one for all groups; none if anything fails
                found, steps = _directions(
                    checked, aggregator, groups, graph, common, own, engine, chunk, per_sample, retain_graph
                )
        except NonFiniteGradientError:
            if nonfinite == "raise":
                raise
            with set_aside(graph.leaves):
                found, steps = _plain_sum(checked, aggregator, groups, retain_graph)
        accumulate(found)  # last, because nothing can fail from here on
    return steps[0] if len(steps) == 1 else Step.of_groups(steps)


def check_rule(aggregator: object, nonfinite: str) -> None:
    """Validate both arguments."""
    if not isinstance(aggregator, Aggregator):
        example = f"get({aggregator!r})" if isinstance(aggregator, str) else "UPGrad()"
        raise ParameterError(f"aggregator={aggregator!r}: give a rule, such as paretograd.{example}")
    if nonfinite not in ("raise", "propagate"):
        raise ParameterError(f"nonfinite={nonfinite!r}: use 'raise' or 'propagate'")


def _directions(
    losses: Sequence[Tensor] | Tensor,
    aggregator: Aggregator,
    groups: Sequence[Sequence[Tensor]],
    graph: Graph,
    shared: Sequence[Tensor] | None,
    specific: Sequence[Tensor] | None,
    engine: Engine,
    chunk: int | None,
    per_sample: bool,
    retain_graph: bool,
) -> tuple[list[tuple[Tensor, Tensor]], list[Step]]:
    """Return all gradients with their parameters, and a step for each group. The graph is freed unless retained."""
    m = len(losses)
    sorted_groups = [sort(group, graph.reached_by, m, shared, specific) for group in groups]
    warn_of_idle((param for common, _ in sorted_groups for param in common), graph.reached_by, m)
    own = [param for _, alone in sorted_groups for param in alone]
    private = [param for param in own if is_private(param, graph.reached_by)]
    # If a head's parameter is aggregated, the batched pass cannot start below the heads.
    above = any(is_private(param, graph.reached_by) for common, _ in sorted_groups for param in common)
    heads = None if above else below_heads(losses, graph, private)
    if heads is None:
        source, rest, found = at_losses(losses), own, []
    else:
        source, grads = heads
        found = present(private, grads)
        rest = [param for param in own if not is_private(param, graph.reached_by)]
    if rest:
        found += present(rest, weighted_gradients(losses, rest, torch.ones(m, dtype=torch.float64, device="cpu")))
    steps: list[Step] = []
    for number, (common, _) in enumerate(sorted_groups):
        pullback = (by_samples(losses, common, graph) if per_sample else None) or Pullback(
            losses, common, graph, source, engine=engine, chunk=chunk
        )
        if not number:
            _check_finite(found, losses)  # here, where a GPU has just been synchronised anyway
        outcome = aggregator._outcome(pullback.array, pullback.eps)
        weights = torch.from_numpy(outcome.weights).to(pullback.gramian.device)
        steps.append(Step(weights, pullback.gramian, aggregator, eps=pullback.eps))
        last = not retain_graph and number == len(sorted_groups) - 1
        found += pullback.combine(weights, free=last)
    if last and not pullback.passes:
        release(graph.nodes)
    return found, steps


def _plain_sum(
    losses: Sequence[Tensor] | Tensor,
    aggregator: Aggregator,
    groups: Sequence[Sequence[Tensor]],
    retain_graph: bool,
) -> tuple[list[tuple[Tensor, Tensor]], list[Step]]:
    """Return the gradients of the sum, which contain the non-finite values, and steps without weights."""
    m, chosen = len(losses), [param for group in groups for param in group]
    ones = torch.ones(m, dtype=torch.float64, device="cpu")
    found = present(chosen, weighted_gradients(losses, chosen, ones, free=not retain_graph))
    unknown = torch.full((m, m), torch.nan, dtype=torch.float64, device=losses[0].device)
    return found, [Step(unknown[0], unknown, aggregator) for _ in groups]


def _check_finite(found: Sequence[tuple[Tensor, Tensor]], losses: Sequence[Tensor] | Tensor) -> None:
    if not found:
        return
    # Norms of finite numbers may overflow, so they only raise a suspicion. But they need a single synchronisation.
    norms = torch._foreach_norm([torch.abs(grad) if grad.is_sparse else grad for _, grad in found])
    if bool(torch.isfinite(torch.stack([norm.to(norms[0]) for norm in norms])).all()):
        return
    bad = not_finite(losses, [param for param, _ in found])
    if bad:
        raise NonFiniteGradientError(bad)


def accumulate(found: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Add each gradient to its parameter's ``.grad``, or store it there in its own memory. Hooks are called."""
    found = seen(found)
    taken: set[int] = set()
    for param, grad in found:
        shards = hasattr(grad, "placements")
        if param.grad is not None and (shards or (param.grad.is_sparse and not grad.is_sparse)):
            param.grad = grad + param.grad  # there is no in-place form
        elif param.grad is not None:
            param.grad += grad
        elif shards:
            param.grad = grad
        elif grad.is_sparse:
            param.grad = grad.detach().clone()
        else:
            storage = grad.untyped_storage()
            alone = storage.nbytes() == grad.numel() * grad.element_size() and storage.data_ptr() not in taken
            param.grad = grad.detach() if alone else grad.detach().clone(memory_format=torch.contiguous_format)
            taken.add(storage.data_ptr())
    filled(param for param, _ in found)
