"""The study of the paper's counter-examples: its gradients, runs, claims, files and commands."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.killing import killed_at_every_write
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES, kind_in
from paretograd.experiments.counterexamples import (
    CounterexampleResults,
    CounterexampleStudy,
    read_results,
    run_counterexamples,
)
from paretograd.experiments.counterexamples.report import COUNTEREXAMPLES
from paretograd.experiments.counterexamples.run import claims
from paretograd.experiments.counterexamples.study import examples

SHORT = CounterexampleStudy(methods=("pcgrad", "mgda"), steps=4)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> CounterexampleResults:
    return run_counterexamples(CounterexampleStudy(), tmp_path_factory.mktemp("done") / "study")


class TestStudy:
    def test_the_paper_s_jacobians(self):
        """Typed once more from the paper; the third is the second with its first two rows divided by ten."""
        root = 3**0.5
        first, second, third = (torch.tensor(example.rows, dtype=torch.float64) for example in examples())
        assert first.tolist() == [[1, root, 0.1], [-2, 0, 0.1], [1, -root, 0.1]]
        assert second.tolist() == [[8.660254, -5, 0], [-8.660254, -5, 0], [0, -0.99498744, 0.1]]
        assert torch.allclose(third, second / torch.tensor([[10.0], [10.0], [1.0]]), rtol=1e-15)
        assert torch.allclose(third.norm(dim=1), torch.ones(3, dtype=torch.float64), atol=1e-8)

    @pytest.mark.parametrize("example", examples(), ids=lambda example: example.number)
    def test_the_gradients_at_the_start_are_the_example(self, example):
        start = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        losses, J = example.problem.jacobian(start)
        assert J.tolist() == [list(row) for row in example.rows]
        rows = [torch.autograd.grad(loss, start, retain_graph=True)[0] for loss in example.problem(start)]
        assert torch.allclose(torch.stack(rows), J)
        assert torch.equal(losses, example.problem(start).detach())

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"methods": ()}, "at least one method"),
            ({"methods": "mgda"}, "rules in a tuple"),
            ({"z": 0.0}, "z=0: a finite number, above 0"),
            ({"lr": float("inf")}, "lr=inf: a finite number"),
            ({"steps": 0}, "steps"),
        ],
    )
    def test_mistakes(self, values, message):
        with pytest.raises(pg.ParameterError, match=message):
            CounterexampleStudy(**values)

    def test_a_rule_that_cannot_run_is_found_before_anything_is_written(self, tmp_path):
        with pytest.raises(pg.ParameterError, match="Capped MGDA, example 1: the rule cannot run"):
            run_counterexamples(CounterexampleStudy(methods=("capped-mgda(cap=0.1)",)), tmp_path / "s")
        assert list(tmp_path.iterdir()) == []

    def test_as_plain_data_and_back(self):
        for study in (CounterexampleStudy(), SHORT):
            assert CounterexampleStudy.from_plain(json.loads(json.dumps(study.plain()))) == study
        for wrong in ({}, SHORT.plain() | {"own_data": ""}, SHORT.plain() | {"methods": 3}):
            with pytest.raises(pg.InputError, match="not the configuration of a counterexamples study"):
                CounterexampleStudy.from_plain(wrong)

    def test_its_command_makes_it(self, monkeypatch):
        study, seen = CounterexampleStudy(methods=("pcgrad", "upgrad*"), z=0.2), []
        seeing = lambda made, *_, **__: seen.append(made) or 1 / 0  # noqa: E731
        monkeypatch.setitem(STUDIES, "counterexamples", replace(COUNTEREXAMPLES, run=seeing))
        with pytest.raises(ZeroDivisionError):
            CliRunner().invoke(app, shlex.split(study.command())[1:], catch_exceptions=False)
        assert seen == [study]
        call = SHORT.command().removeprefix("paretograd.experiments.counterexamples.run_counterexamples")
        assert eval(call, {"CounterexampleStudy": CounterexampleStudy, "FOLDER": 0}) == (SHORT, 0)


class TestResults:
    def test_every_claim_of_the_paper_holds(self, done):
        found = claims(done)
        assert len(found) == 6
        assert all(claim.holds for claim in found)
        assert "d·g1 = -0.4702" in found[0].text

    def test_the_rules_that_fail(self, done):
        """PCGrad raises f1, IMTL-G raises all objectives, or stops far from a stationary point."""
        rows = {(row["example"], row["method"]): row for row in done.rows}
        pcgrad, imtlg, stalled = rows[1, "PCGrad"], rows[2, "IMTL-G"], rows[3, "IMTL-G"]
        assert pcgrad["change_f1"] > 0.3
        assert pcgrad["conflicting_steps"] == pcgrad["steps"]
        assert all(imtlg[f"change_f{k}"] > 0 for k in (1, 2, 3))
        assert (stalled["conflicting_steps"], stalled["ended_by"]) == (0, "steps")
        assert stalled["final_gamma"] > 0.4

    def test_rules_with_a_theorem_reach_a_stationary_point(self, done):
        good = [row for row in done.rows if row["method"] in ("MGDA", "UPGrad", "PCGrad+")]
        assert len(good) == 9
        assert all(row["ended_by"] == "gamma" for row in good)

    def test_a_claim_that_does_not_hold_says_so(self, done):
        """With MGDA's run in the place of PCGrad's."""
        case, mgda = (
            next(case for case in done.runs if (case.method, case.example.number) == (name, 1))
            for name in ("PCGrad", "MGDA")
        )
        claim = claims(replace(done, runs={case: done.runs[mgda]}))[0]
        assert claim.sentence.startswith("Does not hold: PCGrad's direction conflicts with g1")

    def test_files(self, done):
        text = (done.folder / "table.md").read_text()
        assert "Made by `paretograd reproduce counterexamples`." in text
        assert "| PCGrad | -0.470 | 0.022 | 0.515 |" in text
        assert text.count("\nHolds: ") == 6
        with (done.folder / "table.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 15
        assert not (done.folder / "checkpoints").exists()

    def test_reading_runs_nothing(self, done):
        assert kind_in(done.folder) is COUNTEREXAMPLES
        again = read_results(done.folder)
        assert (again.study, again.rows) == (done.study, done.rows)

    def test_an_unfinished_study_says_what_is_missing(self, tmp_path):
        found = run_counterexamples(SHORT, tmp_path / "s")
        (found.folder / "trajectories" / "mgda-example-3.npz").unlink()
        shown = COUNTEREXAMPLES.summary(read_results(found.folder), 80)
        assert shown.remarks == ["Not run yet: 1 of 6 runs."]

    @pytest.mark.parametrize("other", ["mgda-example-1", "pcgrad-example-2"])
    def test_a_file_of_another_run_is_refused(self, tmp_path, other):
        runs = run_counterexamples(SHORT, tmp_path).folder / "trajectories"
        (runs / f"{other}.npz").replace(runs / "mgda-example-2.npz")
        with pytest.raises(pg.InputError, match=r"of another study.*--resume runs MGDA, example 2 again"):
            read_results(tmp_path)

    def test_killed_at_every_write(self, tmp_path):
        run = lambda folder, study, **options: run_counterexamples(study, folder, **options)  # noqa: E731
        assert killed_at_every_write(run, SHORT, tmp_path, dense=6, stride=5) > 12


class TestShown:
    def test_figures_and_page(self, done):
        pytest.importorskip("plotly")
        paths = [path.relative_to(done.folder) for path in COUNTEREXAMPLES.draw(done)]
        names = ("counterexample_directions", "counterexample_runs")
        figures = [Path("figures") / f"{name}.{kind}" for name in names for kind in ("png", "svg")]
        assert paths == [*figures, Path("report.html")]
        text = (done.folder / "report.html").read_text()
        assert 'Example <select name="seed">' in text
        assert "all examples" in text
        assert "What the theorems say, example 1" in text
        assert "They cover 4 of the 5 runs of this example, with L = 1." in text

    def test_nothing_to_draw(self, done):
        with pytest.raises(pg.ParameterError, match="at least one"):
            COUNTEREXAMPLES.draw(replace(done, runs={}))

    def test_the_command_fits_a_terminal(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        found = CliRunner().invoke(app, ["reproduce", "counterexamples", "--methods", "pcgrad,mgda", "--no-report"])
        assert found.exit_code == 0, found.output
        assert max(map(len, map(str.rstrip, found.stdout.splitlines()))) <= 80
        assert "Holds: PCGrad's direction conflicts with g1" in found.stdout

    def test_it_is_in_the_list_of_studies(self):
        assert "counterexamples  The paper's counter-examples" in CliRunner().invoke(app, ["reproduce"]).stdout
