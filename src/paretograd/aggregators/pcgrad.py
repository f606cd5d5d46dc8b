"""PCGrad, which removes conflicts by projections in one pass, and PCGrad+, which repeats until no conflict is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import make_rng
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import DYNAMIC_STEP, Guarantee
from paretograd.solution import Outcome, Status, status_of
from paretograd.solvers.sweeps import Sweep, sweep_in_order, sweep_shuffled, sweep_to_limit


def gather(unit: UnitGramian, coefficients: Array, mean: bool) -> Array:
    """Return weights of the sum (or mean) of the projected gradients, from their coefficients for unit gradients."""
    w = (unit.norms @ coefficients) / unit.norms
    full = unit.expand(w, fill=1.0)
    return full / unit.m if mean else full


def check_sweep(order: str, reduction: str) -> None:
    """Validate how gradients meet the others, and what becomes of them. Papers and codes differ in both."""
    if order not in ("given", "shuffled"):
        raise ParameterError(f"order={order!r}: use 'given' or 'shuffled'")
    if reduction not in ("mean", "sum"):
        raise ParameterError(f"reduction={reduction!r}: use 'mean' or 'sum'")


class PCGrad(GramianAggregator):
    r"""Gradient surgery: one pass of projections that remove from each gradient its conflicts with the others.

    $$ g_k \leftarrow g_k + \frac{(-\langle g_k, g_i \rangle)_+}{\|g_i\|^2}\, g_i
       \quad\text{for } i \in [m], \qquad d = \frac1m \sum_k g_k $$

    For m = 2 this is UPGrad. For m >= 3 one pass may leave conflicts, and the order of the objectives matters.
    The default follows the paper: the given order, and the mean. The original code shuffles and sums.

    Args:
        order: ``"given"`` or ``"shuffled"``.
        reduction: ``"mean"`` or ``"sum"``.
        seed: seed for shuffling; None draws one from torch's global generator.
        generator: a torch generator from which to draw the seed instead.
    """

    name = "pcgrad"
    label = "PCGrad"
    description = Description(
        formula="g_k <- g_k + max(-<g_k, g_i>, 0) / |g_i|^2 g_i for every i, once; d = (1/m) sum_k g_k",
        reference="Yu et al. 2020, arXiv:2001.06782",
        paper="appendix PCGrad",
        when="Two objectives (where it is UPGrad), or for comparison. Prefer UPGrad or PCGrad+ for three and more.",
    )

    def __init__(
        self,
        order: Literal["given", "shuffled"] = "given",
        reduction: Literal["mean", "sum"] = "mean",
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sweep(order, reduction)
        self.order, self.reduction, self.seed = order, reduction, seed
        self._rng = make_rng(seed, generator) if order == "shuffled" else None

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee for m >= 3: the paper's counter-example conflicts with its first gradient."""
        return Guarantee(
            None,
            in_cone=True,
            beyond_hull=True,
            equivariant=False,
            continuous_inside=True,
            note="For m = 2 it is UPGrad, with its guarantee.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        start = Sweep.start(unit.C)
        if self._rng is None:
            after = sweep_in_order(unit.C, start)
        else:
            after = sweep_shuffled(unit.C, start, self._rng.random(unit.C.shape).argsort(axis=1))
        return Outcome(gather(unit, after.coefficients, self.reduction == "mean"), steps=1)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._rng is None else {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._rng is None:
            super().load_state_dict(state)
        else:
            self._rng.bit_generator.state = state["rng"]


class PCGradPlus(GramianAggregator):
    r"""PCGrad repeated until no projected gradient conflicts (alg. pcgrad+), solved to its limit.

    Sweeps of projections onto half-spaces converge to a limit but may never reach it. Once the set of half-spaces
    onto which a sweep projects no longer changes, the limit is the projection of the current point onto the dual
    cone: the steps along $g_i$ all have the same sign and the limit is orthogonal to those $g_i$, which are the
    projection's optimality conditions. So we stop sweeping there and project. Near stationary points the set may
    change for thousands of sweeps. We then project after 10,000 sweeps, or for more than ten objectives after a
    million over $m^2$, and the status is APPROXIMATE: the guarantee holds, but the limit is a different one.
    """

    name = "pcgrad+"
    label = "PCGrad+"
    description = Description(
        formula="PCGrad's projections repeated until <g_k, g_i> >= 0 for all i, k; d = (1/m) sum_k g_k",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="alg. pcgrad+",
        when="You use PCGrad with three or more objectives and want its promise to hold.",
    )

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 1, or Theorem 2 if normalized: every projected gradient lies in the cone and in the dual cone."""
        return Guarantee(
            "thm:PS-fd",
            non_conflicting=True,
            in_cone=True,
            beyond_hull=True,
            equivariant=False,
            continuous_inside=True,
            note=DYNAMIC_STEP,
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        found, reached = sweep_to_limit(unit.C, unit.resolution)
        weights = gather(unit, found.weights, mean=True)
        status = status_of(found.residual, unit.m, found.growth) if reached else Status.APPROXIMATE
        return Outcome(weights, status, found.residual, found.steps)
