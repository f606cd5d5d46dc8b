"""Answers of the explorer: the library's numbers, and errors in words."""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.errors import ParetogradError
from paretograd.experiments.counterexamples.study import examples
from paretograd.reports.explore.answers import FARTHEST, MOST, answer
from paretograd.reports.explore.choices import PRESETS, Preset, catalogue, dials, first_text

ROWS = [[3.0, 0.0], [-1.0, 1.0]]
SPACE = [[2.0, 2.2, 1.1], [0.7, -2.3, -1.5], [-0.4, -0.4, 0.1]]


def ask(*rules: str, rows: object = None) -> dict[str, Any]:
    found = answer({"gradients": ROWS if rows is None else rows, "rules": list(rules)})
    json.dumps(found, allow_nan=False)
    return found


def facts(record: dict[str, Any]) -> dict[str, str]:
    return dict(record["facts"])


class TestNumbers:
    @pytest.mark.parametrize("rows", [ROWS, SPACE], ids=["plane", "space"])
    @pytest.mark.parametrize("text", ["mean", "mgda", "upgrad*", "capped-mgda(cap=0.6)", "power-mean(p=-2)*"])
    def test_directions_are_the_librarys(self, text: str, rows: list[list[float]]) -> None:
        J = torch.tensor(rows, dtype=torch.float64)
        found = ask(text, rows=rows)["rules"][0]
        d = pg.get(text)(J)
        assert found["direction"] == d.tolist()
        certificate = pg.certify(J @ J.T, pg.get(text).weights(J @ J.T))
        assert found["conflicts"] == list(certificate.conflicts)
        assert facts(found)["|d|"] == f"{float(d.norm()):.3g}"

    def test_gamma_slopes_and_promises(self) -> None:
        found = ask("mean", "mgda")
        assert found["gamma"] == "0.7276"
        mean, mgda = map(facts, found["rules"])
        assert mean["slopes ⟨d, gₖ⟩"] == "3, -0.5"
        assert mean["conflicts"] == "1"
        assert mgda["lies in"] == "convex hull"
        assert "non-conflicting: kept" in mgda["promises"]
        assert "Theorem 2" in mgda["applies"]

    def test_sliders_show_the_defaults_of_a_rule(self) -> None:
        found = ask("clipped-mgda", "krum", "rgw")["rules"]
        assert [record["dials"][0]["value"] for record in found] == ["0.2", "1", "0"]

    def test_a_gamma_that_is_rounding_is_zero(self) -> None:
        found = ask(rows=[[3, 0], [-1, 1], [1.2, 2.4], [0.5, -1.8]])
        assert found["gamma"] == "0"
        assert "zero to rounding" in found["findings"][0]

    def test_a_zero_direction_has_no_unit(self) -> None:
        assert ask("mgda", rows=[[1, 0], [-1, 0]])["rules"][0]["unit"] is None

    def test_every_rule_answers_with_its_first_parameters(self) -> None:
        for name in pg.names():
            found = ask(first_text(name), f"{name}*" if name != "capped-mgda" else "mgda", rows=SPACE)
            assert [record.get("error") for record in found["rules"]] == [None, None], name

    def test_random_rules_say_the_same_twice(self) -> None:
        assert ask("rgw", "gradvac") == ask("rgw", "gradvac")

    def test_lengths_far_apart(self) -> None:
        found = ask("mgda", "upgrad", rows=[[FARTHEST, 0.0], [-1e-300, 1e-300]])
        assert all("error" not in record for record in found["rules"])

    def test_without_rules_there_is_still_gamma(self) -> None:
        found = ask()
        assert found["rules"] == []
        assert len(found["findings"]) == 1


class TestProgram:
    def test_it_prints_the_numbers_of_the_page(self) -> None:
        rules = (
            "mean",
            "capped-mgda(0.6)*",
            "rgw",
            "nash-mtl(max_norm=none)",
            "dualproj(preference=[1, 2])",
        )
        found = ask(*rules, "no-such-rule")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(found["program"], "program", "exec"), {})
        lines = [line for line in out.getvalue().splitlines() if " d = " in line]
        printed = [json.loads(line.partition(" d = ")[2]) for line in lines]
        shown = [record["direction"] for record in found["rules"][:-1]]
        assert np.array(printed) == pytest.approx(np.array(shown), rel=1e-12)
        assert lines[2].startswith("rgw(seed=0) d = ")


