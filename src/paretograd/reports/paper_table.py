"""Table 1 of the paper with live values: each rule beside the direction that its s and r give."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.paper_table import TABLE_1, TableRow
from paretograd.guarantees import Hypothesis
from paretograd.reports.words import number, short_name

#: What `TableRow.length` lets the two directions differ in, in words.
COMPARED = {"same": "d", "positive": "direction", "any": "line"}

#: How to read the table.
LEGEND = (
    "s and r: the rule's d minimises s(J d) + r(|d|).  theorem: the row's colour in the paper; what the rules' own "
    "guarantees say is in paretograd theorems.",
    "|d - d'| / |d|: d is the rule's, d' comes from s and r by pg.Subproblem, both on the gradients of paretograd "
    "compare example. FairGrad, CAGrad and IMTL-G are solved in two different ways; in the other rows the two share "
    "solvers. IMTL-G takes mu = 1e-8 in place of the limit, hence its larger difference.",
    "compared: d in full; or its direction, both at norm one, where the rule's length is another one; or its line, "
    "where its sign may be another one, too.",
)


def three_tasks() -> Tensor:
    """The bundled example, shape ``(3, 3)``."""
    with (resources.files("paretograd") / "data/three_tasks.csv").open(encoding="utf-8") as file:
        return torch.from_numpy(np.loadtxt(file, delimiter=","))


def differences() -> list[tuple[TableRow, float]]:
    """Every row of Table 1, and how far its two directions are apart on the bundled example."""
    jacobian = three_tasks()
    return [(row, row.difference(jacobian)) for row in TABLE_1]


def row_of(rule: Aggregator) -> TableRow | None:
    """The row of a rule, or of the rule that it normalises; None if it has none."""
    name = _plain(rule).name
    return next((row for row in TABLE_1 if row.dedicated().name == name), None)


def framework(rule: Aggregator) -> list[str]:
    """The s and r of a rule, and how near the direction that they give comes; empty without a row in Table 1."""
    row = row_of(rule)
    if row is None:
        return []
    scope = {"same": "", "positive": ", both at norm one", "any": ", both at norm one and up to sign"}[row.length]
    lines = [
        f"Table 1, {row.label}: d minimises s(J d) + r(|d|) with",
        f"  s(x)       {row.s}",
        f"  r          {row.r}",
        f"  theorem    {short_name(row.result) if row.result else 'none'} (the row's colour in the paper)",
        f"  compared   |d - d'| / |d| = {number(row.difference(three_tasks()), 1)} between {row.dedicated()!r} and "
        f"pg.Subproblem with s and r{scope},",
        "             on the gradients of paretograd compare example",
    ]
    if isinstance(rule, Normalized):
        lines.append("The star then divides d by the sum of the magnitudes of its weights.")
    return lines


def hypotheses(rule: Aggregator) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of Theorem 4 with their evidence, unless a more specific result covers the rule."""
    promise = _plain(rule).guarantee
    return promise.hypotheses if promise.theorem in ("thm:PSreg", None) else ()


def _plain(rule: Aggregator) -> Aggregator:
    return rule.aggregator if isinstance(rule, Normalized) else rule
