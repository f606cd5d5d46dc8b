"""The table of rules as people see it: the command, wide and narrow, and the page."""

from __future__ import annotations

import re

import pytest
from support import ROOT
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.reports.rules.page import to_markdown

PAGE = ROOT / "docs" / "table-of-rules.md"


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch):
        def invoke(width: int, *arguments: str):
            monkeypatch.setenv("COLUMNS", str(width))
            return CliRunner().invoke(app, ["theorems", *arguments])

        return invoke

    @pytest.mark.parametrize("width", [80, 150, 170, 200])
    def test_the_table_has_all_rules_and_fits(self, run, width):
        result = run(width, "--table")
        assert result.exit_code == 0, result.output
        lines = result.output.splitlines()
        assert max(map(len, lines)) <= width
        text = re.sub(r"\s+", " ", result.output)
        for row in pg.table():
            assert row.label.split(" (")[0] in text

    def test_a_rule_shows_its_counterexamples(self, run):
        result = run(120, "--table", "--only", "upgrad")
        assert result.exit_code == 0, result.output
        assert "in the hull: no" in result.output
        assert "J = [" in result.output
        assert "non-conflicting: yes" in result.output

    def test_options_that_do_not_go_together(self, run):
        assert "give one of them" in run(120, "--table", "--metric").output
        assert "add --table" in run(120, "--only", "mgda").output
        assert "no row for" in run(120, "--table", "--only", "adam").output


def test_the_page_is_up_to_date() -> None:
    block = re.search(r"(?s)<!-- begin generated -->\n(.*?)\n<!-- end generated -->", PAGE.read_text("utf-8"))
    assert block is not None
    assert block[1].strip() == to_markdown().strip(), "run `python docs/make_rule_table.py`"
