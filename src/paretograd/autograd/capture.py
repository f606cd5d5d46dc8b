"""``capture``: a whole training step in one CUDA graph, from the forward pass to the optimizer.

On a GPU, the host is often the bottleneck: m backward passes launch thousands of small kernels. A CUDA graph launches
all of them at once, if nothing in the step waits for the host. So the rule's weights are solved on the GPU, and whether
the gradients are finite is decided there, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from numbers import Number
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.aggregators.batches import CrossAggregator
from paretograd.autograd.backward import accumulate, carry_out, undisturbed
from paretograd.autograd.call import Call, Params, Plan, check_rule, listed, named, plan_of, rule_of
from paretograd.autograd.entry import settled, several_processes
from paretograd.autograd.products import rounding
from paretograd.autograd.recorded import uncollected
from paretograd.autograd.rows import Rows
from paretograd.autograd.step import How, Step
from paretograd.autograd.ways import Pairs, plain_rows
from paretograd.callers import callers_level
from paretograd.device.weights import device_weights
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import kernels_available
from paretograd.geometry.row_lists import Tables
from paretograd.scalarizations.base import Weighting

#: Most graphs that one captured step keeps, one for each set of shapes.
_MOST_GRAPHS = 8

#: Inputs that a graph may depend on, beside tensors. What other objects hold is not seen: a replay would miss that it
#: has changed.
_CONSTANT = (Number, str, bytes, Enum, NoneType, torch.dtype, torch.device, nn.Module)

Losses = Mapping[str, Tensor] | Sequence[Tensor] | Tensor


class CaptureError(Exception):
    """A reason why a step cannot be captured."""


def capture(
    losses_of: Callable[..., Losses],
    aggregator: Aggregator | AggregatorModule | Weighting,
    params: Params | None = None,
    *,
    shared: Params | Iterable[nn.Module] | None = None,
    specific: Params | Iterable[nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    before_step: Callable[[], object] | None = None,
    warmup: int = 3,
) -> CapturedStep:
    """Capture a training step in a CUDA graph: forward pass, losses, backward passes, aggregation and optimizer.

    ``step = capture(losses_of, rule, model)`` returns a function. Each call ``step(x, y)`` computes
    ``losses_of(x, y)`` and sets the ``.grad`` of every parameter, as `backward` does after ``zero_grad``. The first
    ``warmup`` calls with inputs of some shape run eagerly, the next one captures, and all later ones replay. What
    cannot be captured runs as `backward` does, with one warning that names the reason.

    Args:
        losses_of: function from the inputs of a step to its losses. It may use dropout and `torch.autocast`, but must
            not wait for the GPU, nor depend on the values of tensors. Inputs are tensors, also in lists or
            dictionaries; a number or string among them counts as a part of the shape.
        aggregator: the rule.
        params: as for `backward`.
        shared: as for `backward`.
        specific: as for `backward`.
        optimizer: its step is captured, too. Learning rates become tensors on the GPU, which schedules change in place.
            If a gradient holds NaN or infinity, parameters and optimizer stay as they are. None leaves the optimizer to
            the caller, who sees such gradients in ``.grad``.
        before_step: function that is called between the gradients and the optimizer, such as one that clips them.
        warmup: number of eager steps before a capture.

    Returns:
        a function of the inputs. It returns a `Step`, which waits for the GPU only when it is looked at.
    """
    rule = rule_of(aggregator)
    if not isinstance(rule, Weighting):
        check_rule(rule)
    if isinstance(rule, CrossAggregator):
        raise ParameterError(f"{rule.label} needs the losses of several batches; pass them to paretograd.backward")
    if type(warmup) is not int or warmup < 1:
        raise ParameterError(f"warmup={warmup!r}: give a whole number of steps, at least 1")
    call = Call(
        losses=None,
        params=settled(params),
        aggregator=rule,
        shared=listed(shared),
        specific=listed(specific),
        retain_graph=False,
        nonfinite="propagate",
        parallel="none",
    )
    return CapturedStep(losses_of, call, optimizer, before_step, warmup)


@dataclass
class _Captured:
    """One graph, with the memory that it reads and writes.

    Attributes:
        graph: the graph.
        inputs: tensors that it reads.
        grads: parameters and the gradients that it writes.
        numbers: the losses, Gramian and weights that it writes, and whether they may be trusted.
        tables: addresses that its kernels read.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    grads: Pairs
    numbers: _Numbers
    tables: Tables


