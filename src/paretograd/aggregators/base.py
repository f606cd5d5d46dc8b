"""Base classes of all aggregation rules: from a Jacobian to a direction, or from a Gramian to weights."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.callers import callers_level
from paretograd.checks import shown_value
from paretograd.disk import from_json, to_json
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
from paretograd.geometry.unit_gramian import UnitGramian, check_gramian, unit_gramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Solution, Status


@dataclass(frozen=True)
class Description:
    """Texts about a rule that ``paretograd explain`` and the documentation show."""

    formula: str
    reference: str
    paper: str
    when: str


class Aggregator(ABC):
    """A rule that combines m gradients into one direction ``d``. Parameters move by ``-lr * d``.

    A rule sees only the Gramian of the gradients and returns weights: ``d = J.T @ w``.
    """

    #: Name in the registry and on the command line.
    name: ClassVar[str]
    #: The paper's name, for tables and legends.
    label: ClassVar[str]
    description: ClassVar[Description]
    #: What a step needs: the ``gramian``, the ``rows``, the ``losses``, or independent ``batches``.
    needs: frozenset[str] = frozenset({"gramian"})

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Properties that the theory guarantees for every direction of this rule."""

    @abstractmethod
    def _answer(self, G: Array, eps: float) -> Outcome:
        """Return the weights for one float64 matrix, shape ``(m, m)``, whose entries are accurate to about ``eps``.

        The caller has not checked that the matrix is a Gramian.
        """

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        """Return the same as `_answer`, but the smallest weights if they are not unique.

        These do not depend on the order of the rows.
        """
        return self._answer(G, eps)

    def _outcome(self, G: Array, eps: float) -> Outcome:
        """Return the same as `_answer`, and warn if the weights are not exact. The caller keeps only the weights."""
        outcome = self._answer(G, eps)
        if not outcome.status.ok:
            _warn_if_inexact(self, outcome.status, outcome.residual, eps)
        return outcome

    def solve(self, gramian: Tensor) -> Solution:
        """Return the weights for a Gramian, with the status and residual of the solve.

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
        """Return weights, shape ``(..., m)``, with the Gramian's dtype and device. Warn if they are inaccurate."""
        array, eps = _read(gramian)
        if array.ndim == 2:  # the common case needs no Solution
            return as_tensor(self._outcome(array, eps).weights, gramian)
        solution = self.solve(gramian)
        if not solution.status.ok:
            _warn_if_inexact(self, solution.status, solution.residual, eps)
        return solution.weights

    def __call__(self, jacobian: Tensor) -> Tensor:
        """Return the direction, shape ``(..., n)``, for a Jacobian ``(..., m, n)`` with one row per objective.

        The Gramian, the weights and the sum are computed in float64. The exception is a few long float32 rows on a GPU,
        whose products are computed in float32. The result has the Jacobian's dtype.
        """
        quick = quick_gramian(jacobian)
        if quick is not None:
            return combine(torch.from_numpy(self._outcome(*quick).weights), jacobian)
        G = gramian(jacobian)
        if underflows(jacobian, G):
            promise = self.guarantee
            if promise.degree is not None and not promise.recalls_lengths:
                large, exponent = enlarge(jacobian)
                found = combine(self.weights(gramian(large)), large)
                return scale_by_power(found, promise.degree * exponent[..., None])
        return combine(self.weights(G), jacobian)

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:  # noqa: B027  # most rules ignore them
        """Tell the rule the values of the losses before a step. `paretograd.backward` does so if the rule needs them.

        Args:
            losses: one number per objective.
        """

    def one_step(self) -> AbstractContextManager[None]:
        """Join all calls inside this context into one step, for a rule that changes with the step, such as `Mixed`.

        A batch is one step, and so are all groups of one `backward`. Use this if you aggregate parts of a step
        separately. A rule that keeps numbers from step to step, such as `GradVac`, keeps them for each call of a step.
        """
        return nullcontext()

    def _turn_to(self, part: int) -> None:
        """Within a step, let the next call count as this one, from 0, for a rule that keeps something for each call.

        Use this if calls are left out: a run that has stopped must not pass its state on to the next one.
        """
        return  # most rules keep nothing

    def normalized(self) -> Aggregator:
        """Return the paper's starred variant (UPGrad*), whose weights are divided by the sum of their magnitudes."""
        from paretograd.aggregators.normalized import Normalized

        return Normalized(self)

    def as_module(self) -> AggregatorModule:
        """Return the rule as a `torch.nn.Module`. In a model, it saves its state in the model's `state_dict`."""
        return AggregatorModule(self)

    def _starred_guarantee(self) -> Guarantee:
        return self.guarantee.normalized()

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint; empty for a rule without state."""
        return {}

    def _common_state(self) -> dict[str, Any]:
        """Return the part of the state that processes with a common model compare before a step."""
        return self.state_dict()

    def _take_common_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_common_state` returned on another process."""
        self.load_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ParameterError(f"{self!r} has no state, but the state to load contains {sorted(state)}")

    def __repr__(self) -> str:
        """Return the expression that recreates this rule, without default arguments."""
        shown = []
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            value = getattr(self, name, parameter.default)
            if name != "self" and value is not parameter.default and value != parameter.default:
                shown.append(f"{name}={shown_value(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


class GramianAggregator(Aggregator):
    """A rule that solves a problem on the validated Gramian, given as cosines and norms."""

    @abstractmethod
    def _solve(self, unit: UnitGramian) -> Outcome:
        """Return the weights for one Gramian."""

    def _solve_least(self, unit: UnitGramian) -> Outcome:
        """Return the smallest weights that give the same direction. Override it if the weights may not be unique."""
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


#: Entry of a state that holds rows of gradients, as a list of tensors.
ROWS = "rows"


class AggregatorModule(nn.Module):
    """A module without parameters whose `state_dict` holds the state of a rule.

    The state is one tensor of bytes that holds JSON in UTF-8, so that all entries of a `state_dict` are tensors. If the
    rule keeps rows, it is a dictionary of such a tensor and a list of these. `torch.load` reads both with
    ``weights_only=True``.

    Args:
        aggregator: the rule. It remains usable on its own, and `backward` accepts either.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(self, jacobian: Tensor) -> Tensor:
        """Return the rule's direction, shape ``(..., n)``, for a Jacobian of shape ``(..., m, n)``."""
        return self.aggregator(jacobian)

    def get_extra_state(self) -> Any:
        """Return the rule's state, for the module's `state_dict`."""
        state = self.aggregator.state_dict()
        rows = state.pop(ROWS, None)
        text = torch.from_numpy(np.frombuffer(bytearray(to_json(state).encode()), dtype=np.uint8))
        return text if rows is None else {"state": text, ROWS: rows}

    def set_extra_state(self, state: Any) -> None:
        """Restore what `get_extra_state` returned."""
        rows = None
        if isinstance(state, Mapping):
            state, rows = state["state"], state[ROWS]
        found = from_json(state.cpu().numpy().tobytes().decode(errors="replace"))
        if rows is not None:
            found[ROWS] = rows
        try:
            self.aggregator.load_state_dict(found)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"the state of {self.aggregator!r} cannot be loaded ({error!r})") from error

    def extra_repr(self) -> str:
        return repr(self.aggregator)