class TestErrors:
    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            (None, '"gradients"'),
            ([], '"gradients"'),
            ({"gradients": ROWS}, '"rules"'),
            ({"gradients": "3,0", "rules": []}, "2 to 12 gradients; got 'str'"),
            ({"gradients": ROWS[:1], "rules": []}, "got 1 of them"),
            ({"gradients": [[0.0, 1.0]] * (MOST + 1), "rules": []}, "got 13 of them"),
            ({"gradients": [[1.0], [2.0]], "rules": []}, "2 numbers"),
            ({"gradients": [[1.0] * 4] * 2, "rules": []}, "3 numbers"),
            ({"gradients": [[1.0, 2.0], [1.0, 2.0, 3.0]], "rules": []}, "2 numbers"),
            ({"gradients": [7, 8], "rules": []}, "2 numbers"),
            ({"gradients": [[1.0, None], [0.0, 1.0]], "rules": []}, "gradient 0 is no number"),
            ({"gradients": [[1.0, 0.0], [True, 1.0]], "rules": []}, "gradient 1 is no number"),
            ({"gradients": [[1.0, 0.0], ["1", 1.0]], "rules": []}, "gradient 1 is no number"),
            ({"gradients": [[1.0, 0.0], [math.nan, 1.0]], "rules": []}, "gradient 1 is nan; it must be finite"),
            ({"gradients": [[1.0, -math.inf], [0.0, 1.0]], "rules": []}, "gradient 0 is -inf"),
            ({"gradients": [[1.0, 2e6], [0.0, 1.0]], "rules": []}, "between -1e+06 and 1e+06"),
            ({"gradients": [[1.0, 10**400], [0.0, 1.0]], "rules": []}, "between -1e+06 and 1e+06"),
            ({"gradients": ROWS, "rules": "mgda"}, '"rules" is a list of names'),
            ({"gradients": ROWS, "rules": [1]}, '"rules" is a list of names'),
            ({"gradients": ROWS, "rules": ["mgda"] * (MOST + 1)}, "at most 12 rules"),
        ],
    )
    def test_a_wrong_request_is_refused_in_words(self, request_: object, words: str) -> None:
        with pytest.raises(ParetogradError) as error:
            answer(request_)
        assert words in str(error.value)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("upgrade", "Did you mean 'upgrad'"),
            ("", "is not a rule"),
            ("mgda(", "is not a rule"),
            ("cagrad(c=nan)", "c="),
            ("cagrad(c=-1)", "c="),
            ("cagrad(k=1)", "cagrad"),
            ("capped-mgda", "cap"),
            ("capped-mgda(cap=0.1)", "0.5"),
            ("power-mean(p=2)", "p=2"),
            ("mean(weights=[1, 2, 3])", "weights"),
            ("graddrop", "no single rule"),
            ("mas-rr(3)", "no single rule"),
            ("unit-rows(upgrad)", "no single rule"),
            ("spectral-mgda(spectrum=[" + "1, " * 200 + "1])", "200 characters"),
        ],
    )
    def test_a_rule_that_fails_says_why_and_stops_no_other(self, text: str, words: str) -> None:
        found = ask("mgda", text, "upgrad")
        assert words in found["rules"][1]["error"]
        assert [record["label"] for record in found["rules"][::2]] == ["MGDA", "UPGrad"]
        assert all("error" not in record for record in found["rules"][::2])

    def test_a_rule_that_fails_keeps_its_sliders(self) -> None:
        found = ask("capped-mgda(cap=0.3)")["rules"][0]
        assert found["parameters"] == {"cap": "0.3"}
        assert found["dials"][0]["low"] == 0.5


class TestChoices:
    def test_paper_counterexamples_are_those_of_the_study(self) -> None:
        rows = [preset.gradients for preset in PRESETS if "Counter-example" in preset.about]
        assert rows == [example.rows for example in examples()]

    @pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
    def test_presets_answer(self, preset: Preset) -> None:
        found = ask(*preset.rules, rows=[list(row) for row in preset.gradients])
        assert all("error" not in record for record in found["rules"])

    @pytest.mark.parametrize("name", pg.names())
    @pytest.mark.parametrize("m", [2, 3, 12])
    def test_both_ends_of_every_slider_are_valid(self, name: str, m: int) -> None:
        rows = [[math.cos(k), math.sin(k)] for k in range(m)]
        for dial in dials(name, m):
            for value in (dial.low, dial.high, dial.start):
                text = f"{name}({dial.key}={int(value) if dial.whole else value})"
                assert "error" not in ask(text, rows=rows)["rules"][0], text

    def test_the_catalogue_has_every_rule_and_a_view_in_space(self) -> None:
        found = catalogue()
        assert [rule["name"] for rule in found["rules"]] == pg.names()
        assert all(("view" in preset) == (len(preset["gradients"][0]) == 3) for preset in found["presets"])