@dataclass(frozen=True)
class _About:
    """Facts about a plan that a result needs, without its graph.

    Attributes:
        names: the names of the losses, if they have any.
        eps: rounding of the Gramian's entries.
        params: number of parameters.
        m: number of losses.
        device: the GPU.
    """

    names: tuple[str, ...] | None
    eps: float
    params: int
    m: int
    device: torch.device


@dataclass
class _Numbers:
    """Results of a step on the GPU.

    Attributes:
        losses: shape ``(m,)``.
        gramians: shape ``(groups, m, m)``.
        weights: shape ``(groups, m)``; NaN if a gradient is not finite.
        residual: largest residual of the rule's solver.
    """

    losses: Tensor
    gramians: Tensor
    weights: Tensor
    residual: Tensor

    def copied(self) -> _Numbers:
        """Return a copy that later replays do not change."""
        return _Numbers(self.losses.clone(), self.gramians.clone(), self.weights.clone(), self.residual.clone())


class CapturedStep:
    """A training step, captured once for each set of shapes of its inputs. See `capture`."""

    def __init__(
        self,
        losses_of: Callable[..., Losses],
        call: Call,
        optimizer: torch.optim.Optimizer | None,
        before_step: Callable[[], object] | None,
        warmup: int,
    ) -> None:
        self._losses_of, self._call, self._optimizer = losses_of, call, optimizer
        self._before_step, self._warmup = before_step, warmup
        self._graphs: dict[tuple[object, ...], _Captured] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._rates: list[Tensor] = []
        self._about: _About | None = None
        self.reason: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Step:
        """Take one step with these inputs."""
        inputs, spec = pytree.tree_flatten((args, kwargs))
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        strange = next((value for value in inputs if not isinstance(value, (Tensor, *_CONSTANT))), None)
        if self.reason is None and strange is not None:
            self._refuse(
                f"an input is a {type(strange).__name__}, in which changes would not be seen; pass its tensors, for "
                "instance in a dictionary"
            )
        if self.reason is None and not kernels_available():
            self._refuse("there is no GPU with Triton" if not torch.cuda.is_available() else "Triton is missing")
        if self.reason is None and several_processes():
            self._refuse("several processes share the work")
        if self.reason is None and self._call.scalarizes:
            self._refuse(f"{self._call.aggregator!r} needs one plain pass, which is not captured")
        if self.reason is None and self._call.aggregator.state_dict():
            self._refuse(f"{self._call.aggregator!r} changes from step to step")
        if self.reason is None and any(not value.is_cuda for value in tensors):
            self._refuse("an input is not on the GPU; move all inputs there first")
        if self.reason is not None:
            return self._eagerly(args, kwargs)
        key = (str(spec), *map(_signature, inputs))
        found = self._graphs.get(key)
        if found is None:
            self._seen[key] = self._seen.get(key, 0) + 1
            try:
                if self._seen[key] <= self._warmup or len(self._graphs) >= _MOST_GRAPHS:
                    return self._warm(args, kwargs)
                found = self._graphs[key] = self._capture(inputs, spec)
            except CaptureError as error:
                reason = str(error)
        if found is None:  # outside of the handler, which keeps the graph of the attempt
            self._refuse(reason)
            return self._eagerly(args, kwargs)
        return self._replay(found, tensors)

    def _refuse(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(
            f"the step cannot be captured: {reason}. It runs as paretograd.backward does",
            UserWarning,
            stacklevel=callers_level(),
        )

    def _eagerly(self, args: Any, kwargs: Any) -> Step:
        """Take a step without a graph, as a user would write it."""
        given, names = named(self._losses_of(*args, **kwargs))
        losses = settled(given)
        if self._optimizer is not None:
            self._optimizer.zero_grad()  # also what these losses do not reach, such as an expert that they do not use
        step = carry_out(replace(self._call, losses=losses, names=names, parallel="auto", adds=False))
        step.losses = torch.stack([loss.detach().double().reshape(()) for loss in losses])
        if self._before_step is not None:
            self._before_step()
        if self._optimizer is not None and step.finite:
            self._optimizer.step()
        return step

    # ---- on the GPU --------------------------------------------------------------------------------------------------

    def _body(self, args: Any, kwargs: Any) -> tuple[_Numbers, Pairs]:
        """Run one step on the GPU without waiting for it."""
        torch.clear_autocast_cache()
        losses, names = named(self._losses_of(*args, **kwargs))
        plan = plan_of(replace(self._call, losses=settled(losses), names=names))
        eps = rounding(plan.common)
        self._about = _About(names, eps, len(plan.common) + len(plan.own), plan.m, plan.device)
        if plan.device.type != "cuda":
            raise CaptureError("the losses are not on the GPU")
        if plan.graph.compiled and self._call.specific is None:
            raise CaptureError("a compiled model hides which parameters belong to a head; name these in specific")
        with undisturbed(plan):
            numbers, pairs = _differentiate(plan, self._about.eps)
        with torch.no_grad():
            accumulate(pairs, adds=False)
            if self._before_step is not None:
                self._before_step()
            if self._optimizer is not None:
                _guarded_step(self._optimizer, numbers, pairs)
        torch.clear_autocast_cache()
        return numbers, [(param, param.grad) for param, _ in pairs if param.grad is not None]

    def _warm(self, args: Any, kwargs: Any) -> Step:
        """Take a step eagerly, on the stream on which graphs are captured."""
        if self._optimizer is not None and not self._rates:
            self._rates = _capturable(self._optimizer)
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            numbers, _ = self._body(args, kwargs)
        current.wait_stream(self._stream)
        return self._result(numbers, "a step before the capture")

    def _capture(self, inputs: list[Any], spec: Any) -> _Captured:
        static = [value.clone() if isinstance(value, Tensor) else value for value in inputs]
        args, kwargs = pytree.tree_unflatten(static, spec)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        assert self._about is not None  # from the steps before
        tables = Tables(self._about.params * (2 * self._about.m + 2), self._about.device)
        try:
            with uncollected(), tables.capturing(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                numbers, grads = self._body(args, kwargs)
            tables.write()
        except CaptureError:
            raise
        except RuntimeError as error:
            _leave_capture(self._about.device)
            lines = str(error).strip().splitlines() or [repr(error)]
            raise CaptureError(f"CUDA refused to capture it ({lines[0][:200]})") from error
        kept = [value for value in static if isinstance(value, Tensor)]
        return _Captured(graph, kept, grads, numbers, tables)

    def _replay(self, captured: _Captured, tensors: list[Tensor]) -> Step:
        with torch.no_grad():
            if tensors:
                torch._foreach_copy_(captured.inputs, tensors)
            self._keep_rates()
            captured.graph.replay()
            for param, grad in captured.grads:
                param.grad = grad
            return self._result(captured.numbers.copied(), "one CUDA graph")

    def _keep_rates(self) -> None:
        """Write learning rates that were assigned as numbers to the tensors that the graph reads."""
        for group, rate in zip(self._optimizer.param_groups if self._optimizer else (), self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate

    def _result(self, numbers: _Numbers, reason: str) -> Step:
        about, how = self._about, How("jacobian", 1.0, reason)
        assert about is not None
        steps = [
            Step(weights, gramian, self._call.aggregator, eps=about.eps, names=about.names, how=how)
            for weights, gramian in zip(numbers.weights, numbers.gramians, strict=True)
        ]
        step = Step.of_groups(steps)
        step.losses, step.residual = numbers.losses, numbers.residual
        return step


def _leave_capture(device: torch.device) -> None:
    """Put torch back to work after a capture that failed, which leaves the generator of random numbers in it."""
    torch.cuda.synchronize(device)
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(generator.clone_state())


def _signature(value: Any) -> object:
    return (tuple(value.shape), value.dtype, value.device) if isinstance(value, Tensor) else value


def _differentiate(plan: Plan, eps: float) -> tuple[_Numbers, Pairs]:
    """Differentiate, apply the rule and combine, without waiting for the GPU."""
    rows, alone = Rows(plan.m, plan.device), Rows(plan.m, plan.device)
    values = plan.losses if isinstance(plan.losses, Tensor) else torch.stack([loss.reshape(()) for loss in plan.losses])
    mine = [grad for _, grad in plain_rows(plan, False, rows, alone)]
    if rows.is_sparse or alone.is_sparse:
        raise CaptureError("a parameter has a sparse gradient, whose size depends on the data")
    gramians = torch.stack([rows.gramian(group) for group in plan.groups])
    solutions = [device_weights(plan.call.aggregator, gramian, eps) for gramian in gramians]
    if any(solution is None for solution in solutions):
        raise CaptureError(f"{plan.call.aggregator!r} has no solver on the GPU for {plan.m} objectives")
    weights = torch.stack([solution.weights for solution in solutions if solution is not None])
    residual = torch.stack([solution.residual for solution in solutions if solution is not None]).amax()
    finite = torch.isfinite(gramians).all()
    if mine:
        finite = finite & torch.isfinite(torch.stack([norm.float() for norm in torch._foreach_norm(mine)])).all()
    weights = torch.where(finite, weights, torch.nan)
    pairs: Pairs = []
    for group, chosen in zip(plan.groups, weights, strict=True):
        pairs += rows.combine(group, chosen)
    ones = torch.ones(plan.m, dtype=torch.float64, device=plan.device)
    pairs += alone.combine(plan.own, ones)
    return _Numbers(values.detach().double(), gramians, weights, residual), pairs


def _capturable(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Prepare an optimizer for a graph and return its learning rates, which become tensors on the GPU."""
    rates = []
    for group in optimizer.param_groups:
        device = next((param.device for param in group["params"] if param.is_cuda), None)
        if device is None:
            raise CaptureError("the optimizer has parameters that are not on the GPU")
        if "capturable" in group:
            group["capturable"] = True
        elif not group.get("fused"):
            raise CaptureError(
                f"{type(optimizer).__name__} cannot be captured as it is; construct it with fused=True, or use one "
                "that takes capturable=True"
            )
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        rates.append(group["lr"])
        for param in group["params"]:
            count = optimizer.state.get(param, {}).get("step")
            if isinstance(count, Tensor) and not count.is_cuda:
                optimizer.state[param]["step"] = count.to(device)
    return rates


def _guarded_step(optimizer: torch.optim.Optimizer, numbers: _Numbers, pairs: Pairs) -> None:
    """Take the optimizer's step, unless a gradient is not finite: then nothing changes, which the GPU decides."""
    bad = torch.isnan(numbers.weights).any()
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.grad_scale, optimizer.found_inf = None, bad.float()  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        return
    tensors = [param for param, _ in pairs]
    for param in list(tensors):
        tensors += [value for value in optimizer.state.get(param, {}).values() if isinstance(value, Tensor)]
    before = [tensor.detach().clone() for tensor in tensors]
    optimizer.step()
    for tensor, old in zip(tensors, before, strict=True):
        torch.where(bad, old, tensor.detach(), out=tensor.detach())
