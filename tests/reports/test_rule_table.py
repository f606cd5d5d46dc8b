"""The table of rules: no cell is empty, every "no" is refuted by its counter-example, every "yes" is tested."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import paretograd as pg
from paretograd.aggregators.registry import SCHEDULES, WRAPPERS, read_rule
from paretograd.errors import UnknownNameError
from paretograd.reports.coverage import coverage
from paretograd.reports.rules import counterexamples as stored
from paretograd.reports.rules.counterexamples import LEAST_MARGIN, Counterexample, counterexamples
from paretograd.reports.rules.properties import PROPERTIES
from paretograd.reports.rules.rows import NEEDS, ROWS
from paretograd.reports.rules.table import TableRow, rows_of

SEARCH = "run `python benchmarks/counterexamples.py --only '{}'`, or prove the property and claim it in the guarantee"

#: Entries of the counter-examples: small enough to check by hand.
LARGEST = 20
#: Rounding of a margin of a true claim, next to stationary points.
ROUNDING = 1e-6

rows = pytest.mark.parametrize("row", pg.table(), ids=lambda row: row.rule)
refuted = pytest.mark.parametrize(
    "example", counterexamples().values(), ids=lambda example: f"{example.rule}, {example.refutes}"
)


def test_every_rule_has_a_row() -> None:
    listed = {read_rule(spec.rule).name for spec in ROWS}
    missing = {*pg.names(further=True), *WRAPPERS, *SCHEDULES, *pg.scalarizer_names()} - listed
    assert not missing, f"add a RowSpec for {sorted(missing)} to src/paretograd/reports/rules/rows.py"


def test_every_starred_variant_with_a_theorem_of_its_own_has_a_row() -> None:
    found = coverage()
    starred = {rule.name for entry in found.covered for rule in entry.rules if rule.name.endswith("*")}
    missing = starred - {spec.rule for spec in ROWS}
    assert not missing, f"add a RowSpec for {sorted(missing)} to src/paretograd/reports/rules/rows.py"


def test_rules_and_labels_are_unique() -> None:
    table = pg.table()
    assert len({row.rule for row in table}) == len({row.label for row in table}) == len(table)


@rows
def test_no_cell_is_empty(row: TableRow) -> None:
    empty = [key for key, answer in row.answers.items() if answer.holds is None]
    assert not empty, f"{row.rule} neither has nor lacks {', '.join(empty)}: {SEARCH.format(row.rule)}"
    assert list(row.answers) == list(PROPERTIES)
    assert row.needs in NEEDS
    assert row.cost
    assert all(row.texts().values())


def test_every_counterexample_is_a_no() -> None:
    """None is left over from a rule or property that is gone, or that a guarantee claims by now."""
    refuted = {(row.rule, key) for row in pg.table() for key, answer in row.answers.items() if answer.holds is False}
    assert set(counterexamples()) == refuted


@refuted
def test_every_no_is_refuted(example: Counterexample) -> None:
    assert example.margin >= LEAST_MARGIN, SEARCH.format(example.rule)


@refuted
def test_counterexamples_are_small_integers(example: Counterexample) -> None:
    numbers = [*example.z, *example.order, *example.factors, example.exponent]
    for case in example.cases:
        numbers += [case.multiplier, *case.losses_step, *(entry for line in case.step or () for entry in line)]
        assert len(case.jacobian) <= 4
        assert len(case.earlier) <= 3
        for moment in (*case.earlier, case):
            matrices = (moment.jacobian, *moment.batches)
            numbers += [*moment.losses, *moment.learned, *(entry for J in matrices for line in J for entry in line)]
            assert len(moment.jacobian) == len(case.jacobian)
    assert all(type(entry) is int for entry in numbers)
    assert max(map(abs, numbers), default=0) <= LARGEST


@pytest.mark.parametrize("key", PROPERTIES)
def test_no_rule_with_a_property_is_refuted(key: str) -> None:
    """What refutes one rule does not refute another that has the property: the check itself is sound."""
    having = [row for row in pg.table() if row.answers[key].holds]
    examples = [example for example in counterexamples().values() if example.refutes == key]
    assert having
    for example in examples:
        for row in having:
            cases = tuple(replace(case, rule=None) for case in example.cases)
            try:
                margin = replace(example, rule=row.rule, cases=cases).margin
            except pg.InputError:
                continue  # another number of objectives
            assert margin <= ROUNDING, (row.rule, example)


def test_every_property_is_refuted_for_some_rule_or_holds_for_all() -> None:
    everywhere = {key for key in PROPERTIES if all(row.answers[key].holds for row in pg.table())}
    assert everywhere <= {"degree"}


def test_a_rule_without_degree_is_refuted() -> None:
    """Entropic MGDA with an absolute temperature, which the registry does not have, has no degree."""

    rule = pg.Subproblem(pg.subproblem.Entropic(1.0))
    example = Counterexample("mean", "degree", (stored.Case([[3, 0], [0, 1]]),))
    assert example.margin <= ROUNDING
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "make_rule", lambda text, m: rule)
        assert example.margin >= LEAST_MARGIN


class TestFile:
    def test_it_is_read_as_it_was_written(self):
        for (rule, key), example in counterexamples().items():
            assert Counterexample.from_json(rule, key, json.loads(json.dumps(example.to_json()))) == example

    def test_a_broken_file_is_an_error(self, monkeypatch, tmp_path):
        broken = tmp_path / "broken.json"
        broken.write_text("{", encoding="utf-8")
        monkeypatch.setattr(stored, "PATH", broken)
        with pytest.raises(pg.DataError, match="reinstall"):
            counterexamples.__wrapped__()


class TestData:
    def test_condition_a_names_c_and_F(self):
        found = {row.rule: str(row.answers["aligned"]) for row in pg.table()}
        assert found["mgda"] == "c = 1, F = mean_k f_k"
        assert found["cagrad"] == "c = 0.667, F = mean_k f_k"
        assert found["config"] == "c = 1, F = sum_k f_k"
        assert found["nash-mtl"] == "no"
        assert found["gls"] == "c = 1, F = F(f)"

    def test_texts_make_a_data_frame(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame([row.texts() for row in pg.table()])
        assert len(frame) == len(pg.table())
        assert set(frame["in_hull"]) == {"yes", "no"}

    def test_rows_by_name(self):
        assert [row.rule for row in rows_of(["nash-mtl*"])] == ["nash-mtl*"]
        assert [row.rule for row in rows_of(["cagrad"])] == ["cagrad", "cagrad(c=1)", "cagrad(c=1.5)"]
        assert [row.rule for row in rows_of(["cagrad(c=1)", "CAGrad"])] == ["cagrad(c=1)", "cagrad", "cagrad(c=1.5)"]
        with pytest.raises(UnknownNameError, match="no row for adam"):
            rows_of(["mgda", "adam"])
