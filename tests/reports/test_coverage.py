"""Which theorem covers which method, and Table 1 with live values: data, commands, page and picture agree."""

from __future__ import annotations

import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support import ROOT
from typer.testing import CliRunner

import paretograd as pg
from paretograd.aggregators.paper_table import TABLE_1
from paretograd.cli.app import app
from paretograd.cli.files import read_jacobian
from paretograd.reports import flowchart, paper_table
from paretograd.reports.coverage import REMARKS, coverage, to_markdown
from paretograd.reports.explain import explain
from paretograd.reports.words import short_name
from paretograd.subproblem import CVaR

PAGE = ROOT / "docs" / "coverage.md"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def section(rule: pg.Aggregator, heading: str) -> tuple[str, ...]:
    return next((found.lines for found in explain(rule) if found.heading == heading), ())


class TestCoverage:
    def test_every_rule_stands_in_one_place(self):
        found = coverage()
        rules = [rule for entry in found.covered for rule in entry.rules] + list(found.uncovered)
        assert sorted(rule.name for rule in rules if not rule.name.endswith("*")) == sorted(pg.names())
        assert len({rule.name for rule in rules}) == len(rules)

    def test_every_entry_is_what_the_guarantees_say(self):
        found = coverage()
        for entry in found.covered:
            for rule in entry.rules:
                promise = rule.guarantee
                assert (promise.theorem, str(promise.F)) == (entry.result.label, entry.surrogate)
        assert all(rule.guarantee.theorem is None for rule in found.uncovered)
        assert all(rule.guarantee.note for rule in found.uncovered)

    def test_every_result_of_the_paper_has_rules_or_a_remark(self):
        found = coverage()
        assert list(dict.fromkeys(entry.result.label for entry in found.covered)) == list(pg.RESULTS)
        assert {entry.result.label for entry in found.covered if not entry.rules} == set(REMARKS)

    @pytest.mark.parametrize(
        ("result", "labels"),
        [
            ("thm:cvg_nonconflict", ["MGDA", "Nash-MTL*", "UPGrad*", "DualProj*"]),
            ("thm:PS_proj_cvg", ["UPGrad", "DualProj", "Greedy-DCP"]),
            ("thm:PSreg", ["Power mean", "Capped MGDA"]),
        ],
    )
    def test_the_papers_figure_is_matched(self, result, labels):
        assert set(labels) <= set(coverage().labels(result))

    def test_pcgrad_is_left_out_but_for_its_repetition(self):
        """The paper's figure has PCGrad*, which its own counter-example excludes from three objectives on."""
        found = coverage()
        assert "PCGrad+*" in found.labels("thm:cvg_nonconflict")
        assert "PCGrad" in [rule.label for rule in found.uncovered]

    def test_a_star_is_listed_where_it_has_another_theorem(self):
        found = coverage()
        labels = [label for entry in found.covered for label in entry.labels]
        assert "CAGrad*" not in labels  # Corollary 1, as CAGrad
        assert "Capped MGDA*" not in labels  # capped MGDA itself

    def test_the_page_is_up_to_date(self):
        block = re.search(r"(?s)<!-- begin generated -->\n(.*?)\n<!-- end generated -->", PAGE.read_text("utf-8"))
        assert block is not None
        assert block[1].strip() == to_markdown(coverage()), "run `python docs/make_figures.py`"


