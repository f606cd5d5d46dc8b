"""The guarantee of a subproblem's direction, derived from s and r: Theorem 4 or a sharper result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.guarantees import DYNAMIC_STEP, MEAN, SUM, Guarantee, Hypothesis, Surrogate
from paretograd.subproblem import regularizers
from paretograd.subproblem.regularizers import HalfSquare, MeanBall, Regularizer
from paretograd.subproblem.scalarization import DECREASING, Family, Scalarization


def guarantee_of_family(s: Family, r: Regularizer) -> Guarantee:
    """Return the guarantee of a family from the literature, for any number of objectives."""
    m = s.m or 2  # the hypotheses of a family hold for every m
    return guarantee_of(s, r, (*s.hypotheses(m), *r.hypotheses()), s.F, s.surrogate(m))


def guarantee_of(
    s: Scalarization, r: Regularizer, hypotheses: Sequence[Hypothesis], F: Surrogate | None, phi: Array | None
) -> Guarantee:
    """Return the strongest guarantee that is proved for the direction of s and r.

    Theorem 4 states the constant c = 1/2, which can be improved. By convexity ``-s(x) >= <lambda, x> = |d|^2 / beta``,
    and ``<d, grad F> >= -s(J d)``. So (A) holds with c = 1 / beta, which is c for the regularizer ``c |d|^2 / 2`` and
    at least 1/2 for every r of the theorem. Half the squared norm gives c = 1, as Theorem 2 and Corollary 2 state for
    the sum. For a symmetric s, F is the mean, which is stronger by the factor m; those two results become alternatives.

    Args:
        s: the scalarization of the decreases.
        r: the regularizer.
        hypotheses: the hypotheses of Theorem 4, with their evidence.
        F: the F of Theorem 4, ``<-grad s(0), f>``; None if it is not known.
        phi: the weights of F for some m; s treats all objectives alike if they are equal.
    """
    holds = {hypothesis.text: hypothesis.holds for hypothesis in hypotheses}
    conic, plain = holds.get(DECREASING, False), r.beta == 1.0
    common = Guarantee(
        None,
        non_conflicting=s.non_conflicting,
        in_cone=conic,
        in_hull=conic and s.risk and plain,
        beyond_hull=conic and s.sums_to_one_at_least and plain,
        F=SUM if F is None else F,
        degree=r.degree if s.homogeneous else None,
        equivariant=phi is not None and bool(np.ptp(phi) <= 1e-12 * np.abs(phi).max()),
        scale_invariant=s.scale_invariant and not isinstance(r, MeanBall),
        continuous=s.continuous and isinstance(r, HalfSquare),
        continuous_inside=s.continuous_inside and isinstance(r, HalfSquare),
        hypotheses=tuple(hypotheses),
    )
    if isinstance(r, MeanBall):
        return _around_the_mean(s, r, common)
    if F is None or not all(holds.values()):
        return replace(common, note=_obstacle(s, [text for text, good in holds.items() if not good]))
    note = s.note
    if note is None:
        note = "" if s.sums_to_one_at_least else "The rate needs beta |lambda|_1 bounded away from zero."
    return replace(
        common,
        theorem=s.theorem if plain else "thm:PSreg",
        alignment=1.0 / r.beta if r.beta is not None else 0.5,
        note=note,
        alternatives=s.alternatives if plain else (),
    )


def _around_the_mean(s: Scalarization, r: MeanBall, common: Guarantee) -> Guarantee:
    """Return the guarantee for a ball around the mean gradient g0 (CAGrad), which Theorem 4 does not cover.

    d is g0 plus a vector in the cone, so its weights sum to at least one. For c <= 1, ``|d - g0| <= c |g0|`` and
    ``|d| <= (1 + c) |g0|`` give ``<d, g0> >= |d|^2 / (1 + c)``. For c >= 1 the ball contains the zero direction, so no
    objective increases if s forbids it. If gamma > 0, the maximiser is unique: between two of them, d could move so
    that every slope grows. It is then continuous.
    """
    conic, safe = common.in_cone, s.non_conflicting and r.c >= 1.0
    found = replace(
        common,
        non_conflicting=safe,
        in_hull=False,
        beyond_hull=conic,
        continuous=r.c == 0.0,
        continuous_inside=s.continuous_inside and s.risk,
        F=MEAN,
        hypotheses=(),
    )
    if conic and r.c <= 1.0:
        return replace(found, theorem="thm:PS-cvx", alignment=1.0 / (1.0 + r.c))
    if conic and safe:
        return replace(found, theorem="thm:PS-fd", F=SUM, note=DYNAMIC_STEP)
    return replace(found, note="No theorem covers a ball around the mean gradient for this s and radius.")


def _obstacle(s: Scalarization, broken: list[str]) -> str:
    """Explain why Theorem 4 does not apply."""
    if broken == [regularizers.ABOVE] and s.homogeneous:
        return "r changes the length of d only: normalized, it is the rule with half the squared norm."
    if not broken:
        return "Not covered: the F of Theorem 4 is <-grad s(0), f>, and the gradient is not known."
    return f"Not covered by Theorem 4, which needs: {'; '.join(broken)}."
