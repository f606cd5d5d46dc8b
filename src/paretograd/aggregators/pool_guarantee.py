"""What a run is promised in which any of several rules may act at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paretograd.aggregators.base import Aggregator
from paretograd.guarantees import MEAN, SUM, Guarantee

_DYNAMIC = "With step 1/(L |w|_1), that is the starred variant with a constant step."


def pool_guarantee(pool: Sequence[Aggregator], promises: Sequence[Guarantee]) -> Guarantee:
    """The guarantee of a pool from those of its members; `Mixed.guarantee` has the proof, case by case."""
    if len(set(pool)) == 1:
        return promises[0]
    common = Guarantee.shared(promises)
    named = list(zip((rule.label for rule in pool), promises, strict=True))
    uncovered = dict.fromkeys(label for label, promise in named if promise.theorem is None)
    if uncovered:
        return replace(common, note=f"The pool holds {', '.join(uncovered)}, which no theorem covers.")
    others = dict.fromkeys(f"{label} has F = {promise.F}" for label, promise in named if not _serves_sum(promise))
    if others and len({promise.F for promise in promises}) > 1:
        return replace(common, note=f"No F serves all rules of the pool: {'; '.join(others)}.")
    return _covered(common, named)


def _covered(common: Guarantee, named: Sequence[tuple[str, Guarantee]]) -> Guarantee:
    """The theorem and the constant, where each member has a theorem that holds for F the sum, or all for another F."""
    promises = [promise for _, promise in named]
    constants = [_constant(promise) for promise in promises]
    if all(promise.F == promises[0].F != SUM for promise in promises) and not (
        common.non_conflicting and common.in_hull
    ):
        constants = [promise.alignment for promise in promises]
        common = replace(common, F=promises[0].F)
    known = [c for c in constants if c is not None]
    if len(known) == len(promises):
        common = replace(common, alignment=min(known))
    if common.in_hull and common.non_conflicting:
        return replace(common, theorem="thm:cvg_nonconflict")
    same = {(promise.theorem, promise.F) for promise in promises}
    if common.alignment is not None and len(same) == 1:
        return replace(common, theorem=promises[0].theorem, note=_notes(named))
    if common.alignment is not None and common.beyond_hull:
        return replace(common, theorem="thm:PS-cvx")
    note = _DYNAMIC if common.non_conflicting and common.in_cone else _notes(named)
    # (A) for the mean is (A) for the sum; for a weighting of its own it is not.
    F = SUM if common.F == MEAN or common.alignment is None else common.F
    return replace(common, theorem="thm:PS-fd", F=F, note=note)


def _serves_sum(promise: Guarantee) -> bool:
    """Return True if a promise for its own F also holds for the sum."""
    return promise.F in (SUM, MEAN) or (promise.non_conflicting and promise.in_cone)


def _constant(promise: Guarantee) -> float | None:
    """c of condition (A) for F the sum, whatever m; None where there is none."""
    own = promise.alignment if promise.F in (SUM, MEAN) else None
    if promise.non_conflicting and promise.in_hull:  # Theorem 2
        return max(1.0, own or 0.0)
    return own


def _notes(named: Sequence[tuple[str, Guarantee]]) -> str:
    """What the promises depend on, of those for which a constant step is not enough."""
    kept = {}
    for label, promise in named:
        if not (promise.beyond_hull and _constant(promise) is not None):
            note = promise.note or (_DYNAMIC if promise.non_conflicting else "")
            kept[f"{label}: {note}"] = note
    return " ".join(text for text, note in kept.items() if note)