def _warn_if_inexact(rule: object, status: Status, residual: float, eps: float) -> None:
    """Warn if a solve ended INACCURATE and its residual exceeds `_NEGLIGIBLE` and the rounding of its Gramian.

    The message rounds the residual up to a power of ten. Python shows the same message only once for each line, so a
    training loop prints a few warnings and not one for each step.

    Args:
        rule: the rule that computed the weights.
        status: status of the solve.
        residual: residual of the solve.
        eps: relative rounding error of the Gramian's entries.
    """
    if status is not Status.INACCURATE or residual <= max(_NEGLIGIBLE, eps):
        return
    size = f"up to 1e{math.ceil(math.log10(residual)):+03d}" if math.isfinite(residual) else str(residual)
    warnings.warn(
        f"inexact weights: {rule!r} did not solve its problem to rounding. The residual is {size}, and the error of "
        "the direction may be as large. rule.solve(G) gives details; pg.certify(G, weights) checks what still holds",
        stacklevel=callers_level(),
    )


def _read(gramian: Tensor) -> tuple[Array, float]:
    """Validate a Gramian, and return its values with the rounding error of its dtype."""
    check_gramian(gramian)
    return as_array(gramian), _EPS.get(gramian.dtype, 2e-16)


def as_tensor(weights: Array, like: Tensor) -> Tensor:
    """Return the weights in the dtype and on the device of a Gramian."""
    if like.dtype is torch.float32 and like.is_cpu:
        return torch.from_numpy(weights.astype(np.float32))
    return torch.from_numpy(weights).to(dtype=like.dtype, device=like.device)


#: Largest residual without a warning: a float64 Gramian resolves lengths no better.
_NEGLIGIBLE = 1e-8

#: Rounding error of a Gramian's entries, by dtype.
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
