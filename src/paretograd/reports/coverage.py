"""Which theorem covers which method, from the guarantees of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import names
from paretograd.guarantees import RESULTS, Result, Surrogate
from paretograd.reports.roster import build
from paretograd.reports.words import number, short_name

#: Results that no rule's guarantee names, and what they are for.
REMARKS = {
    "prop:PS_proj": "(a step in the proof of Corollary 2)",
    "thm:PScvx-fun": "(a promise for convex objectives and a run in which every objective goes down: the certificate "
    "of a step lists it where it applies)",
}

#: Where docs/theory.md tells each result.
_ANCHORS = {
    "thm:PS-fd": "theorem-1",
    "thm:PS-cvx": "corollary-1",
    "thm:cvg_nonconflict": "theorem-2",
    "prop:PS_proj": "corollary-2",
    "thm:PS_proj_cvg": "corollary-2",
    "thm:PScvx-fun": "theorem-3",
    "thm:PSreg": "theorem-4",
}


@dataclass(frozen=True)
class Covered:
    """Rules with the same promise: one result, one constant c of condition (A), one F.

    Attributes:
        result: the result that covers them.
        rules: in the registry's order; empty where no guarantee names the result.
    """

    result: Result
    rules: tuple[Aggregator, ...]

    @property
    def labels(self) -> list[str]:
        """The rules' names in the paper."""
        return [rule.label for rule in self.rules]

    @property
    def constant(self) -> str:
        """c, or a dash."""
        return number(self.rules[0].guarantee.alignment) if self.rules else "-"

    @property
    def surrogate(self) -> str:
        """F, or a dash."""
        return str(self.rules[0].guarantee.F) if self.rules else "-"


@dataclass(frozen=True)
class Coverage:
    """Every rule in one place.

    Attributes:
        covered: at least one entry for each result of the paper, in the paper's order.
        uncovered: the rules that no theorem covers; `Guarantee.note` says why.
    """

    covered: tuple[Covered, ...]
    uncovered: tuple[Aggregator, ...]

    def labels(self, result: str) -> list[str]:
        """The rules that a result covers, whatever their constants."""
        return [label for entry in self.covered if entry.result.label == result for label in entry.labels]


def coverage() -> Coverage:
    """Every registered rule, and its starred variant where another theorem covers that."""
    rules = [rule for name in names() for rule in _variants(build(name))]
    covered = [entry for result in RESULTS.values() for entry in _entries(result, rules)]
    return Coverage(tuple(covered), tuple(rule for rule in rules if rule.guarantee.theorem is None))


def _variants(rule: Aggregator) -> list[Aggregator]:
    """The rule, then its starred variant if it has another theorem and is not the rule itself."""
    starred = rule.normalized()
    if rule.guarantee.in_hull or starred.guarantee.theorem in (rule.guarantee.theorem, None):
        return [rule]
    return [rule, starred]


def _entries(result: Result, rules: Sequence[Aggregator]) -> list[Covered]:
    groups: dict[tuple[float | None, Surrogate], list[Aggregator]] = {}
    for rule in rules:
        promise = rule.guarantee
        if promise.theorem == result.label:
            groups.setdefault((promise.alignment, promise.F), []).append(rule)
    return [Covered(result, tuple(group)) for group in groups.values()] or [Covered(result, ())]


def to_markdown(found: Coverage) -> str:
    """Both tables, for docs/coverage.md."""
    covered = [
        (
            f"[{short_name(entry.result.label)}](theory.md#{_ANCHORS[entry.result.label]})",
            ", ".join(entry.labels) or REMARKS[entry.result.label],
            entry.constant,
            f"`{entry.surrogate}`" if entry.rules else "-",
        )
        for entry in found.covered
    ]
    uncovered = [(rule.label, rule.guarantee.note) for rule in found.uncovered]
    return "\n\n".join(
        (_table(("result", "methods", "c", "F"), covered), _table(("no theorem covers", "note"), uncovered))
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |".replace("*", r"\*") for cells in lines)
