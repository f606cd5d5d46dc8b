"""The table of rules: one row for each rule, and for each property what is proved or refuted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from paretograd.aggregators.registry import read_rule, spelled
from paretograd.errors import UnknownNameError
from paretograd.guarantees import Guarantee
from paretograd.reports.rules.counterexamples import Counterexample, counterexamples
from paretograd.reports.rules.properties import PROPERTIES
from paretograd.reports.rules.rows import ROWS, RowSpec


@dataclass(frozen=True)
class Answer:
    """Whether a rule has a property.

    Attributes:
        holds: True if it is proved: the rule's guarantee claims it, and the property tests check it. False if
            ``counterexample`` refutes it. None if neither is known, which no released table contains.
        detail: the constant and F of condition (A), or the degree.
        counterexample: the refutation.
    """

    holds: bool | None
    detail: str = ""
    counterexample: Counterexample | None = None

    def __str__(self) -> str:
        if self.holds is None:
            return "?"
        return self.detail or "yes" if self.holds else "no"


@dataclass(frozen=True)
class TableRow:
    """A row of `table`.

    Attributes:
        rule: the rule's text, as `get` reads it, or `scalarizer` if the rule sees the losses only.
        label: the name in tables.
        answers: an `Answer` for each property, by its key: ``in_cone``, ``in_hull``, ``non_conflicting``, ``long``
            (``|d| >= gamma``), ``aligned`` (condition (A)), ``degree``, ``equivariant``, ``scale_invariant``,
            ``continuous`` and ``continuous_inside`` (where gamma > 0).
        needs: what a step reads: ``nothing``, ``Gramian``, ``rows``, ``losses``, two of these, ``row of one loss`` or
            ``two batches``.
        state: what the rule keeps from step to step; empty if it keeps nothing.
        cost: the work of one step, beyond that of what it needs.
        result: the result of the paper that covers the rule, or a dash.
    """

    rule: str
    label: str
    answers: Mapping[str, Answer]
    needs: str
    state: str
    cost: str
    result: str

    def texts(self) -> dict[str, str]:
        """Return all cells as texts, for instance for a data frame."""
        answers = {key: str(answer) for key, answer in self.answers.items()}
        return {
            "rule": self.rule,
            "label": self.label,
            **answers,
            "needs": self.needs,
            "state": self.state or "-",
            "cost": self.cost,
            "result": self.result,
        }


def table() -> tuple[TableRow, ...]:
    """Return what is proved and what is refuted about every rule.

    ``pg.table()[0].answers["in_hull"].holds`` is True or False. Every False has a ``counterexample`` of small integers;
    its ``margin`` evaluates it. Every True is claimed by ``guarantee`` and checked by the property tests.
    """
    return tuple(_row(spec) for spec in ROWS)


def rows_of(names: Sequence[str]) -> tuple[TableRow, ...]:
    """Return the rows of some rules: all rows of a name without parameters, and of a starred one the starred rows."""
    found = [[spec for spec in ROWS if _is_named(spec.rule, name)] for name in names]
    missing = [name for name, specs in zip(names, found, strict=True) if not specs]
    if missing:
        raise UnknownNameError(f"the table has no row for {', '.join(missing)}; its rules are {', '.join(_listed())}")
    return tuple(_row(spec) for spec in dict.fromkeys(chain.from_iterable(found)))


def _is_named(rule: str, name: str) -> bool:
    row, asked = read_rule(rule), read_rule(name)
    if row.name != spelled(asked.name) or row.starred != asked.starred:
        return False
    return not (asked.values or asked.keywords) or (row.values, row.keywords) == (asked.values, asked.keywords)


def _listed() -> list[str]:
    return list(dict.fromkeys(read_rule(spec.rule).name for spec in ROWS))


def _row(spec: RowSpec) -> TableRow:
    guarantee = spec.make().guarantee
    return TableRow(
        rule=spec.rule,
        label=spec.label,
        answers={key: _answer(spec.rule, key, guarantee) for key in PROPERTIES},
        needs=spec.needs,
        state=spec.state,
        cost=spec.cost,
        result="-" if guarantee.result is None else guarantee.result.name.partition(" (")[0],
    )


def _answer(rule: str, key: str, guarantee: Guarantee) -> Answer:
    claim = PROPERTIES[key].claim(guarantee)
    if claim is not None:
        return Answer(True, claim)
    found = counterexamples().get((rule, key))
    return Answer(None if found is None else False, counterexample=found)
