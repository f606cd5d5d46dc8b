"""``backward``: from losses to ``.grad``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.aggregators.batches import CrossAggregator
from paretograd.aggregators.rows import RowAggregator
from paretograd.autograd.by_rows import KeptSource, aggregate_rows, backward_batches
from paretograd.autograd.call import Call, Engine, Parallel, Params, Plan, listed, named, plan_of, rule_of
from paretograd.autograd.choice import Differentiation
from paretograd.autograd.entry import handler, opaque, settled
from paretograd.autograd.kept import Kept
from paretograd.autograd.metric import Given, Metric, metric_of
from paretograd.autograd.scalarized import scalarized_gradients, values_of
from paretograd.autograd.step import How, Step
from paretograd.autograd.ways import NotFiniteError, Pairs, Way
from paretograd.errors import NonFiniteGradientError
from paretograd.scalarizations.base import Weighting

#: Attributes in which torch keeps the hooks of `register_hook` and of `register_post_accumulate_grad_hook`.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@opaque
def backward(
    losses: Mapping[str, Tensor] | Sequence[Tensor] | Tensor,
    aggregator: Aggregator | AggregatorModule | Weighting,
    params: Params | None = None,
    *,
    shared: Params | Iterable[nn.Module] | None = None,
    specific: Params | Iterable[nn.Module] | None = None,
    retain_graph: bool = False,
    engine: Engine = "auto",
    chunk: int | None = None,
    per_sample: bool = False,
    max_memory: int | None = None,
    nonfinite: Literal["raise", "propagate"] = "raise",
    parallel: Parallel = "auto",
    process_group: Any = None,
    samples: int | Sequence[int] | None = None,
    metric: Given | Metric | None = None,
    keep_rows: bool = False,
) -> Step:
    """Add the aggregated direction to the ``.grad`` of every parameter, in place of ``losses.sum().backward()``.

    A parameter that only one loss reaches, such as those of a task's head, gets that loss's gradient. All others get
    the aggregator's direction, whose weights come from the Gramian over them. The graph tells which is which.

    Args:
        losses: m scalars, or a vector of m. A dictionary names them, for metrics, certificates and messages. For a rule
            that needs several independent batches, such as `MoDo`, two or three of these.
        aggregator: the rule, or the module that `Aggregator.as_module` returned for it. A rule that sees the losses,
            such as `STCH`, runs one plain pass instead: every parameter gets the gradient of F, and so do the rule's
            own parameters.
        params: the parameters to fill, or a module that has them; None for all that the losses reach. Frozen parameters
            and those that no loss reaches are left alone. A list of lists defines groups that are aggregated
            separately, each with its own weights. If None, a tensor that requires a gradient and is no `nn.Parameter`
            counts as an input, unless there is no `nn.Parameter` at all.
        shared: parameters, or modules that have them, to aggregate even if only one loss reaches them. Here and in
            ``specific``, parameters that no loss reaches are left alone.
        specific: parameters, or modules that have them, that get the sum of the losses' gradients even if several
            losses reach them.
        retain_graph: keep the graph for another backward pass.
        engine: ``jacobian`` runs one plain pass for each loss and stores the rows of the Jacobian; ``batched`` computes
            the rows in one pass under `torch.vmap`; ``gramian`` needs no rows, but rules for the layers. ``auto`` tries
            them in the first steps of a training run and keeps the quickest. All give the same answer.
        chunk: number of losses that ``batched`` differentiates at a time, to save memory; None for all.
        per_sample: declare that the losses are a vector whose k-th entry depends only on the k-th sample of the batch.
            All gradients then come from one plain pass, if the layers keep samples along their first dimension.
        max_memory: most bytes that rows may take before ``auto`` prefers ``gramian``; None for half of what is free.
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
        metric: the inner product in which the rule works, so that its promises are about the update ``P d`` instead of
            d: an optimizer, whose preconditioner P is read from its present state; the diagonal of P, as one tensor, as
            one tensor for each of params, or as a dictionary by parameter; or a function ``metric(param, gradient)``
            that returns P times the gradient. None for the Euclidean one. Weights, Gramian and certificate are those
            of the metric; ``.grad`` is d, which the optimizer multiplies by P.
        keep_rows: keep the rows of the Jacobian, for `Step.of_update`.

    Returns:
        the weights and the Gramian, with the certificate of the step, a flat dict of metrics, and how it was computed.
    """
    rule = rule_of(aggregator)
    several_batches = isinstance(rule, CrossAggregator)
    losses, names = (losses, None) if several_batches else named(losses)
    settled_params = settled(params)
    call = Call(
        losses=losses if several_batches else settled(losses),
        names=names,
        params=settled_params,
        aggregator=rule,
        shared=listed(shared),
        specific=listed(specific),
        retain_graph=retain_graph,
        engine=engine,
        chunk=chunk,
        per_sample=per_sample,
        max_memory=max_memory,
        nonfinite=nonfinite,
        parallel=parallel,
        process_group=process_group,
        samples=settled(samples),
        metric=metric_of(metric, settled_params),
        keep_rows=keep_rows,
    )
    if several_batches:
        return backward_batches(call, carry_out)
    return carry_out(call)


@opaque
def carry_out(call: Call) -> Step:
    """Do the work of a call, on several processes if they share it."""
    wanted = call.keep_rows
    if isinstance(call.aggregator, RowAggregator):
        call = replace(call, keep_rows=True)
    several = handler()
    step = None if several is None else several.backward(call)
    step = _alone(call) if step is None else step
    if not wanted:
        step.kept = None
    return step


def _alone(call: Call) -> Step:
    """Do the work of a single process."""
    by_rows = isinstance(call.aggregator, RowAggregator)
    plan = plan_of(replace(call, engine="jacobian") if by_rows and call.engine == "auto" else call)
    if call.scalarizes:
        with undisturbed(plan), set_aside(call.aggregator.parameters()):
            pairs, scalarized = scalarized_gradients(plan)
        with torch.no_grad():
            accumulate(pairs, call.adds)
        return scalarized
    kept = None
    with undisturbed(plan):
        try:
            differentiation = Differentiation(plan)
        except NotFiniteError as found:
            if call.nonfinite == "raise":
                raise NonFiniteGradientError(found.objectives, names=call.names) from None
            pairs = found.plain_sum()
            steps = [Step.unknown(plan.m, plan.device, call.aggregator, call.names) for _ in plan.groups]
        else:
            way = differentiation.way
            if "losses" in call.aggregator.needs:
                call.aggregator.observe(values_of(plan.losses))
            if call.keep_rows:
                kept = way.kept()
            if call.prepare is not None:
                call.prepare(kept)
            if by_rows:
                pairs, steps = _rows_directions(plan, way, kept)
            else:
                pairs, steps = _directions(plan, way, differentiation.how)
            way.release()
            differentiation.finish()
    if call.fills:
        with torch.no_grad():
            accumulate(pairs, call.adds)  # last, because nothing can fail from here on
    step = Step.of_groups(steps)
    step.kept = kept
    return step


def _rows_directions(plan: Plan, way: Way, kept: Kept | None) -> tuple[Pairs, list[Step]]:
    """Apply a rule that needs the rows; return all gradients with their parameters, and the step."""
    assert kept is not None
    how = How("jacobian", 1.0, "the rule needs the rows")
    pairs, step = aggregate_rows(
        plan.call.aggregator, KeptSource(kept), way.gramians[0], lambda w: way.combine([w]), plan.call.names, how
    )
    return pairs, [step]


def _directions(plan: Plan, way: Way, how: How) -> tuple[Pairs, list[Step]]:
    """Apply the rule and return all gradients with their parameters, and a step for each group."""
    rule: Aggregator = plan.call.aggregator
    steps = []
    with rule.one_step():  # one for all groups; none if anything fails
        for array, gramian in zip(way.array, way.gramians, strict=True):
            weights = torch.from_numpy(rule._outcome(array, way.eps).weights).to(gramian.device)
            steps.append(Step(weights, gramian, rule, eps=way.eps, names=plan.call.names, how=how))
        return way.combine([step.weights for step in steps]), steps


def accumulate(found: Sequence[tuple[Tensor, Tensor]], adds: bool = True) -> None:
    """Add each gradient to its parameter's ``.grad``, or store it there in its own memory. Hooks are called."""
    found = [(param, _seen(param, grad)) for param, grad in found]
    if not adds:
        for param, _ in found:
            param.grad = None
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
    for param, _ in found:  # hooks that run after .grad is set, such as those of an optimizer in the backward pass
        for hook in list((getattr(param, _HOOKS[1], None) or {}).values()):
            hook(param)


@contextmanager
def undisturbed(plan: Plan) -> Iterator[None]:
    """Let no grad mode, autocast or hook of the caller take part in the passes of a plan."""
    with torch.no_grad(), torch.autocast(plan.device.type, enabled=False), set_aside(plan.graph.leaves):
        yield


@contextmanager
def set_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Disable the hooks of parameters during internal passes, where they would see intermediate gradients.

    Each is called once, with what goes to ``.grad``, however many passes that took.
    """
    # Torch reads these dicts at each pass, and handles refer to them: they are emptied, not replaced.
    found = [hooks for param in params for kind in _HOOKS if (hooks := getattr(param, kind, None))]
    before = [dict(hooks) for hooks in found]
    for hooks in found:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in zip(found, before, strict=True):
            hooks.update(own)


def _seen(param: Tensor, grad: Tensor) -> Tensor:
    """Apply the hooks of a parameter to its gradient."""
    for hook in list((param._backward_hooks or {}).values()):
        answer = hook(grad)
        if answer is not None:
            grad = answer.clone()  # the user may keep this tensor
    return grad
