"""Rules of the study as a person writes them: the library's, and the baselines of Byzantine-robust learning."""

from __future__ import annotations

from collections.abc import Collection

from paretograd.aggregators.mean import Mean
from paretograd.aggregators.mgda import CappedMGDA, ClippedMGDA
from paretograd.errors import ParetogradError
from paretograd.experiments.study import Method
from paretograd.federated.aggregation import Rule
from paretograd.federated.baselines import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean

#: No rule: one client has all images.
CENTRALISED = "centralised"
#: One client of eleven is hostile.
_BASELINES: dict[str, Krum | MultiKrum | CoordinateMedian | TrimmedMean | GeometricMedian] = {
    "krum": Krum(attackers=1),
    "multi-krum": MultiKrum(attackers=1),
    "median": CoordinateMedian(),
    "trimmed-mean": TrimmedMean(attackers=1),
    "geometric-median": GeometricMedian(),
}


def rule_of(written: str) -> Rule:
    """The rule, new."""
    if written == CENTRALISED:  # of one update, any rule makes that update
        return Mean()
    return _BASELINES[written] if written in _BASELINES else Method(written).aggregator()


def known_as(written: str, rules: Collection[str]) -> str:
    """Which of these rules is meant, however it is written; what is none of them is returned as it is.

    Args:
        written: such as ``Capped-MGDA(0.1)``.
        rules: as the study writes them.
    """
    if written in rules or written.lower() in rules:
        return written if written in rules else written.lower()
    try:
        meant = repr(rule_of(written))
    except ParetogradError:
        return written
    return next((rule for rule in rules if rule != CENTRALISED and repr(rule_of(rule)) == meant), written)


def label_of(written: str) -> str:
    """What tables and figures call it; caps are part of the name."""
    if written == CENTRALISED:
        return "Centralised"
    if written in _BASELINES:
        return _BASELINES[written].label
    found = Method(written).aggregator()
    if isinstance(found, CappedMGDA) and found.cap is not None:
        return f"{found.label} (C = {found.cap:g})"
    if isinstance(found, ClippedMGDA):
        return f"{found.label} (C = {found.cap:g}{', renormalised' * found.renormalize})"
    return found.label
