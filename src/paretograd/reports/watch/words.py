"""A recording in words: the answer that stands above the table and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paretograd.certificates.update import CONFLICT
from paretograd.geometry.gramian import Array
from paretograd.reports.watch.analysis import Other, Pair, Run, conflicting_pairs, thirds

#: Pairs that conflict in fewer steps are not worth a word.
_SELDOM = 0.05
#: Conflicts are early or late if the shares in the first and the last third differ by more.
_DIFFERENT = 0.15
#: A loss dominates if it has this share of the direction.
_DOMINANT = 0.5
#: A gamma below this part of the shortest gradient is close to Pareto stationarity.
_CLOSE = 0.1
#: Pairs and losses that are named.
_NAMED = 3


RULES_LEGEND = (
    "Each rule on the recorded gradients, step by step: how often it raises a loss, how many on average, and medians "
    "of the least and the mean cosine of its direction with a gradient. A cosine below 0 belongs to a loss that "
    "increases."
)


def answer(run: Run, others: Sequence[Other]) -> list[str]:
    """Say in a few sentences who conflicts with whom, what the direction does about it, and how far the run is."""
    found = [_size(run)]
    if run.has_gradients:
        found += [_conflicts(run), _direction(run), *_updates(run), _dominance(run), _stationarity(run)]
        found += _others(run, others)
    else:
        found.append(
            f"{_listed(run.rules)} sees the losses only, so the gradients, their conflicts and gamma are not known. "
            f"On average, {_largest_weight(run)}."
        )
    return [*found, *_losses(run)]


def loss_rows(run: Run) -> list[dict[str, Any]]:
    """Return the table of losses: for each, its conflicts, its gradient, its weight and its values."""
    apart: Array = np.empty(0)
    if run.has_gradients and run.m > 1:
        cosines = run.cosines[run.finite]
        apart = (cosines < -CONFLICT).any(axis=2).mean(axis=0)
    rows = []
    for k, label in enumerate(run.labels):
        row: dict[str, Any] = {"loss": label}
        if run.has_gradients:
            row |= {"in conflict, %": _hundreds(apart[k])} if len(apart) else {}
            row |= {"raised, %": _hundreds(_mean(run.raised[:, k]))}
            row |= {"by update, %": _hundreds(_mean(run.updated[:, k]))} if _is_known(run.updated) else {}
            row |= {"|g|": _median(run.lengths[:, k])}
            row |= {"part, %": _hundreds(_mean(run.shares[:, k]))} if _is_known(run.shares) else {}
        if _is_known(run.weights):
            row |= {"weight": _mean(run.weights[:, k])}
        if _is_known(run.losses):
            early, late = thirds(run.losses[:, k])
            row |= {"first third": _mean(early), "last third": _mean(late)}
        rows.append(row)
    return rows


def loss_legend(run: Run) -> str:
    """Explain the columns of the table of losses."""
    if not run.has_gradients:
        return "Weights and values are means."
    return (
        "In % of the steps: the gradient conflicts with another, the direction raises the loss, the optimizer's update "
        "does. part: of the lengths of the terms of the direction. |g|: median; weight and values: means."
    )


def other_rows(others: Sequence[Other], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table of other rules on the same gradients."""
    return [
        {
            "rule": other.label,
            "raises a loss, %": _hundreds(other.any),
            "losses": other.count,
            "most often": labels[int(other.raised.argmax())] if other.any > 0.0 else "none",
            "least cos": round(other.worst, 3) + 0.0,
            "mean cos": round(other.typical, 3) + 0.0,
            "|d|": other.norm,
        }
        for other in others
    ]


def percent(share: float) -> str:
    """Return a share in words; only what is exactly none or all is 0% or 100%."""
    if np.isnan(share):
        return "-"
    if 0.0 < share < 0.005 or 0.995 < share < 1.0:
        return "under 1%" if share < 0.5 else "over 99%"
    return f"{share:.0%}"


def _hundreds(share: float) -> float:
    return round(100.0 * share, 1)


def _size(run: Run) -> str:
    first, last, count = int(run.steps[0]), int(run.steps[-1]), len(run.steps)
    broken = count - int(run.finite.sum()) if run.has_gradients else 0
    note = f" In {broken} of them a gradient held NaN or infinity; they are left out." if broken else ""
    return (
        f"{_listed(run.rules)} on {_count(run.m, 'loss', 'losses')}: {_count(count, 'record')} of the steps {first:,} "
        f"to {last:,}.{note}"
    )


def _conflicts(run: Run) -> str:
    if run.m == 1:
        return "There is one loss, which nothing conflicts with."
    pairs = conflicting_pairs(run)
    often = [pair for pair in pairs if pair.share >= _SELDOM]
    if not often:
        most = pairs[0]
        if most.share == 0.0:
            return (
                "No two losses conflict: no gradients point apart in any recorded step, so a plain sum may do as well."
            )
        return (
            f"Conflicts are rare: the gradients of {_two(run, most)} point apart most often, in {percent(most.share)} "
            "of the steps. A plain sum may do as well."
        )
    parts = [
        f"{_two(run, pair)} conflict in {percent(pair.share)} of the steps (mean cosine {pair.cosine:.2f}){_when(pair)}"
        for pair in often[:_NAMED]
    ]
    which = f"All {len(pairs)} pairs" if len(often) == len(pairs) else f"{len(often)} of the {len(pairs)} pairs"
    more = f" {which} conflict in at least {percent(_SELDOM)} of the steps." if len(often) > len(parts) else ""
    return f"{'; '.join(parts)}.{more}"


def _when(pair: Pair) -> str:
    if abs(pair.late - pair.early) <= _DIFFERENT:
        return ""
    word = "late" if pair.late > pair.early else "early"
    return f", mostly {word} ({percent(pair.early)} of the first third, {percent(pair.late)} of the last)"


