"""How the rules of a federated study are drawn: the same in every figure, and darker the tighter their cap is."""

from __future__ import annotations

from paretograd.experiments.federated.paper import BASELINES, CAPS, CLIPS, TABLE
from paretograd.experiments.federated.rules import CENTRALISED, label_of
from paretograd.reports.palette import Curve, curves

#: Purples for the caps below 1, on a light and on a dark ground; C = 1 is MGDA, which has its own colour.
_LIGHT = ("#3F007D", "#6A3FA0", "#8C6BB1", "#A794CB", "#C3B9DE")
_DARK = ("#E6D5FF", "#CDB4F5", "#B294E0", "#9678C4", "#7D64A6")
_SYMBOLS = ("D", "v", "P", "X", "p")


def looks() -> dict[str, Curve]:
    """A look for each rule of the study, by label."""
    capped = [label_of(rule) for rule in CAPS.values() if rule != "mgda"]
    others = [label_of(rule) for rule in (*TABLE, *BASELINES, *CLIPS, CENTRALISED)]
    found = curves([label for label in dict.fromkeys(others) if label not in capped])
    ramp = zip(capped, _LIGHT, _DARK, _SYMBOLS, strict=True)
    return found | {label: Curve(colour, on_dark, "solid", symbol) for label, colour, on_dark, symbol in ramp}
