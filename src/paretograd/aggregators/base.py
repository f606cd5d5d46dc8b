"""What every aggregation rule has: a Jacobian in, a direction out; or a Gramian in, weights out."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.callers import callers_level
from paretograd.checks import shown_value
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import (
    Array,
    as_array,
    combine,
    enlarge,
    gramian,
    quick_gramian,
    scale_by_power,
    underflows,
)
from paretograd.geometry.unit_gramian import UnitGramian, unit_gramian
from paretograd.geometry.validation import check_gramian
from paretograd.guarantees import Guarantee
from paretograd.plain import from_json, to_json
from paretograd.solution import Outcome, Solution, Status


@dataclass(frozen=True)
class Description:
    """What ``paretograd explain`` and the docs show of a rule."""

    formula: str
    reference: str
    paper: str
    when: str


class Aggregator(ABC):
    """A rule that turns m gradients into one direction ``d``; parameters move by ``-lr * d``.

    A rule sees the gradients through their Gramian alone and answers with weights: ``d = J.T @ w``.
    """

    #: Name in the registry and on the command line.
    name: ClassVar[str]
    #: The paper's name, for tables and legends.
    label: ClassVar[str]
    description: ClassVar[Description]

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What the theory promises about every direction of this rule."""

    @abstractmethod
    def _answer(self, G: Array, eps: float) -> Outcome:
        """Weights for one Gramian in float64, whose entries are off by about ``eps``; it may be anything square."""

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        """As `_answer`; where weights are not unique, the smallest, which do not depend on the order of the rows."""
        return self._answer(G, eps)

    def _outcome(self, G: Array, eps: float) -> Outcome:
        """The same for callers who hand on the weights alone: it warns where they are not exact."""
        outcome = self._answer(G, eps)
        if not outcome.status.ok:
            _warn_if_inexact(self, outcome.status, outcome.residual, eps)
        return outcome

    def solve(self, gramian: Tensor) -> Solution:
        """Weights for a Gramian, with the evidence for them.

        Args:
            gramian: ``J @ J.T``, shape ``(..., m, m)``; leading dimensions are a batch.
        """
        array, eps = _read(gramian)
        if array.ndim == 2:
            return self._solution(array, eps, gramian)
        m = array.shape[-1]
        with self.one_step():
            items = tuple(self._solution(G, eps, gramian) for G in array.reshape(-1, m, m))
        stacked = torch.stack([item.weights for item in items]) if items else gramian.new_empty(0)
        return Solution.of_batch(stacked.reshape(gramian.shape[:-1]), items)

    def _solution(self, G: Array, eps: float, like: Tensor) -> Solution:
        outcome = self._answer(G, eps)
        return Solution(as_tensor(outcome.weights, like), outcome.status, outcome.residual, outcome.steps)

    def weights(self, gramian: Tensor) -> Tensor:
        """Weights of shape ``(..., m)``, in the Gramian's dtype and on its device; a poor solve is warned of."""
        array, eps = _read(gramian)
        if array.ndim == 2:  # the common case, without the evidence
            return as_tensor(self._outcome(array, eps).weights, gramian)
        solution = self.solve(gramian)
        if not solution.status.ok:
            _warn_if_inexact(self, solution.status, solution.residual, eps)
        return solution.weights

    def __call__(self, jacobian: Tensor) -> Tensor:
        """The direction, shape ``(..., n)``, from a Jacobian ``(..., m, n)`` with one row per objective.

        The Gramian, the weights and the sum are computed in float64, but for a few long float32 rows on a GPU, whose
        products are float32's; the result has the Jacobian's dtype.
        """
        quick = quick_gramian(jacobian)
        if quick is not None:
            return combine(torch.from_numpy(self._outcome(*quick).weights), jacobian)
        G = gramian(jacobian)
        if underflows(jacobian, G) and (degree := self.guarantee.degree) is not None:
            large, exponent = enlarge(jacobian)
            return scale_by_power(combine(self.weights(gramian(large)), large), degree * exponent[..., None])
        return combine(self.weights(G), jacobian)

    def one_step(self) -> AbstractContextManager[None]:
        """All calls within count as one step, for a rule that changes from step to step, such as `Mixed`.

        A batch is one step, and so are the groups of a `backward`; use it where you aggregate parts of a step apart.
        """
        return nullcontext()

    def normalized(self) -> Aggregator:
        """The starred variant of the paper (UPGrad*): weights divided by the sum of their magnitudes."""
        from paretograd.aggregators.normalized import Normalized

        return Normalized(self)

    def as_module(self) -> AggregatorModule:
        """The rule as a `torch.nn.Module`: as an attribute of a model, it has its state in the model's `state_dict`."""
        return AggregatorModule(self)

    def _starred_guarantee(self) -> Guarantee:
        return self.guarantee.normalized()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep; empty for a rule without state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ParameterError(f"{self!r} has no state, but the state to load holds {sorted(state)}")

    def __repr__(self) -> str:
        """The call that makes this rule anew, less what is the default."""
        shown = []
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            value = getattr(self, name, parameter.default)
            if name != "self" and value is not parameter.default and value != parameter.default:
                shown.append(f"{name}={shown_value(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


class GramianAggregator(Aggregator):
    """A rule that solves a problem on the Gramian, checked and split into cosines and norms."""

    @abstractmethod
    def _solve(self, unit: UnitGramian) -> Outcome:
        """Weights for one Gramian."""

    def _solve_least(self, unit: UnitGramian) -> Outcome:
        """The smallest weights that give the same direction, for a rule whose weights may not be unique."""
        return self._solve(unit)

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._repaired(G, eps, self._solve)

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._repaired(G, eps, self._solve_least)

    @staticmethod
    def _repaired(G: Array, eps: float, solve: Callable[[UnitGramian], Outcome]) -> Outcome:
        unit = unit_gramian(G, eps)
        outcome = solve(unit)
        if outcome.status is Status.INACCURATE:
            repaired = unit.nearest_semidefinite()
            if repaired is not None:
                return solve(repaired)
        return outcome


class AggregatorModule(nn.Module):
    """A module without parameters whose `state_dict` holds the state of a rule.

    The state is one tensor of bytes, JSON in UTF-8: `torch.load` reads it with ``weights_only=True``, and a loop over
    the entries of a `state_dict` finds nothing but tensors.

    Args:
        aggregator: the rule; it stays as it is, and `backward` takes either.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(self, jacobian: Tensor) -> Tensor:
        """The rule's direction, shape ``(..., n)``, from a Jacobian of shape ``(..., m, n)``."""
        return self.aggregator(jacobian)

    def get_extra_state(self) -> Tensor:
        """What the module adds to a `state_dict`."""
        text = to_json(self.aggregator.state_dict())
        return torch.from_numpy(np.frombuffer(bytearray(text.encode()), dtype=np.uint8))

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what `get_extra_state` returned."""
        found = from_json(state.cpu().numpy().tobytes().decode(errors="replace"))
        try:
            self.aggregator.load_state_dict(found)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"the state of {self.aggregator!r} cannot be loaded ({error!r})") from error

    def extra_repr(self) -> str:
        return repr(self.aggregator)


def _warn_if_inexact(rule: object, status: Status, residual: float, eps: float) -> None:
    """Warn where a solve ended INACCURATE by more than `_NEGLIGIBLE` and than the rounding of its Gramian.

    The residual is told by its power of ten: Python shows the same words once for each place, so that a training loop
    gets a few lines and not one for each step.

    Args:
        rule: whose weights they are.
        status: of the solve.
        residual: of the solve.
        eps: relative rounding of the Gramian's entries.
    """
    if status is not Status.INACCURATE or residual <= max(_NEGLIGIBLE, eps):
        return
    size = f"up to 1e{math.ceil(math.log10(residual)):+03d}" if math.isfinite(residual) else str(residual)
    warnings.warn(
        f"inexact weights: {rule!r} did not solve its problem to rounding, the residual is {size}, and the direction "
        "may be off by as much. rule.solve(G) on the Gramian tells more, and pg.certify(G, weights) what still holds",
        stacklevel=callers_level(),
    )


def _read(gramian: Tensor) -> tuple[Array, float]:
    """The checked values, and the rounding error that their dtype stands for."""
    check_gramian(gramian)
    return as_array(gramian), _EPS.get(gramian.dtype, 2e-16)


def as_tensor(weights: Array, like: Tensor) -> Tensor:
    """Weights in the dtype and on the device of a Gramian."""
    if like.dtype is torch.float32 and like.is_cpu:
        return torch.from_numpy(weights.astype(np.float32))
    return torch.from_numpy(weights).to(dtype=like.dtype, device=like.device)


#: Residuals up to this stay below what a float64 Gramian resolves of lengths: they change no step that is taken.
_NEGLIGIBLE = 1e-8

#: Rounding error of a Gramian's entries by dtype.
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
