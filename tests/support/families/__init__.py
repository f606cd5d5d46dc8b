"""Families of Jacobians, each with what can be proved about its members.

`FAMILIES` maps a name to a `Family`; ``FAMILIES[name].make(m, n, seed)`` is a float64 tensor with one row per
objective, always the same for the same arguments. Wherever a family claims that a matrix is singular or
Pareto stationary, the claim holds *exactly* for the stored numbers: such matrices are made of small integers
and of powers of two, so that no rounding takes place in J, and none in J J.T either unless the rows are
scaled. A claim that held only up to rounding would be worthless where the answer jumps: the projection onto
the dual cone is a discontinuous function of J at a stationary point.
"""

from __future__ import annotations

from . import cancelling, degenerate, extreme, regular, stationary
from .family import Family, Make, Rows, Shape, Stationary, members

__all__ = ["FAMILIES", "HARD", "Family", "Make", "Rows", "Shape", "Stationary", "members", "well_conditioned"]

well_conditioned = regular.well_conditioned

_ROWS = [
    Family("gaussian", regular.gaussian, stationary="no", shape="wide"),
    Family("similar_norm", regular.similar_norm, stationary="no", shape="wide"),
    Family("well_conditioned", regular.well_conditioned, stationary="no", shape="wide"),
    Family("conflicting", regular.conflicting, stationary="no", shape="wide"),
    Family("moderately_scaled", regular.moderately_scaled, stationary="no", shape="wide"),
    Family("badly_scaled", regular.badly_scaled, stationary="no", shape="wide"),
    Family("badly_scaled_conflicting", regular.badly_scaled_conflicting, stationary="no", shape="wide"),
    Family("extremely_scaled", regular.extremely_scaled, stationary="no", shape="wide"),
    Family("single", regular.single, stationary="no", max_m=1),
    Family("orthogonal", degenerate.orthogonal, stationary="no", shape="wide"),
    Family("duplicate_rows", degenerate.duplicate_rows, stationary="no", singular=True, min_m=2),
    Family("scaled_duplicates", degenerate.scaled_duplicates, stationary="no", singular=True, min_m=2),
    Family("rank_deficient", degenerate.rank_deficient, stationary="maybe", singular=True, min_m=2),
    Family("rank_deficient_acute", degenerate.rank_deficient_acute, stationary="no", singular=True, min_m=2),
    Family("tall", degenerate.tall, stationary="maybe", singular=True, min_m=2, shape="tall"),
    Family("nearly_stationary", stationary.nearly_stationary, stationary="no", min_m=2, min_n=2),
    Family("opposite_rows", stationary.opposite_rows, stationary="weak", singular=True, min_m=2),
    Family("scaled_opposites", stationary.scaled_opposites, stationary="weak", singular=True, min_m=2),
    Family("zero_rows", stationary.zero_rows, stationary="weak", singular=True),
    Family("all_zeros", stationary.all_zeros, stationary="strong", singular=True),
    Family("strongly_stationary", stationary.strongly_stationary, stationary="strong", singular=True, min_m=2),
    Family(
        "scaled_strongly_stationary",
        stationary.scaled_strongly_stationary,
        stationary="strong",
        singular=True,
        min_m=2,
    ),
    Family(
        "weakly_stationary",
        stationary.weakly_stationary,
        stationary="weak",
        singular=True,
        min_m=3,
        min_n=2,
    ),
]

_HARD_ROWS = [
    Family(
        "nearly_opposite",
        cancelling.nearly_opposite,
        stationary="maybe",
        min_m=2,
        min_n=2,
        ideals=cancelling.ideal_nearly_opposite,
    ),
    Family(
        "nearly_opposite_single",
        cancelling.nearly_opposite_single,
        stationary="maybe",
        min_m=2,
        min_n=2,
        ideals=cancelling.ideal_nearly_opposite_single,
    ),
    Family(
        "nearly_parallel",
        cancelling.nearly_parallel,
        stationary="maybe",
        min_m=2,
        min_n=2,
        ideals=cancelling.ideal_nearly_parallel,
    ),
    Family(
        "cancelling_gaps",
        cancelling.cancelling_gaps,
        stationary="maybe",
        min_m=3,
        ideals=cancelling.ideal_gaps,
    ),
    Family(
        "cancelling_gaps_single",
        cancelling.cancelling_gaps_single,
        stationary="maybe",
        min_m=3,
        ideals=cancelling.ideal_gaps,
    ),
    Family(
        "rounded_multiples",
        cancelling.rounded_multiples,
        stationary="maybe",
        min_m=2,
        ideals=cancelling.ideal_multiples,
    ),
    Family(
        "rounded_multiples_single",
        cancelling.rounded_multiples_single,
        stationary="maybe",
        min_m=2,
        ideals=cancelling.ideal_multiples,
    ),
    Family(
        "rounded_dependent",
        cancelling.rounded_dependent,
        stationary="maybe",
        min_m=2,
        ideals=cancelling.ideal_dependent,
    ),
    Family(
        "rounded_dependent_single",
        cancelling.rounded_dependent_single,
        stationary="maybe",
        min_m=2,
        ideals=cancelling.ideal_dependent,
    ),
    Family("crowd", cancelling.crowd, stationary="maybe", min_m=3, min_n=2),
    Family("gaussian_single", cancelling.gaussian_single, stationary="maybe"),
    Family("small_integers", extreme.small_integers, stationary="maybe"),
    Family("signs", extreme.signs, stationary="maybe"),
    Family("subnormal", extreme.subnormal, stationary="maybe", ideals=extreme.ideal_subnormal),
    Family("scaled_15", extreme.scaled_15, stationary="maybe"),
    Family("scaled_150", extreme.scaled_150, stationary="maybe"),
]
#: Families on which rounding decides, or on which range and ties do; those named ``_single`` hold float32 numbers.
HARD: dict[str, Family] = {family.name: family for family in _HARD_ROWS}

#: Those of `HARD` whose stored numbers alone say what is right, in any tolerance.
_PLAIN = ("gaussian_single", "small_integers", "signs")
FAMILIES: dict[str, Family] = {family.name: family for family in _ROWS} | {name: HARD[name] for name in _PLAIN}
