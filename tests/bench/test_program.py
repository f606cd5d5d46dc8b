"""The command: list, run, cost and report, with the files that it writes."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from paretograd.bench.cost import read_costs
from paretograd.bench.program import run_program
from paretograd.bench.protocol import Setting
from paretograd.bench.report import notes, read_reports
from paretograd.bench.tasks import TASKS
from paretograd.cli import main

TOY = "support.toy:Toy"
RULES = "single,mean,tuned-mean,mgda,trimmed-mean,modo,famo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    for task in (TOY, "support.toy:Other"):
        common = ["--rules", RULES, "--device", "cpu", "--out", str(out)]
        assert run_program(["run", task, "--trials", "2", "--seeds", "2", "--steps", "20", *common]) == 0
    assert run_program(["cost", TOY, *common]) == 0
    return out


def test_list_shows_every_task_and_rule(capsys):
    assert run_program(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*TASKS, "capped-mgda", "stch", "single"))


def test_report_writes_tables_runs_and_figures(folder, capsys):
    assert run_program(["report", "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    text = (folder / "report.md").read_text(encoding="utf-8")
    for words in (
        "All tasks",
        "Mean, tuned weights",
        "trim=1 at either end",
        "Not run: ",
        "Δm refers to single-task networks",
    ):
        assert words in shown + text
    with (folder / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Two tasks, two optimizers, eight settings each: two trials and two networks twice, two metrics each; but the
    # trimmed mean has trials only.
    assert len(rows) == 2 * 2 * (7 * (2 + 2 * 2) + 2) * 2
    assert {row["stage"] for row in rows} == {"search", "report"}
    figures = {path.name for path in (folder / "figures").iterdir()}
    assert {"critical-difference.svg", "toy-time.svg", "toy-curves.png", "other-curves.svg"} <= figures
    assert "other-time.svg" not in figures  # its costs were not measured


def test_packed_runs_make_the_same_report(folder, tmp_path, capsys):
    assert run_program(["report", "--out", str(folder), "--pack"]) == 0
    for name in ("toy", "other"):
        for file in ("config.json", "cost.json", "runs.npz"):
            if (folder / name / file).exists():
                (tmp_path / name).mkdir(exist_ok=True)
                shutil.copy(folder / name / file, tmp_path / name / file)
    assert run_program(["report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_bytes() == (folder / "report.md").read_bytes()
    lines = [sorted((place / "runs.csv").read_text().splitlines()) for place in (folder, tmp_path)]
    assert lines[0] == lines[1]


def test_costs_are_those_of_backward(folder):
    device, costs = read_costs(folder / "toy")
    assert device.startswith("CPU")
    assert set(costs) == {
        "single(0)",
        "single(1)",
        "mean",
        "tuned-mean",
        "mgda",
        "modo",
        "famo",
    }
    assert all(cost.milliseconds > 0.0 and cost.mebibytes is None for cost in costs.values())


def test_costs_of_other_rules_stay(folder, tmp_path):
    shutil.copytree(folder / "toy", tmp_path / "toy")
    measure = ["cost", TOY, "--rules", "upgrad", "--device", "cpu", "--out", str(tmp_path)]
    before = read_costs(tmp_path / "toy")[1]
    assert run_program(measure) == 0
    after = read_costs(tmp_path / "toy")[1]
    assert set(after) == {*before, "upgrad"}
    assert all(after[name] == cost for name, cost in before.items())
    assert run_program([*measure, "--small"]) == 0  # these costs are no others' equals
    assert set(read_costs(tmp_path / "toy")[1]) == {"upgrad"}


def test_one_optimizer_can_be_looked_at(folder):
    for name in ("sgd", "adamw"):
        for report in read_reports(folder, name):
            assert {row.optimizer for row in report.rows} == {name}
            own = report.outcomes[Setting("single(0)", name)].test[:, 0].mean()
            assert any(f"Δm refers to single-task networks: first error {own:.2f}," in line for line in notes(report))


def test_errors_are_words(tmp_path, capsys):
    assert run_program(["run", "nothing", "--out", str(tmp_path)]) == 2
    assert "Known names" in capsys.readouterr().err
    assert run_program(["report", "--out", str(tmp_path)]) == 2
    assert "bench run" in capsys.readouterr().err


def test_the_command_line_has_it(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paretograd", "bench", "list"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "Tasks" in capsys.readouterr().out


def test_the_examples_of_the_page(tmp_path, monkeypatch, capsys):
    """A rule and a task of the user's own, as the page shows them."""
    page = (Path(__file__).parents[2] / "docs" / "referee.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"# (\w+)\.py\n(.*?)```", page, re.DOTALL):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    common = ["--trials", "2", "--seeds", "2", "--steps", "40", "--device", "cpu", "--optimizers", "adamw"]
    assert run_program(["run", "sines.py", "--rules", "single,tuned-mean", "--rule", "mine:Half", *common]) == 0
    assert run_program(["report"]) == 0
    assert "mine:Half" not in capsys.readouterr().err
    (report,) = read_reports("runs/bench")
    assert {row.rule for row in report.rows} == {"tuned-mean", "mine:Half"}
    assert all(np.isfinite(row.delta).all() for row in report.rows)


def test_damaged_costs_are_named(folder, tmp_path):
    (tmp_path / "cost.json").write_text(json.dumps({"device": "CPU"}))
    with pytest.raises(ValueError, match=r"cost\.json"):
        read_costs(tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_runs(name, tmp_path, capsys):
    """A short run of the small variant, on made data: search, report and table."""
    common = [name, "--small", "--made", "--device", "cpu", "--out", str(tmp_path)]
    some = ["--rules", "tuned-mean,upgrad,graddrop", "--optimizers", "adamw"]
    assert run_program(["run", *common, *some, "--trials", "2", "--seeds", "2", "--steps", "4"]) == 0
    assert run_program(["report", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "UPGrad" in shown
    assert "This is a trial run (small and invented data)" in shown
    task = TASKS[name](small=True)
    (report,) = read_reports(tmp_path)
    assert all(row.test.shape == (2, len(task.metrics)) for row in report.rows)