def _direction(run: Run) -> str:
    rule, known = _listed(run.rules), run.raised[np.isfinite(run.raised).all(axis=1)]
    hidden = _mean(run.hidden.max(axis=1, initial=0.0)) if len(known) else 0.0
    unsure = f" In {percent(hidden)} of the steps, rounding hides whether a loss increases." if hidden > 0.0 else ""
    if not len(known):
        return f"The directions of {rule} are not known."
    share = float(known.any(axis=1).mean())
    if share == 0.0:
        return f"The direction of {rule} raised no loss in any recorded step, to first order.{unsure}"
    return (
        f"The direction of {rule} still raised a loss in {percent(share)} of the steps, to first order: "
        f"{_most(run, known.mean(axis=0))}.{unsure}"
    )


def _updates(run: Run) -> list[str]:
    known = run.updated[np.isfinite(run.updated).all(axis=1)]
    if not len(known):
        return []
    share = float(known.any(axis=1).mean())
    if share == 0.0:
        return ["The optimizer's updates raised no loss either."]
    return [
        f"The optimizer's updates raised a loss in {percent(share)} of the steps: {_most(run, known.mean(axis=0))}."
    ]


def _dominance(run: Run) -> str:
    lengths = run.lengths[run.finite]
    k = int(np.median(lengths, axis=0).argmax())
    shortest = np.where(lengths.min(axis=1) > 0.0, lengths.min(axis=1), np.nan)
    ratio = _median(lengths.max(axis=1) / shortest)
    times = "" if np.isnan(ratio) else f"; the longest is typically {ratio:.3g} times as long as the shortest"
    longest = f"{_name(run, k)} has the longest gradient in {percent(float((lengths.argmax(axis=1) == k).mean()))}"
    if run.m == 1:
        return f"The median length of the gradient is {np.median(lengths):.3g}."
    first = f"{longest} of the steps{times}."
    shares = np.array([_mean(run.shares[:, j]) for j in range(run.m)])
    if not np.isfinite(shares).all():
        return first
    top = int(shares.argmax())
    verb = "dominates" if shares[top] >= _DOMINANT and run.m > 2 else "has the largest part of"
    return (
        f"{first} {_name(run, top)} {verb} the direction ({percent(float(shares[top]))} of the lengths of its terms)."
    )


def _stationarity(run: Run) -> str:
    shortest = run.lengths.min(axis=1)
    early, late = map(_median, thirds(run.gamma[run.finite]))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = _median(thirds((run.gamma / shortest)[run.finite])[1])
    sentence = f"gamma, the distance from Pareto stationarity, went from {early:.3g} (first third) to {late:.3g} (last)"
    if np.isnan(ratio):
        return f"{sentence}; some gradient is zero, so the points are Pareto stationary."
    if ratio < _CLOSE:
        return (
            f"{sentence}: {percent(ratio)} of the shortest gradient, so the batches leave little room to lower every "
            "loss at once."
        )
    return f"{sentence}: {percent(ratio)} of the shortest gradient, so there is still room to lower every loss at once."


def _others(run: Run, others: Sequence[Other]) -> list[str]:
    others = [other for other in others if other.label not in run.rules]
    calm = [other.label for other in others if other.any == 0.0]
    loud = sorted((other for other in others if other.any > 0.0), key=lambda other: -other.any)
    if not others:
        return []
    if not loud:
        return [f"On the same gradients, {_listed(calm)} would have raised no loss."]
    first, *more = loud[:4]
    parts = [f"{first.label} would have raised a loss in {percent(first.any)} of the steps"]
    parts += [f"{other.label} in {percent(other.any)}" for other in more]
    none = f", and {_listed(calm)} in none" if calm else ""
    return [f"On the same gradients, {', '.join(parts)}{none}."]


def _losses(run: Run) -> list[str]:
    if not _is_known(run.losses) or len(run.steps) < 3:
        return []
    early, late = (np.array([_mean(values) for values in part.T]) for part in thirds(run.losses))
    up = [run.labels[k] for k in np.flatnonzero(late > early)]
    down = [run.labels[k] for k in np.flatnonzero(late < early)]
    if len(down) == run.m:
        return ["Every loss is lower in the last third than in the first." if run.m > 1 else "The loss has fallen."]
    if len(up) == run.m:
        return ["Every loss is higher in the last third than in the first." if run.m > 1 else "The loss has risen."]
    parts = [f"{_few(labels)} {verb}" for labels, verb in ((down, "fell"), (up, "rose")) if labels]
    return [f"From the first third to the last, {', and '.join(parts)}."] if parts else []


def _largest_weight(run: Run) -> str:
    weights = np.array([_mean(run.weights[:, k]) for k in range(run.m)])
    k = int(np.nan_to_num(weights, nan=-np.inf).argmax())
    return f"{_name(run, k)} has the largest weight, {weights[k]:.3g}"


def _most(run: Run, shares: Array) -> str:
    places = [k for k in np.argsort(-shares, kind="stable")[:_NAMED] if shares[k] > 0.0]
    return _listed([f"{_name(run, int(k))} in {percent(float(shares[k]))}" for k in places])


def _two(run: Run, pair: Pair) -> str:
    return f"{_name(run, pair.first)} and {_name(run, pair.second)}"


def _name(run: Run, k: int) -> str:
    return run.labels[k]


def _few(labels: Sequence[str], most: int = 6) -> str:
    if len(labels) > most:
        return f"{', '.join(labels[:most])} and {len(labels) - most} more"
    return _listed(labels)


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _is_known(values: Array) -> bool:
    return bool(np.isfinite(values).any())
