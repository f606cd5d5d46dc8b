"""The fairness study on the command line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.fairness import ADULT, example
from support.killing import results_in
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES, shown
from paretograd.descent import Stop
from paretograd.experiments.fairness import (
    FairnessResults,
    FairnessStudy,
)
from paretograd.experiments.fairness import run as run_module
from paretograd.experiments.fairness.__main__ import main
from paretograd.experiments.fairness.report import FAIRNESS
from paretograd.experiments.terminal import run_program

pytestmark = pytest.mark.usefixtures("small")


def interrupted(*_, **__):
    raise KeyboardInterrupt


class TestCommands:
    ARGUMENTS = ("reproduce", "fairness", "--methods", "mgda", "--seeds", "24", "--steps", "2", "--device", "cpu")

    @pytest.fixture
    def command(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(run_module, "load_adult", lambda data_dir, scaling: ADULT)
        return lambda *given: CliRunner().invoke(app, list(given))

    def test_reproduce_and_report(self, command, tmp_path):
        first = command(*self.ARGUMENTS)
        assert first.exit_code == 0, first.output
        assert first.stderr == ""
        assert all(word in first.stdout for word in ("MGDA", "accuracy", "DEO1", "runs/fairness/report.html"))
        assert (tmp_path / "runs/fairness/figures/fairness_mixed_seed24.png").exists()  # of the seed that there is
        assert max(map(len, map(str.rstrip, first.stdout.splitlines()))) <= 100
        again = command(*self.ARGUMENTS, "--resume", "--no-report")
        assert again.stdout.splitlines()[:12] == first.stdout.splitlines()[:12]
        (tmp_path / "runs/fairness/report.html").unlink()
        drawn = command("report", "runs/fairness")
        assert (drawn.exit_code, drawn.stdout.splitlines()[-1]) == (0, "runs/fairness/report.html")
        assert (tmp_path / "runs/fairness/report.html").exists()

    def test_report_of_a_synthetic_study(self, command, tmp_path):
        study = ("run", "vlmop2", "--aggregators", "mgda", "--steps", "5", "--lr", "0.1", "--no-report")
        assert command(*study).exit_code == 0
        drawn = command("report", "runs/vlmop2")
        assert drawn.stdout.splitlines()[-1] == "runs/vlmop2/report.html"
        (tmp_path / "runs/vlmop2/trajectories/mgda.npz").unlink()
        unfinished = command("report", "runs/vlmop2")
        assert unfinished.exit_code == 2
        assert "is not finished; go on with: paretograd run vlmop2" in unfinished.stderr

    @pytest.mark.parametrize("width", [80, 120])
    def test_the_table_fits_the_terminal(self, width, tmp_path, capsys):
        study = FairnessStudy(methods=("mgda", "mas-rr(2500)"))
        ends = {"lengths": np.array([12_345, *[40_000] * 3]), "reasons": (Stop.GAMMA, *[Stop.STEPS] * 3)}
        methods = {label: replace(example(label), **ends) for label in study.labels()}
        results = FairnessResults(study, tmp_path, methods)
        Console(width=width).print(shown(FAIRNESS.summary(results, width)))
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("MAS-RR(2.5k)  "))
        assert "12,345-40,000" in row
        assert ("(-0.25)" in row) == (width == 120)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("vlmop2", "--gaps", "means"), "reproduce vlmop2 has no --gaps"),
            (("fairness", "--authors-lr"), "reproduce fairness has no --authors-lr"),
            (("fairness", "--gaps", "both"), "use sums or means"),
            (("fairness", "--seeds", "x"), "such as 24,42"),
            (("fairness", "--methods", "mgad"), "Did you mean 'mgda'"),
            (("fairness", "--device", "tpu"), "use one of auto, cpu, cuda"),
            (("fairness", "--resume", "--overwrite"), "ask for one of them"),
        ],
    )
    def test_mistakes(self, command, tmp_path, arguments, message):
        found = command("reproduce", *arguments)
        assert found.exit_code == 2
        assert found.stderr.startswith("error: ")
        assert message in found.stderr
        assert list(tmp_path.iterdir()) == []

    def test_report_of_nothing(self, command):
        assert "config.json cannot be read" in command("report", "nowhere").stderr

    def test_an_interrupt_says_how_to_go_on(self, command, monkeypatch):
        monkeypatch.setitem(STUDIES, "fairness", replace(FAIRNESS, run=interrupted))
        found = command(*self.ARGUMENTS, "--data-dir", "my data")
        assert found.exit_code == 130
        assert "--steps 2 --data-dir 'my data' --device cpu --out runs/fairness --resume" in found.stderr

    def test_without_the_extra_of_the_report(self, command, monkeypatch):
        def missing(*_):
            raise pg.MissingExtraError("figures need matplotlib")

        monkeypatch.setattr("paretograd.experiments.fairness.report.write_fairness", missing)
        found = command(*self.ARGUMENTS)
        assert found.exit_code == 0
        assert "no report: figures need matplotlib; then run: paretograd report runs/fairness" in found.stderr

    def test_the_module_writes_the_same_folder(self, command, tmp_path, capsys):
        assert command(*self.ARGUMENTS, "--no-report").exit_code == 0
        options = [*self.ARGUMENTS[2:], "--out", "other"]
        assert main(options) == 0
        told = capsys.readouterr().out
        assert "[1/1] MGDA: done, 2 steps" in told
        assert "paretograd report other" in told
        assert results_in(tmp_path / "other") == results_in(tmp_path / "runs/fairness")
        assert main(options) == 2
        assert "this study, finished" in capsys.readouterr().err
        assert main([*options, "--resume"]) == 0

    def test_the_module_after_an_interrupt(self, capsys):
        assert run_program(replace(FAIRNESS, run=interrupted), []) == 130
        assert "with --resume goes on" in capsys.readouterr().err

    def test_the_module_needs_no_extra(self):
        code = (
            "import sys\n"
            "for extra in ('typer', 'rich', 'matplotlib', 'plotly', 'pandas'): sys.modules[extra] = None\n"
            "from paretograd.experiments.fairness.__main__ import main\n"
            "sys.exit(main(['--data-dir', '/nowhere', '--out', '/nowhere/study']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: /nowhere holds no adult.test")
