"""Priority-constrained descent, which follows one objective while the others progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.aggregators.memory import Memory, check_count, check_keys
from paretograd.checks import as_number, as_weights
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import DYNAMIC_STEP, Guarantee
from paretograd.solution import Outcome, Status, status_of
from paretograd.solvers.dual_cone import lift_slopes


class Average(NamedTuple):
    """A moving average of squared norms, ``(m,)``, not corrected for its start at zero, and its number of steps."""

    steps: int
    squares: list[float]


class PCD(GramianAggregator):
    r"""Priority-constrained descent: the first objective's gradient, changed as little as the others need to progress.

    $$ \tilde d = \arg\min_d \tfrac12 \|d - \tilde g_1\|^2 \;\text{ subject to }\;
       \langle d, \tilde g_k \rangle \ge \tau_k \|\tilde g_k\|^2 \;\text{ for } k \ge 2 $$

    $$ d = \frac{\|g_1\|}{\|\tilde d\|}\, \tilde d, \qquad \tilde g_k = g_k / \sqrt{\hat v_k} $$

    Here $\hat v_k$ is the moving average of $\|g_k\|^2$, corrected for its start as in Adam. So $\tau_k$ is the share
    of the progress that a step along its own normalized gradient would give to an objective. The paper has one tau for
    all; the authors' code and TorchJD also take several. If the constraints exclude each other, $d = g_1$ and the
    status is ``INFEASIBLE``; if $g_1 = 0$, d is zero.

    The paper adds 1e-8 to $\hat v_k$, which would make the direction depend on the unit of a loss. It is left out here.
    With ``tau=0`` the averages do not matter, and $\tilde d$ is the projection of $g_1$ onto the dual cone: d is then
    non-conflicting. For ``tau > 0`` the first objective itself may increase.

    Each call is a step, which updates the averages. A batch is one step, and so is a call of `backward`. Each Gramian
    of a batch and each parameter group has averages of its own. `state_dict` saves them.

    Args:
        tau: the share of progress of every objective but the first, from 0 to 1: one number, or one for each of them.
        beta: decay of the averages, at least 0 and below 1.
    """

    name = "pcd"
    label = "PCD"
    description = Description(
        formula="d along argmin |d - g~_1|^2 subject to <d, g~_k> >= tau |g~_k|^2 for k >= 2,  |d| = |g_1|",
        reference="Varam and AlHajri 2026, arXiv:2606.29521",
        paper="not discussed",
        when="One objective is the goal, and the others are side conditions that must not stall.",
    )

    def __init__(self, tau: float | Sequence[float] | Tensor | Array = 0.02, beta: float = 0.999) -> None:
        if not 0.0 <= as_number(beta, "beta") < 1.0:
            raise ParameterError(f"beta={beta:g}: the decay of the averages is at least 0 and below 1")
        self.tau, self.beta = _shares(tau), beta
        self._memory: Memory[Average] = Memory()

    @property
    def guarantee(self) -> Guarantee:
        r"""Theorem 1 if tau is 0: d is then a multiple of a projection onto the dual cone. Otherwise only the cone.

        Let p be the projection of $g_1$. It has non-negative weights, that of $g_1$ at least one, and it is no longer
        than $g_1$. So $d = \|g_1\| p / \|p\|$ has weights that sum to at least one. For every tau, $\|d\| = \|g_1\|
        \ge \gamma$, and gradients that are scaled from the first step on change only that length. If gamma > 0, the
        constraints have interior points, and the projection onto them is continuous and not zero.
        """
        if not np.any(self.tau):
            return Guarantee(
                "thm:PS-fd",
                non_conflicting=True,
                in_cone=True,
                beyond_hull=True,
                equivariant=False,
                scale_invariant=True,
                continuous_inside=True,
                note=DYNAMIC_STEP,
            )
        return Guarantee(
            None,
            in_cone=True,
            long=True,
            recalls_lengths=True,
            scale_invariant=True,
            continuous_inside=True,
            equivariant=False,
            note="All objectives but the first progress, if that is possible. Non-conflicting for tau = 0 only.",
        )

    def one_step(self) -> AbstractContextManager[None]:
        return self._memory.step()

    def _turn_to(self, part: int) -> None:
        self._memory.turn_to(part)

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._step(G, eps, least=False)

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._step(G, eps, least=True)

    def _solve(self, unit: UnitGramian) -> Outcome:
        return self._direction(unit, self._averaged(unit), least=False)

    def _step(self, G: Array, eps: float, least: bool) -> Outcome:
        """Solve, and keep the averages once, even if the Gramian must be repaired."""
        with self.one_step():
            averages: list[Average] = []

            def solve(unit: UnitGramian) -> Outcome:
                averages.append(self._averaged(unit))
                return self._direction(unit, averages[-1], least)

            outcome = self._repaired(G, eps, solve)
            self._memory.keep(averages[0])
            return outcome

    def _taus(self, m: int) -> Array:
        """Return the share of each objective, shape ``(m,)``; that of the first does not matter."""
        if isinstance(self.tau, list) and len(self.tau) != m - 1:
            raise ParameterError(
                f"tau has {len(self.tau)} numbers, but {m - 1} of the m = {m} objectives have a share; give one for "
                "each objective but the first, or one for all"
            )
        taus = np.zeros(m)
        taus[1:] = self.tau
        return taus

    def _averaged(self, unit: UnitGramian) -> Average:
        """Return the averages after this step."""
        squares, before = unit.expand(unit.norms**2), self._memory.recall()
        if before is None:
            before = Average(0, [0.0] * unit.m)
        check_count(self.label, len(before.squares), unit.m)
        after = self.beta * np.array(before.squares) + (1.0 - self.beta) * squares
        return Average(before.steps + 1, after.tolist())

    def _direction(self, unit: UnitGramian, average: Average, least: bool) -> Outcome:
        taus = unit.restrict(self._taus(unit.m))[1:]
        if not len(unit.norms) or (unit.live is not None and unit.live[0] != 0):
            return Outcome(np.zeros(unit.m), Status.STATIONARY)
        means = unit.restrict(np.array(average.squares)) / (1.0 - self.beta**average.steps)
        lengths = unit.norms / np.sqrt(means)  # of the normalized gradients
        others = UnitGramian(unit.C[1:, 1:], lengths[1:], None, len(lengths) - 1, unit.eps)
        slopes = lengths[1:] * (unit.C[0, 1:] * lengths[0] - taus * lengths[1:])
        found = lift_slopes(others, slopes, bounded=not taus.any(), least=least)
        if found.residual == math.inf:
            weights = np.zeros(unit.m)
            weights[0] = 1.0
            return Outcome(weights, Status.INFEASIBLE, 0.0, found.steps)
        y = np.append(lengths[0], found.weights * lengths[1:])
        length = math.sqrt(max(float(y @ unit.C @ y), 0.0))
        if length <= unit.resolution * float(y.sum()):  # no more than rounding of the rows is left of g_1
            return Outcome(np.zeros(unit.m), Status.STATIONARY, found.residual, found.steps)
        # If the constraints nearly exclude each other, d is long before it is scaled, and so are its errors.
        size = float(np.abs(slopes / lengths[1:]).max(initial=0.0))
        residual = found.residual * size / max(length, size)
        weights = unit.expand(y / length * (unit.norms[0] / unit.norms))
        return Outcome(weights, status_of(residual, unit.m, found.growth), residual, found.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages of every part of a step."""
        kept = self._memory.state_dict()
        return {"averages": {part: {"steps": found.steps, "squares": found.squares} for part, found in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise for the state of another rule, and change nothing."""
        check_keys(self.label, state, {"averages"})
        self._memory.load({part: _average(found) for part, found in state["averages"].items()})


def _shares(tau: float | Sequence[float] | Tensor | Array) -> float | list[float]:
    """Validate one share, or several."""
    given = tau.tolist() if isinstance(tau, (Tensor, np.ndarray)) else tau
    if not isinstance(given, (list, tuple)):
        share = as_number(given, "tau")
        if not 0.0 <= share <= 1.0:
            raise ParameterError(f"tau={share:g}: the share of progress is between 0 and 1")
        return share
    shares = [as_number(share, "tau") for share in given]
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise ParameterError(
            f"tau={shares}: shares of progress are between 0 and 1, one for each objective but the first"
        )
    return shares


def _average(found: Mapping[str, Any]) -> Average:
    """Validate the averages of one part."""
    steps, squares = found["steps"], found["squares"]
    if type(steps) is not int or steps < 1:
        raise ParameterError(f"PCD's averages are of steps={steps!r}; it must be a whole number of at least 1")
    checked = as_weights(squares, "squares") if any(squares) else np.zeros(len(squares))
    return Average(steps, checked.tolist())