class TestPicture:
    def test_every_rule_is_in_it_and_every_text_in_its_frame(self):
        found = coverage()
        figure = flowchart.draw(found)
        FigureCanvasAgg(figure).draw()
        (axes,) = figure.axes
        texts = [text for text in axes.texts if text.get_text()]
        shown = " ".join(text.get_text() for text in texts).replace("\n", " ")
        for entry in found.covered:
            assert all(label in shown for label in entry.labels)
        assert all(rule.label in shown for rule in found.uncovered)
        boxes = [text.get_window_extent() for text in texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        frames = [patch.get_window_extent() for patch in axes.patches]
        for box in boxes:
            assert figure.bbox.x0 < box.x0
            assert box.x1 < figure.bbox.x1
            for frame in frames:  # in it or out of it, not across its edge
                inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
                assert inside or not frame.overlaps(box)


class TestFramework:
    def test_the_example_is_the_one_of_compare(self):
        assert paper_table.three_tasks().tolist() == read_jacobian("example").tolist()

    def test_every_row_agrees_with_its_rule(self):
        for row, difference in paper_table.differences():
            assert difference <= (1e-6 if row.label == "IMTL-G" else 1e-12), row.label

    @pytest.mark.parametrize("row", TABLE_1, ids=[row.label for row in TABLE_1])
    def test_explain_shows_the_row(self, row):
        lines = section(row.dedicated(), "In the framework")
        text = "\n".join(lines)
        assert row.s in text
        assert row.r in text
        assert f"{short_name(row.result) if row.result else 'none'} (the row's colour" in text
        assert repr(row.dedicated()) in text
        assert ("norm one" in text) == (row.length != "same")
        assert section(row.dedicated().normalized(), "In the framework")[:-1] == lines

    def test_a_rule_outside_of_table_1_has_no_row(self):
        assert section(pg.RGW(), "In the framework") == ()
        assert section(pg.RGW(), "Hypotheses of Theorem 4") == ()

    def test_hypotheses_come_with_their_evidence(self):
        rule = pg.Subproblem(CVaR(eps=0.5))
        lines = section(rule, "Hypotheses of Theorem 4")
        assert lines == tuple(map(str, rule.guarantee.hypotheses))
        assert any("Rockafellar and Uryasev 2000" in line for line in lines)
        assert lines == section(pg.CappedMGDA(eps=0.5), "Hypotheses of Theorem 4")
        assert section(pg.FairGrad(), "Hypotheses of Theorem 4") == ()  # Theorem 4 does not cover it

    def test_a_parameter_without_default_is_required(self):
        assert section(pg.Subproblem(CVaR(eps=0.5)), "Parameters")[0].startswith("s (required): ")


class TestCommands:
    def test_explain_without_a_name_prints_table_1(self, run):
        result = run("explain")
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        for row in TABLE_1:
            line = next(line for line in lines if line.startswith(row.label))
            assert row.s in line
            assert row.r in line
            assert short_name(row.result) in line
        assert "compare example" in " ".join(result.stdout.split())

    def test_explain_shows_the_framework(self, run):
        text = run("explain", "capped-mgda").stdout
        assert "In the framework" in text
        assert "CVaR_eps(x)" in text
        assert "Hypotheses of Theorem 4" in text

    def test_parameters_need_a_name(self, run):
        result = run("explain", "--param", "c=1")
        assert result.exit_code == 2
        assert "--param belongs to a rule" in result.stderr

    def test_theorems_lists_every_result_and_every_rule(self, run):
        result = run("theorems")
        assert result.exit_code == 0, result.output
        words = " ".join(result.stdout.split())
        assert all(entry.name in words for entry in pg.RESULTS.values())
        found = coverage()
        assert all(label in words for entry in found.covered for label in entry.labels)
        assert all(rule.guarantee.note in words for rule in found.uncovered)

    def test_theorems_in_a_metric(self, run):
        result = run("theorems", "--metric")
        assert result.exit_code == 0, result.output
        assert result.stdout.count("NOT:") == 1 + sum(not entry.proved for entry in pg.METRIC_RESULTS.values())
        assert "A metric that moves" in result.stdout
        assert run("theorems", "--metric", "--plot", "out.svg").exit_code == 2

    def test_theorems_draws_its_picture(self, run, tmp_path):
        result = run("theorems", "--plot", "out.svg")
        assert result.stdout.endswith("The picture is in out.svg\n")
        assert (tmp_path / "out.svg").read_bytes().startswith(b"<?xml")

    def test_a_wrong_suffix_is_told_before_any_work(self, run):
        result = run("theorems", "--plot", "out.bmp")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "written as .png, .pdf, .svg" in result.stderr
