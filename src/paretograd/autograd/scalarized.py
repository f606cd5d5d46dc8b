"""One plain backward pass for a rule that sees the losses: of ``sum_k phi_k f_k``, or of F for its own parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from paretograd.autograd.call import Call, Plan
from paretograd.autograd.graph import Losses, release
from paretograd.autograd.step import How, Step
from paretograd.autograd.ways import Pairs, present
from paretograd.errors import NonFiniteGradientError, ParameterError
from paretograd.scalarizations.base import Graded, Weighting


class ScalarizedStep(Step):
    """A step of a rule that sees the losses. It has no Gramian, so gamma and certificate are not known.

    Attributes:
        weights: shape ``(m,)``, float64: the gradient of F with respect to the losses.
        value: F, or ``sum_k weights_k f_k`` for a weighting without F; a float64 scalar.
        losses: shape ``(m,)``, float64, of all processes.
    """

    gramian: None  # type: ignore[assignment]

    def __init__(
        self, graded: Graded, losses: Tensor, rule: Weighting, names: tuple[str, ...] | None, fine: bool
    ) -> None:
        how = How("plain", 1.0, f"{rule!r} takes its weights from the losses")
        super().__init__(graded.weights, None, rule, names=names, how=how if fine else None)  # type: ignore[arg-type]
        self.losses, self.value = losses, graded.value
        self._fine = fine

    @property
    def finite(self) -> bool:
        """True if all losses and gradients were finite. Otherwise the weights are NaN."""
        return self._fine

    @property
    def gamma(self) -> NoReturn:
        self._without_gramian("gamma")

    @property
    def certificate(self) -> NoReturn:
        self._without_gramian("a certificate")

    def of_update(self) -> NoReturn:
        self._without_gramian("a comparison with the update")

    def _without_gramian(self, what: str) -> NoReturn:
        raise ParameterError(
            f"{what} needs the gradient of every loss, and a step of {self._aggregator!r} computes only their weighted "
            "sum. Before the step, call G = paretograd.gramian(losses, params); after it, "
            "paretograd.certify(G, step.weights, rule) tells gamma and the rest"
        )

    def metrics(self, prefix: str = "mo/") -> dict[str, float]:
        """Return a flat dict of floats, for any tracker: the value of F, and the weight and the value of every loss."""
        assert self.losses is not None
        assert self.value is not None
        names = self.names or range(len(self.weights))
        found = {"value": float(self.value)}
        found |= {f"weight/{name}": w for name, w in zip(names, self.weights.tolist(), strict=True)}
        found |= {f"loss/{name}": f for name, f in zip(names, self.losses.tolist(), strict=True)}
        return {f"{prefix}{key}": value for key, value in found.items()}


def values_of(losses: Losses) -> Tensor:
    """Return the values of losses, shape ``(m,)``, float64, on the device of the first."""
    if isinstance(losses, Tensor):
        return losses.detach().double()
    return torch.stack([loss.detach().reshape(()).double().to(losses[0].device) for loss in losses])


def graded_losses(call: Call, values: Tensor) -> Graded:
    """Return weights, F and the gradients of the rule's own parameters.

    If losses are not finite and are to be passed on, all of these are NaN.
    """
    rule: Weighting = call.aggregator
    try:
        return rule._graded(values, call.names)
    except NonFiniteGradientError:
        if call.nonfinite == "raise":
            raise
    nothing = torch.full_like(values, math.nan)
    return Graded(nothing, nothing.sum(), [(p, torch.full_like(p, math.nan)) for p in rule.parameters()])


@dataclass(frozen=True)
class Seeds:
    """Where a pass starts: losses, and their weights as the gradients to start with.

    Attributes:
        outputs: the chosen losses, or the vector of all.
        grads: the weights divided by `scale`, in the dtype of each.
        scale: a power of two, which brings the weights into the range of float16 losses.
        reach: a bit for every loss among the outputs.
    """

    outputs: list[Tensor]
    grads: list[Tensor]
    scale: float
    reach: int

    @classmethod
    def of(cls, losses: Losses, weights: Tensor, chosen: Sequence[int] | None = None) -> Seeds:
        """Return the seeds for some losses, by default those whose weights are not zero."""
        items = [losses] if isinstance(losses, Tensor) else list(losses)
        numbers, scale = weights.tolist(), 1.0
        largest = max(map(abs, numbers), default=0.0)
        if any(item.dtype is torch.float16 for item in items) and 0.0 < largest < math.inf:
            scale = 2.0 ** math.frexp(largest)[1]
        seeds = weights / scale
        if chosen is None:
            chosen = [k for k, number in enumerate(numbers) if number != 0.0]
        reach = sum(1 << k for k in chosen)
        if isinstance(losses, Tensor):
            return cls([losses], [seeds.to(losses)], scale, reach)
        grads = [seeds[k].to(losses[k]).reshape(losses[k].shape) for k in chosen]
        return cls([losses[k] for k in chosen], grads, scale, reach)

    def reached(self, params: Iterable[Tensor], reached: Mapping[int, int]) -> list[Tensor]:
        """Return the parameters that one of the losses reaches, from a bit for every loss by ``id``."""
        return [param for param in params if self.reach & reached.get(id(param), 0)]


def scalarized_gradients(plan: Plan) -> tuple[Pairs, ScalarizedStep]:
    """Return every parameter of a plan, and those of the rule, with their gradients of F; and the step.

    To name the losses whose gradients are not finite, the graph is kept until all are known to be finite. That of a
    compiled model is not, since its buffers may not outlive a pass.
    """
    call, rule = plan.call, plan.call.aggregator
    values = values_of(plan.losses)
    graded = graded_losses(call, values)
    keep = call.retain_graph or (call.nonfinite == "raise" and not plan.graph.compiled)
    seeds = Seeds.of(plan.losses, graded.weights)
    params = seeds.reached(plan.own, plan.reached)
    pairs = _pass(seeds, params, keep) + graded.own
    fine = all_finite(grad for _, grad in pairs) and bool(torch.isfinite(values).all())
    if not fine and call.nonfinite == "raise":
        if keep:
            bad = bad_losses(plan.losses, graded.weights, params, plan.reached)
        else:
            bad = suspects(pairs, plan.reached, seeds.reach)
        raise NonFiniteGradientError(bad or list(range(plan.m)), names=call.names)
    if keep and not call.retain_graph:
        release(plan.graph.nodes)
    if fine:
        rule._share(None)
        rule._advance(values)
    found = {id(param) for param in params}
    pairs += [(param, torch.zeros_like(param)) for param in plan.own if id(param) not in found]
    return pairs, step_of(graded, values, call, fine)


def step_of(graded: Graded, values: Tensor, call: Call, fine: bool) -> ScalarizedStep:
    """Return the step; its weights are NaN if something is not finite."""
    if not fine:
        nothing = torch.full_like(graded.weights, math.nan)
        graded = Graded(nothing, nothing.sum(), [])
    return ScalarizedStep(graded, values, call.aggregator, call.names, fine)


def _pass(seeds: Seeds, params: Sequence[Tensor], retain: bool) -> Pairs:
    """Return parameters with their gradients of the weighted sum of losses."""
    if not params:
        return []
    grads: Sequence[Tensor | None] = torch.autograd.grad(
        seeds.outputs, params, seeds.grads, retain_graph=retain, allow_unused=True
    )
    if seeds.scale != 1.0:
        grads = [None if grad is None else grad * seeds.scale for grad in grads]
    return present(params, grads)


def bad_losses(losses: Losses, weights: Tensor, params: Sequence[Tensor], reached: Mapping[int, int]) -> list[int]:
    """Return the losses with a weight whose own gradients are not finite. The graph is kept.

    Args:
        losses: the losses.
        weights: their weights.
        params: the parameters.
        reached: for each parameter, by ``id``, a bit for every loss that reaches it.
    """
    bad = []
    for k, weight in enumerate(weights.tolist()):
        alone = torch.zeros_like(weights)
        alone[k] = 1.0
        seeds = Seeds.of(losses, alone)
        if weight != 0.0 and not all_finite(g for _, g in _pass(seeds, seeds.reached(params, reached), True)):
            bad.append(k)
    return bad


def suspects(pairs: Iterable[tuple[Tensor, Tensor]], reached: Mapping[int, int], among: int) -> list[int]:
    """Return the losses that reach a parameter whose gradient is not finite, after the graph was freed.

    Args:
        pairs: parameters with their gradients.
        reached: for each parameter, by ``id``, a bit for every loss that reaches it.
        among: a bit for every loss that was differentiated.
    """
    bits = 0
    for param, grad in pairs:
        if not all_finite([grad]):
            bits |= reached.get(id(param), 0) & among
    return [k for k in range(among.bit_length()) if bits >> k & 1]


def all_finite(grads: Iterable[Tensor]) -> bool:
    """Return True if all gradients are finite, with one synchronisation for each device."""
    flags: dict[torch.device, list[Tensor]] = {}
    for grad in grads:
        values: Any = grad.coalesce().values() if grad.is_sparse else grad
        flags.setdefault(values.device, []).append(torch.isfinite(values).all())
    return all(bool(torch.stack(found).all()) for found in flags.values())
