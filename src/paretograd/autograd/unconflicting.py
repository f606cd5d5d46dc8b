"""`Unconflicting`: an optimizer whose updates increase none of the losses, to first order on their batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.autograd.backward import backward
from paretograd.autograd.call import Params, check_rule, rule_of
from paretograd.autograd.kept import Kept, difference, snapshot
from paretograd.autograd.metric import Given, Metric, OptimizerMetric, local, metric_of
from paretograd.autograd.step import Step
from paretograd.certificates.update import CONFLICT
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.solvers.dual_cone import lift_slopes

Losses = Mapping[str, Tensor] | Sequence[Tensor] | Tensor

#: Slopes above minus this, relative to the norms, are the rounding of their sums.
_ROUNDING = 1e-9

#: Most corrections of one update. The second and later ones undo what the rounding of the parameters does.
_CORRECTIONS = 4

#: Slopes are lifted this many times as far above zero as the rounding of the parameters has lowered them before.
_MARGIN = 3.0

#: The estimate of that rounding decays by this factor in each step.
_DECAY = 0.9

#: A projection that leaves less than this share of an update leaves only rounding. The parameters then stay.
_NOTHING = 1e-6

#: If an update of parameters with at most this rounding still conflicts, it is rounding, and they stay, too.
_FINE = 2e-7


@dataclass(frozen=True)
class Projection:
    """What became of one update.

    Attributes:
        proposed: numbers of the losses that the optimizer's own update would have increased.
        change: length of the correction relative to that of the update, in the norm of the metric. It is one if the
            parameters stay as they are, because nothing but rounding was left of the update.
        conflicts: numbers of the losses that the corrected update increases: none, unless the parameters are too coarse
            for it, as in bfloat16.
    """

    proposed: tuple[int, ...] = ()
    change: float = 0.0
    conflicts: tuple[int, ...] = ()


class Unconflicting(Optimizer):
    """Wraps an optimizer, and corrects its updates so that none of the losses increases.

    `backward` aggregates the gradients in the metric of the optimizer, and keeps them. `step` lets the optimizer make
    its update, momentum and all, and projects it onto the updates with ``<g_k, u> >= 0`` for all losses, by the least
    change in the optimizer's metric.

    ```python
    optimizer = pg.Unconflicting(torch.optim.Adam(model.parameters()), pg.UPGrad())
    optimizer.zero_grad()
    optimizer.backward(losses)
    optimizer.step()
    ```

    It has the parameter groups and the state of the wrapped optimizer. So schedulers, checkpoints, clipping and
    `GradScaler` work as with that.

    Attributes:
        optimizer: the wrapped optimizer.
        rule: the aggregator.
        last: what became of the last update.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rule: Aggregator | AggregatorModule,
        *,
        metric: Given | None = None,
        decay: Literal["included", "exempt"] = "included",
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: any optimizer of torch, or with its interface.
            rule: the aggregator.
            metric: as for `backward`; None for that of the optimizer, or the identity if that is not known.
            decay: whether decoupled weight decay, as of AdamW, is a part of the update. If it is ``exempt``, the rest
                of the update does not conflict, but the decay may. The weight decay of other optimizers is a part of
                their gradient, and always included.
        """
        if not isinstance(optimizer, Optimizer):
            raise ParameterError(f"optimizer={optimizer!r}: give an optimizer, such as torch.optim.Adam(params)")
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ParameterError("the optimizer has maximize=True, and losses are minimised: negate them instead")
        if decay not in ("included", "exempt"):
            raise ParameterError(f"decay={decay!r}: use 'included' or 'exempt'")
        self.rule = rule_of(rule)
        check_rule(self.rule)
        super().__init__(optimizer.param_groups, {})  # sets up the hooks; groups and state are those of the optimizer
        self.optimizer = optimizer
        self.last = Projection()
        self._metric: Metric = metric_of(metric, self._params) or OptimizerMetric(optimizer, any_kind=True)
        self._decay = decay
        self._kept: Kept | None = None
        self._noise = 0.0

    # ---- the wrapped optimizer's groups and state --------------------------------------------------------------------

    @property
    def _wrapped(self) -> Optimizer | None:
        return self.__dict__.get("optimizer")  # not there while torch's own constructor runs

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the wrapped optimizer."""
        return [] if self._wrapped is None else self._wrapped.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if self._wrapped is not None:
            self._wrapped.param_groups = groups

    @property
    def state(self) -> Any:
        """State of the wrapped optimizer."""
        return {} if self._wrapped is None else self._wrapped.state

    @state.setter
    def state(self, state: Any) -> None:
        if self._wrapped is not None:
            self._wrapped.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """Default options of the wrapped optimizer."""
        return {} if self._wrapped is None else self._wrapped.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        if self._wrapped is not None:
            self._wrapped.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        if self._wrapped is not None:
            self._wrapped.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, which loads into that as well."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")} | {
            "_kept": None
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        super().__setstate__({})  # sets up the hooks

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, and forget the rows."""
        self._kept = None
        self.optimizer.zero_grad(set_to_none)

    @property
    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    # ---- a step ------------------------------------------------------------------------------------------------------

    def backward(self, losses: Losses, params: Params | None = None, **options: Any) -> Step:
        """Fill ``.grad`` as `paretograd.backward` does, in the metric of the optimizer, and keep the gradients.

        Args:
            losses: m scalars, a vector of m, or a dictionary.
            params: as for `paretograd.backward`.
            options: others of `paretograd.backward`.
        """
        if self._kept is not None:
            raise ParameterError(
                "backward was called twice before step(), which projects onto the gradients of one call. Call step() "
                "or zero_grad() in between; to accumulate micro-batches, give their losses in one call"
            )
        step = backward(losses, self.rule, params, metric=self._metric, keep_rows=True, **options)
        self._kept = step.kept
        return step

    @torch.no_grad()
    def step(self, closure: Callable[[], Losses] | None = None) -> Any:  # type: ignore[override]
        """Make an update that increases none of the losses.

        Args:
            closure: computes the losses, without a backward pass. Optimizers such as L-BFGS call it several times.
                Their update is projected onto the gradients of the first call.

        Returns:
            the sum of the losses of the closure; None without one.
        """
        params = self._params
        before = snapshot(params)
        kept: list[Kept | None] = [self._kept]

        def evaluate() -> Tensor:
            self.optimizer.zero_grad()
            self._kept = None
            with torch.enable_grad():
                losses = closure()  # type: ignore[misc]
                self.backward(losses)
            kept[0] = kept[0] or self._kept
            values = losses.values() if isinstance(losses, Mapping) else losses
            return torch.stack([loss.detach().reshape(()) for loss in values]).sum()

        if closure is not None:
            kept[0] = None
        elif kept[0] is None:
            raise ParameterError(
                "there are no gradients to project onto: call backward(losses) of this optimizer first"
            )
        value = self.optimizer.step() if closure is None else self.optimizer.step(evaluate)  # type: ignore[arg-type]
        self._kept = None
        if kept[0] is not None:
            self.last = self._project(kept[0], params, self._start(before))
        return value

    def _start(self, before: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the parameters before the update, and after a weight decay that is no part of it."""
        if self._decay == "exempt":
            for group in self.param_groups:
                decoupled = group.get("decoupled_weight_decay", type(self.optimizer).__name__ in _DECOUPLED)
                if decoupled and group.get("weight_decay"):
                    for param in group["params"]:
                        before[id(param)].mul_(1.0 - float(group["lr"]) * group["weight_decay"])
        return before

    def _project(self, kept: Kept, params: Sequence[Tensor], before: dict[int, Tensor]) -> Projection:
        """Correct the update that was just made, and return what was done."""
        own = {id(param) for param in params}
        for param in kept.params:
            before.setdefault(id(param), local(param).detach())  # of another optimizer: it does not move
        products = kept.measure(self._metric, [difference(kept.params, before)])
        gramian, slopes = products[:-1, :-1], products[:-1, -1]
        scale = np.sqrt(np.maximum(products.diagonal(), 0.0))
        scale = scale[:-1] * scale[-1]
        proposed = tuple(np.flatnonzero(slopes < -_ROUNDING * scale).tolist())
        self._noise *= _DECAY
        if not np.isfinite(products).all():
            self._reset(kept.params, own, before)
            raise ParameterError("the optimizer made an update that is not finite; the parameters stay as they were")
        if not proposed:
            return Projection()
        unit = unit_gramian(gramian, kept.eps)
        multipliers, margin = np.zeros(kept.m), self._noise
        cosines = slopes
        for _ in range(_CORRECTIONS):
            added = lift_slopes(unit, slopes - margin * scale).weights
            total = multipliers + added
            square = products[-1, -1] + 2.0 * total @ products[:-1, -1] + total @ gramian @ total
            if square <= _NOTHING**2 * products[-1, -1]:
                self._reset(kept.params, own, before)
                return Projection(proposed, 1.0)
            if margin and added @ gramian @ added > products[-1, -1]:  # the margin cannot be had
                break
            multipliers = total
            self._add(kept, own, added)
            found = kept.measure(None, [difference(kept.params, before)])
            slopes = found[:-1, -1]
            norms = np.sqrt(np.maximum(found.diagonal(), 0.0))
            norms = norms[:-1] * norms[-1]
            cosines = np.divide(slopes, norms, out=np.zeros_like(slopes), where=norms > 0.0)
            if cosines.min() >= -0.1 * CONFLICT:
                break
            lowered = np.divide(-slopes, scale, out=np.zeros_like(slopes), where=scale > 0.0)
            self._noise = margin = max(margin, _MARGIN * float(lowered.max()))
        conflicts = tuple(np.flatnonzero(cosines < -CONFLICT).tolist())
        if conflicts and all(torch.finfo(param.dtype).eps <= _FINE for param in kept.params):
            self._reset(kept.params, own, before)
            return Projection(proposed, 1.0)
        change = float(np.sqrt(max(multipliers @ gramian @ multipliers, 0.0) / products[-1, -1]))
        return Projection(proposed, change, conflicts)

    def _add(self, kept: Kept, own: set[int], multipliers: Array) -> None:
        """Add ``P J.T v`` to the update, which is to subtract it from the parameters."""
        pairs = [(param, part) for param, part in kept.combine(torch.from_numpy(multipliers)) if id(param) in own]
        parts = [part.to_dense() if part.is_sparse else part for _, part in pairs]
        for (param, _), part in zip(pairs, self._metric.apply([param for param, _ in pairs], parts), strict=True):
            local(param).detach().sub_(part)

    def _reset(self, params: Sequence[Tensor], own: set[int], before: dict[int, Tensor]) -> None:
        for param in params:
            if id(param) in own:
                local(param).detach().copy_(before[id(param)])

    def metrics(self, prefix: str = "mo/") -> dict[str, float]:
        """Return a flat dict of floats about the last update, for any tracker."""
        found = {
            "proposed_conflicts": float(len(self.last.proposed)),
            "update_conflicts": float(len(self.last.conflicts)),
            "update_change": self.last.change,
        }
        return {f"{prefix}{key}": value for key, value in found.items()}

    def __repr__(self) -> str:
        return f"Unconflicting({self.optimizer!r}, {self.rule!r})"


#: Optimizers with decoupled weight decay whose groups do not say so.
_DECOUPLED = frozenset({"AdamW", "Muon", "Adafactor"})
