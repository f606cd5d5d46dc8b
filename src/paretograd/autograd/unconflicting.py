"""`Unconflicting`: an optimizer whose updates increase none of the losses, to first order on their batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
    """The outcome of one update.

    Attributes:
        proposed: numbers of the losses that the optimizer's own update would have increased.
        change: length of the correction relative to that of the update. It is one if the parameters stay as they are,
            because nothing but rounding was left of the update.
        conflicts: numbers of the losses that the corrected update increases: none, unless the parameters are too coarse
            for it, as in bfloat16.
    """

    proposed: tuple[int, ...] = ()
    change: float = 0.0
    conflicts: tuple[int, ...] = ()


class Unconflicting(Optimizer):
    """Wraps an optimizer, and corrects its updates so that none of the losses increases.

    `backward` aggregates the gradients, and keeps them. `step` lets the optimizer make its update, momentum and all,
    and projects it onto the updates with ``<g_k, u> >= 0`` for all losses, by the least change in its metric.

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
        aggregate_in_metric: bool = False,
        decay: Literal["included", "exempt"] = "included",
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: any optimizer of torch, or with its interface.
            rule: the aggregator.
            metric: as for `backward`; None for that of the optimizer, or the identity if that is not known.
            aggregate_in_metric: let the rule work in the metric, too, as ``backward(metric=...)`` does. This needs all
                rows of the Jacobian.
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
        self._decay, self._aggregate_in_metric = decay, aggregate_in_metric
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
        """Fill ``.grad`` as `paretograd.backward` does, and keep the gradients of all losses.

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
        metric = self._metric if self._aggregate_in_metric else None
        step = backward(losses, self.rule, params, metric=metric, keep_rows=True, **options)
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
        if closure is None and self._kept is None:
            raise ParameterError(
                "there are no gradients to project onto: call backward(losses) of this optimizer first"
            )
        params = self._params
        before = snapshot(params)
        with ExitStack() as using, ExitStack() as updating:
            held: list[Kept] = []

            def hold() -> None:
                """Keep the gradients of the last call of `backward`, if they are the first ones of this step."""
                if self._kept is not None and not held:
                    held.append(self._kept)
                    using.enter_context(self._kept.used())
                    updating.enter_context(self._kept.updating())
                self._kept = None

            def evaluate() -> Tensor:
                self.zero_grad()
                with torch.enable_grad():
                    losses = closure()  # type: ignore[misc]
                    self.backward(losses)
                hold()
                values = losses.values() if isinstance(losses, Mapping) else losses
                return torch.stack([loss.detach().reshape(()) for loss in values]).sum()

            if closure is None:
                hold()
            value = self.optimizer.step(evaluate if closure is not None else None)  # type: ignore[arg-type]
            updating.close()
            if held:
                self.last = self._project(held[0], params, self._start(before))
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
        for param in kept.params:
            before.setdefault(id(param), local(param).detach())  # of another optimizer: it does not move
        change = difference(kept.params, before)
        proposal = update = _Measured.of(kept, change)
        movable = {id(param) for param in params}
        self._noise *= _DECAY
        if not (np.isfinite(proposal.slopes).all() and np.isfinite(proposal.length)):
            _move(kept.params, movable, before)
            raise ParameterError("the optimizer made an update that is not finite; the parameters stay as they were")
        proposed = tuple(np.flatnonzero(proposal.cosines < -_ROUNDING).tolist())
        if not proposed:
            return Projection()
        cone = _Cone(kept, self._metric, movable, proposal.norms)
        for _ in range(_CORRECTIONS):
            if not cone.correct(update.unit_slopes - self._noise * proposal.length):
                break
            update = _Measured.of(kept, difference(kept.params, before), change)
            if update.cosines.min() >= -0.1 * CONFLICT:
                break
            self._noise = max(self._noise, -_MARGIN * float(update.unit_slopes.min()) / proposal.length)
        conflicts = tuple(np.flatnonzero(update.cosines < -CONFLICT).tolist())
        fine = all(torch.finfo(param.dtype).eps <= _FINE for param in kept.params)
        if update.length <= _NOTHING * proposal.length or (conflicts and fine):
            _move(kept.params, movable, before)
            return Projection(proposed, 1.0)
        return Projection(proposed, update.distance / proposal.length, conflicts)

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


class _Measured(NamedTuple):
    """An update, compared with the gradients.

    Attributes:
        slopes: its inner products with them.
        norms: their lengths.
        length: its length.
        distance: from the optimizer's own update.
    """

    slopes: Array
    norms: Array
    length: float
    distance: float

    @classmethod
    def of(cls, kept: Kept, update: dict[int, Tensor], proposal: dict[int, Tensor] | None = None) -> _Measured:
        m = kept.m
        products = kept.measure([update] if proposal is None else [update, proposal])
        lengths = np.sqrt(np.maximum(products.diagonal(), 0.0))
        square = 0.0 if proposal is None else products[m, m] - 2.0 * products[m, m + 1] + products[m + 1, m + 1]
        return cls(products[:m, m], lengths[:m], float(lengths[m]), float(np.sqrt(max(square, 0.0))))

    @property
    def unit_slopes(self) -> Array:
        """The slopes of gradients of length one; zero for those of length zero."""
        return np.divide(self.slopes, self.norms, out=np.zeros_like(self.slopes), where=self.norms > 0.0)

    @property
    def cosines(self) -> Array:
        return self.unit_slopes / self.length if self.length > 0.0 else np.zeros_like(self.slopes)


class _Cone:
    """The cone of updates that do not conflict, and the least change of an update that leads into it.

    Most gradients have no part in a projection. So the columns ``J P g_k`` of the Gramian in the metric are computed
    only for gradients with which the update conflicts on the way. Once it conflicts with none, the projection is the
    one for all gradients. All gradients are taken at length one.
    """

    def __init__(self, kept: Kept, metric: Metric, movable: set[int], norms: Array) -> None:
        self._kept = kept
        self._movable = [param for param in kept.params if id(param) in movable]
        self._metric = metric.held(self._movable)
        self._inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0.0)
        self._columns: dict[int, Array] = {}
        self._longest = 0.0

    def correct(self, slopes: Array) -> bool:
        """Add ``P J.T v`` to the update with the least ``v >= 0`` that lifts these slopes to zero.

        Returns:
            False if this would be more than the first correction, and nothing was done. There is no such v then, up to
            rounding.
        """
        multipliers = self._multipliers(slopes)
        lifted = sum(multipliers[k] * column for k, column in self._columns.items())
        square = float(np.dot(multipliers, lifted))  # of the length in the norm of updates
        if self._longest and square > self._longest:
            return False
        self._longest = max(self._longest, square)
        pairs = self._kept.multiplied(self._metric, self._movable, multipliers * self._inverse)
        with self._kept.updating():
            for param, part in pairs:
                local(param).detach().sub_(part)  # an update is subtracted
        return True

    def _multipliers(self, slopes: Array) -> Array:
        """Return the least ``v >= 0`` for which ``slopes + J P J.T v >= 0``."""
        least = -_ROUNDING * float(np.abs(slopes).max())
        while True:
            active = sorted(self._columns)
            found = np.zeros(self._kept.m)
            if active:
                gramian = np.stack([self._columns[k][active] for k in active])
                unit = unit_gramian(0.5 * (gramian + gramian.T), self._kept.eps)
                found[active] = lift_slopes(unit, slopes[active]).weights
            lifted = slopes + sum(found[k] * self._columns[k] for k in active)
            lowest = min(
                (k for k in range(self._kept.m) if k not in self._columns), key=lambda k: lifted[k], default=None
            )
            if lowest is None or lifted[lowest] >= least:
                return found
            self._columns |= self._kept.columns(self._metric, self._movable, self._inverse, lowest)


def _move(params: Sequence[Tensor], movable: set[int], values: dict[int, Tensor]) -> None:
    """Set the parameters that may move."""
    for param in params:
        if id(param) in movable:
            local(param).detach().copy_(values[id(param)])


#: Optimizers with decoupled weight decay whose groups do not say so.
_DECOUPLED = frozenset({"AdamW", "Muon", "Adafactor"})
