"""What the study is to show, and whether its numbers do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from paretograd.experiments.federated.paper import CAPS
from paretograd.experiments.federated.rules import label_of
from paretograd.experiments.federated.shown import accuracy, change
from paretograd.experiments.federated.study import FederatedStudy

#: Below this MGDA has collapsed.
COLLAPSED = 0.3
#: So near to its own accuracy without an attack is a rule that withstands it.
NEAR = 0.06
_ROBUST = ("capped-mgda(cap=0.1)", "dualproj*", "upgrad*")
_CLIPPED = {
    "clipped-mgda(cap=0.1, renormalize=false)": 0.1,
    "clipped-mgda(cap=0.2, renormalize=false)": 0.2,
    "clipped-mgda(cap=0.2)": 0.2,
}


class Claim(NamedTuple):
    """A sentence with its numbers, and whether they bear it out."""

    text: str
    holds: bool


def claims(study: FederatedStudy, found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """All that can be judged by the rows that there are."""
    attack = study.attack
    under = {row["rule"]: row for row in found if (row["setting"], row["noise"]) == (attack.kind, attack.noise)}
    return [*_table(under), *_clipping(under), *_caps(under)]


def _table(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    if "mgda" in under and _learned(under) > COLLAPSED:  # else nothing collapsed: nobody learned
        row = under["mgda"]
        yield Claim(f"MGDA collapses, below {COLLAPSED:g}: {accuracy(row)}.", row["accuracy_mean"] < COLLAPSED)
    for rule in _ROBUST:
        loss = under.get(rule, {}).get("difference_to_clean")
        if loss is not None:
            yield Claim(_near(label_of(rule), under[rule]), loss >= -NEAR)
    if {"mgda", "nash-mtl*", *_ROBUST} <= set(under):
        low, here = under["mgda"]["accuracy_mean"], under["nash-mtl*"]["accuracy_mean"]
        high = min(under[rule]["accuracy_mean"] for rule in _ROBUST)
        yield Claim(f"Nash-MTL* is between MGDA and these: {accuracy(under['nash-mtl*'])}.", low < here < high)


def _learned(under: Mapping[str, Mapping[str, Any]]) -> float:
    """The best accuracy of another rule under attack, or of MGDA without one."""
    others = [row["accuracy_mean"] for rule, row in under.items() if rule != "mgda"]
    row = under["mgda"]
    loss = row.get("difference_to_clean")
    return float(max([*others, 0.0 if loss is None else row["accuracy_mean"] - loss]))


def _near(label: str, row: Mapping[str, Any]) -> str:
    """It is the mean that is judged; what is true of it need not be true of each seed."""
    several = row["difference_to_clean_std"] is not None
    over, worst = (" in the mean", f"; worst seed: {row['difference_to_clean_min']:+.3f}") if several else ("", "")
    return f"{label} stays{over} within {NEAR:g} of its accuracy without the attack: {change(row)}{worst}."


def _clipping(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    for rule, cap in _CLIPPED.items():
        if {rule, CAPS[cap]} <= set(under):
            clipped, capped = under[rule], under[CAPS[cap]]
            text = f"{label_of(rule)} is below {label_of(CAPS[cap])}: {accuracy(clipped)} against {accuracy(capped)}."
            yield Claim(text, clipped["accuracy_mean"] < capped["accuracy_mean"])


def _caps(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    """Means may rise by no more than the deviation of the seeds."""
    there = {cap: under[rule] for cap, rule in CAPS.items() if rule in under}
    if len(there) < 3:
        return
    series = ", ".join(f"{accuracy(row)} (C = {cap:g})" for cap, row in there.items())
    falls = all(
        after["accuracy_mean"] <= before["accuracy_mean"] + max(before["accuracy_std"] or 0, after["accuracy_std"] or 0)
        for before, after in pairwise(there.values())
    )
    yield Claim(f"Accuracy does not increase with C, beyond the deviation of the seeds: {series}.", falls)
