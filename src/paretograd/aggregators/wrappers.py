"""Rules around a rule: the base class, and two that change the lengths of the gradients first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.checks import as_number, shown_value
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import unit_gramian
from paretograd.guarantees import DYNAMIC_STEP, MEAN, SUM, Guarantee
from paretograd.solution import Outcome


class Wrapper(Aggregator):
    """A rule that asks another one. Steps and state are those of the inner rule."""

    def __init__(self, aggregator: Aggregator) -> None:
        if not isinstance(aggregator, Aggregator):
            raise ParameterError(f"{type(self).__name__} takes a rule, such as pg.UPGrad(); got {aggregator!r}")
        self.aggregator, self.needs = aggregator, aggregator.needs

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:
        self.aggregator.observe(losses)

    def one_step(self) -> AbstractContextManager[None]:
        return self.aggregator.one_step()

    def _turn_to(self, part: int) -> None:
        self.aggregator._turn_to(part)

    def state_dict(self) -> dict[str, Any]:
        return self.aggregator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.aggregator.load_state_dict(state)


class _Rescaled(Wrapper):
    """A rule on gradients ``D J`` of other lengths: its weights are ``w = D A(D G D)``."""

    @abstractmethod
    def _lengths(self, norms: Array) -> Array:
        """Return the new lengths of the gradients that are not zero."""

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._rescaled(G, eps, self.aggregator._answer)

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._rescaled(G, eps, self.aggregator._least_answer)

    def _rescaled(self, G: Array, eps: float, ask: Callable[[Array, float], Outcome]) -> Outcome:
        unit = unit_gramian(G, eps)
        lengths = self._lengths(unit.norms)
        outcome = ask(unit._replace(norms=lengths).gramian(), eps)
        return outcome._replace(weights=outcome.weights * unit.expand(lengths / unit.norms, fill=1.0))

    def _promise(self, degree: float | None) -> Guarantee:
        """Return what survives any positive lengths: the signs of slopes and weights, and with both Theorem 1."""
        inner = self.aggregator.guarantee
        safe = inner.non_conflicting and inner.in_cone
        return Guarantee(
            "thm:PS-fd" if safe else None,
            non_conflicting=inner.non_conflicting,
            in_cone=inner.in_cone,
            degree=degree,
            equivariant=inner.equivariant,
            continuous_inside=inner.continuous_inside,
            note=DYNAMIC_STEP if safe else "Other lengths of the gradients leave no condition (A).",
        )

    def _starred_guarantee(self) -> Guarantee:
        """Where the inner weights are not unique, their sum after scaling depends on the order of the objectives."""
        return replace(super()._starred_guarantee(), equivariant=False)


class UnitRows(_Rescaled):
    r"""A rule on the unit gradients.

    $$ d = A(D J), \qquad D_{kk} = 1 / \|g_k\| $$

    Only the angles between the gradients count, not the scales of the losses. No conflict of the rule with
    $g_k / \|g_k\|$ means no conflict with $g_k$, and non-negative weights stay non-negative. But the length of d no
    longer shrinks with the gradients: d has degree zero. Use the starred variant, or a step size that decreases. Zero
    gradients stay zero.

    Args:
        aggregator: the rule.
    """

    name = "unit-rows"
    label = "UnitRows"
    description = Description(
        formula="d = A(unit gradients)",
        reference="gradient normalization, as for MGDA in Sener and Koltun 2018, arXiv:1810.04650",
        paper="not discussed",
        when="Losses on different scales, with a rule that depends on these.",
    )

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator)
        self.name, self.label = f"unit-rows({aggregator.name})", f"UnitRows({aggregator.label})"  # type: ignore[misc]

    @property
    def guarantee(self) -> Guarantee:
        """No conflict and the cone, if the rule guarantees them; with both, Theorem 1 with a dynamic step."""
        return replace(self._promise(degree=0.0), scale_invariant=True)

    def _lengths(self, norms: Array) -> Array:
        return np.ones_like(norms)

    def __repr__(self) -> str:
        return f"UnitRows({self.aggregator!r})"


class ClippedRows(_Rescaled):
    r"""A rule on gradients that are clipped to a largest length.

    $$ d = A(D J), \qquad D_{kk} = \min(1, C / \|g_k\|) $$

    One long gradient, from a bad batch or a hostile client, then has a bounded effect. As for `UnitRows`, signs of
    slopes and weights do not change.

    Args:
        aggregator: the rule.
        max_norm: the largest length C of a gradient, above 0.
    """

    name = "clipped-rows"
    label = "ClippedRows"
    description = Description(
        formula="d = A(gradients clipped to length C)",
        reference="per-gradient clipping, as in Abadi et al. 2016, arXiv:1607.00133",
        paper="not discussed",
        when="Some gradients are sometimes far too long.",
    )

    def __init__(self, aggregator: Aggregator, max_norm: float = 1.0) -> None:
        super().__init__(aggregator)
        if not as_number(max_norm, "max_norm") > 0.0:
            raise ParameterError(f"max_norm={max_norm:g}: the largest length of a gradient must be above 0")
        self.max_norm = max_norm
        self.name, self.label = f"clipped-rows({aggregator.name})", f"ClippedRows({aggregator.label})"  # type: ignore[misc]

    @property
    def guarantee(self) -> Guarantee:
        r"""As for `UnitRows`, and condition (A) for the sum or the mean, if the rule has it and does not conflict.

        Slopes along the true gradients are those along the clipped ones, divided by $D_{kk} \le 1$. If none is
        negative, none shrinks, and so $\sum_k \langle d, g_k \rangle \ge \sum_k \langle d, D_{kk} g_k \rangle \ge
        c \|d\|^2$. The length of d has no lower bound by the distance gamma of the true gradients.
        """
        inner = self.aggregator.guarantee
        promise = replace(self._promise(degree=None), continuous=inner.continuous)
        if promise.theorem is None or inner.alignment is None or inner.F not in (SUM, MEAN):
            return promise
        return replace(promise, alignment=inner.alignment, F=inner.F)

    def _lengths(self, norms: Array) -> Array:
        return np.minimum(norms, self.max_norm)

    def __repr__(self) -> str:
        return f"ClippedRows({self.aggregator!r}, {shown_value(self.max_norm)})"
