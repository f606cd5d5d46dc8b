"""The federated study's tables, claims, figures, page and commands."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.federated import ATTACK, DATA, SMALL, example, made_runs
from support.killing import results_in
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES
from paretograd.experiments.federated import (
    FederatedResults,
    FederatedStudy,
    Run,
    Setting,
    read_results,
    small_study,
)
from paretograd.experiments.federated import run as run_module
from paretograd.experiments.federated.__main__ import main
from paretograd.experiments.federated.figures import record_series
from paretograd.experiments.federated.report import FEDERATED, write_federated
from paretograd.experiments.federated.study import (
    CENTRAL,
    CENTRALISED,
    CLEAN,
    PARTS,
    attack_of,
)
from paretograd.experiments.federated.table import claims, rows, write


class TestTable:
    STUDY = FederatedStudy()
    RUNS = made_runs(STUDY)

    def row(self, rule: str, setting: Setting) -> dict[str, object]:
        noise = setting.noise if setting.attacked else None
        [found] = [
            row for row in rows(self.STUDY, self.RUNS)
            if (row["rule"], row["setting"], row["noise"]) == (rule, setting.kind, noise)
        ]  # fmt: skip
        return found

    def test_values(self):
        mgda = self.row("mgda", ATTACK)
        assert mgda["accuracy_mean"] == pytest.approx(0.21)
        assert mgda["accuracy_std"] == pytest.approx(0.01)
        assert (mgda["accuracy_min"], mgda["accuracy_max"]) == (pytest.approx(0.20), pytest.approx(0.22))
        assert mgda["worst_client_mean"] == pytest.approx(0.16)
        assert mgda["overall_mean"] == pytest.approx(0.19)
        assert mgda["difference_to_clean"] == pytest.approx(0.21 - 0.58)
        assert mgda["difference_to_clean_std"] == pytest.approx(0.0, abs=1e-7)  # seed by seed; accuracies are float32
        assert mgda["difference_to_clean_min"] == pytest.approx(0.21 - 0.58)
        assert (mgda["paper"], mgda["difference_to_paper"]) == (0.211, pytest.approx(-0.001))
        assert (mgda["conflicting_epochs"], mgda["epochs"], mgda["ended_by"]) == (750, 3000, "steps")
        assert self.row("mgda", attack_of(0.4))["paper"] is None
        assert self.row("mean", CLEAN)["paper"] == 0.541
        assert self.row(CENTRALISED, CENTRAL)["clean_mean"] is None

    def test_changes_are_those_of_the_seeds_that_both_have(self):
        some = {one: result for one, result in self.RUNS.items() if (one.setting, one.seed) != (CLEAN, 2)}
        mgda = next(row for row in rows(self.STUDY, some) if (row["rule"], row["setting"]) == ("mgda", "relative"))
        assert (mgda["seeds"], mgda["difference_to_clean"]) == (3, pytest.approx(0.20 - 0.57))

    def test_files(self, tmp_path):
        write(run_module.FederatedFolder(tmp_path), self.STUDY, self.RUNS)
        text = (tmp_path / "table.md").read_text()
        assert "| MGDA | 0.210 ± 0.010 | 0.580 ± 0.010 | -0.370 ± 0.000 | 0.190 ± 0.010 | 0.211 | -0.001 |" in text
        assert "| Nash-MTL\\* | 0.450 ± 0.010 |" in text
        assert "| No adversary (Mean) |  | 0.580 ± 0.010 |  |  | 0.541 | +0.039 |" in text
        assert "| Centralised |  | 0.610 ± 0.010 |  |  |  |  |" in text
        assert "| method | rho 0.01 | rho 0.05 | rho 0.15 | rho 0.4 | rho 1 | literal 0.01 |" in text
        assert "| Trimmed mean | 0.310 ± 0.010 | 0.260 | 0.290 ± 0.010 | 25% |" in text
        assert "Made by `paretograd reproduce federated`." in text
        assert "not the paper's protocol" not in text
        with (tmp_path / "table.csv").open() as file:
            found = list(csv.DictReader(file))
        assert len(found) == len(self.STUDY.cases())
        assert float(found[0]["accuracy_mean"]) == pytest.approx(0.21)

    def test_claims(self):
        found = claims(self.STUDY, rows(self.STUDY, self.RUNS))
        assert len(found) == 9
        assert all(claim.holds for claim in found)
        lower = {(one.rule, one.seed): result for one, result in self.RUNS.items() if one.setting == ATTACK}
        uneven = self.RUNS | {
            Run("upgrad*", ATTACK, 0): replace(lower["upgrad*", 0], accuracies=lower["mgda", 0].accuracies)
        }
        [text] = [claim.text for claim in claims(self.STUDY, rows(self.STUDY, uneven)) if "UPGrad* stays" in claim.text]
        assert "UPGrad* stays in the mean within 0.06 of its accuracy without the attack: " in text
        assert text.endswith("; worst seed: -0.370.")
        other = {one: replace(result, accuracies=result.accuracies * 0 + 0.4) for one, result in self.RUNS.items()}
        fails = [claim.text for claim in claims(self.STUDY, rows(self.STUDY, other)) if not claim.holds]
        assert [text.split(":")[0] for text in fails[:2]] == [
            "MGDA collapses, below 0.3", "Nash-MTL* is between MGDA and these",
        ]  # fmt: skip
        assert len(fails) == 5

    def test_where_nobody_learns_nothing_collapses(self):
        low = {one: replace(result, accuracies=result.accuracies * 0 + 0.12) for one, result in self.RUNS.items()}
        assert not [claim for claim in claims(self.STUDY, rows(self.STUDY, low)) if "collapses" in claim.text]

    def test_one_seed_and_another_protocol(self, done):
        text = (done / "table.md").read_text()
        assert "after 3 epochs: seed 0." in text
        assert "not the paper's protocol (seeds 0, epochs 3, lr 0.05, shards 2, size 2, test size 2)" in text

    def test_a_part_alone_has_a_table(self, tmp_path):
        for part in PARTS:
            study = FederatedStudy(parts=(part,))
            write(run_module.FederatedFolder(tmp_path), study, made_runs(study))
            assert "| method |" in (tmp_path / "table.md").read_text(), part


class TestSeries:
    def test_ends_of_running_means_are_those_of_what_is_there(self):
        result = example(0.5)
        values = np.arange(len(result.epochs), dtype=np.float32)
        found = record_series(replace(result, norms=values), "norms")
        width = int(found.high[len(values) // 2] - found.low[len(values) // 2]) + 1
        for k in (0, 1, len(values) // 2, len(values) - 2, len(values) - 1):
            window = values[max(0, k - width // 2) : k + width - width // 2]
            assert (found.middle[k], found.low[k], found.high[k]) == (window.mean(), window.min(), window.max())


class TestReport:
    STEMS = ("capped_mgda_results", "cap_vs_clip", "avg_acc_multiC", "noise_sweep", "final_accuracy")

    def test_figures_and_page(self, tmp_path):
        results = FederatedResults(TestTable.STUDY, tmp_path, TestTable.RUNS)
        paths = write_federated(results, {"command": "c"})
        assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in self.STEMS for kind in ("png", "svg")] + [
            "report.html"
        ]
        page = paths[-1].read_text(encoding="utf-8")
        (text,) = re.findall(r'<script type="application/json" id="study">(.*?)</script>', page)
        data = json.loads(text)
        labels = [method["label"] for method in data["methods"]]
        assert labels[:2] == ["MGDA, rho 0.15", "Nash-MTL*, rho 0.15"]
        assert labels.count("Centralised") == 1
        assert [panel["kind"] for panel in data["panels"]] == ["loss"] * 4 + ["gamma"]
        assert data["objectives"] == ["accuracy", "loss", "|d|", "min d·g"]
        assert data["axes"][0] == "mean test accuracy of the clients"
        assert len(data["runs"]) == 3 * len(labels)
        assert "Conflict with the honest clients" in page

    def test_of_an_unfinished_study(self, done, tmp_path):
        shutil.copytree(done, tmp_path / "s")
        for path in (tmp_path / "s" / "runs").glob("capped*"):
            path.unlink()
        paths = write_federated(read_results(tmp_path / "s"), {})
        assert [path.name for path in paths] == ["final_accuracy.png", "final_accuracy.svg", "report.html"]

    def test_nothing_done_yet(self, tmp_path):
        with pytest.raises(pg.ParameterError, match="no run of the study"):
            write_federated(FederatedResults(SMALL, tmp_path, {}), {})


class TestCommands:
    ARGUMENTS = ("reproduce", "federated", "--small", "--methods", "mgda", "--epochs", "1", "--device", "cpu")

    @pytest.fixture
    def command(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        sizes = replace(small_study(), shards=2, size=2, test_size=2)
        monkeypatch.setattr("paretograd.experiments.federated.study.small_study", lambda: sizes)
        monkeypatch.setattr(run_module, "load_cifar10", lambda data_dir: DATA)
        return lambda *given: CliRunner().invoke(app, list(given))

    def test_reproduce_and_report(self, command, tmp_path):
        first = command(*self.ARGUMENTS)
        assert first.exit_code == 0, first.output
        assert first.stderr == ""
        words = ("MGDA", "under attack", "With and without the attack", "runs/federated/report.html")
        assert all(word in first.stdout for word in words)
        assert max(map(len, map(str.rstrip, first.stdout.splitlines()))) <= 100
        (tmp_path / "runs/federated/report.html").unlink()
        drawn = command("report", "runs/federated")
        assert (drawn.exit_code, drawn.stdout.splitlines()[-1]) == (0, "runs/federated/report.html")
        assert (tmp_path / "runs/federated/report.html").exists()

    def test_the_module_writes_the_same_folder(self, command, tmp_path, capsys):
        assert command(*self.ARGUMENTS, "--no-report").exit_code == 0
        options = [*self.ARGUMENTS[2:], "--out", "other"]
        assert main(options) == 0
        told = capsys.readouterr().out
        assert "[2/2] MGDA, no attack: done, 1 steps" in told
        assert "paretograd report other" in told
        assert results_in(tmp_path / "other") == results_in(tmp_path / "runs/federated")
        assert main(options) == 2
        assert "this study, finished" in capsys.readouterr().err
        assert main([*options, "--resume"]) == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("vlmop2", "--small"), "reproduce vlmop2 has no --small"),
            (("fairness", "--noise", "1"), "reproduce fairness has no --noise"),
            (("federated", "--gaps", "means"), "reproduce federated has no --gaps"),
            (("federated", "--parts", "x"), "use some of table, clean"),
            (("federated", "--noise", "x"), "a number such as 0.15"),
            (("federated", "--device", "tpu"), "use one of auto, cpu, cuda"),
        ],
    )
    def test_mistakes(self, command, tmp_path, arguments, message):
        found = command("reproduce", *arguments)
        assert found.exit_code == 2
        assert message in found.stderr
        assert list(tmp_path.iterdir()) == []

    def test_an_interrupt_says_how_to_go_on(self, command, monkeypatch):
        interrupted = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        monkeypatch.setitem(STUDIES, "federated", replace(FEDERATED, run=interrupted))
        found = command("reproduce", "federated", "--parts", "table", "--data-dir", "my data")
        assert found.exit_code == 130
        assert "federated --parts table --data-dir 'my data' --out runs/federated --resume" in found.stderr

    def test_the_module_needs_no_extra(self):
        code = (
            "import sys\n"
            "for extra in ('typer', 'rich', 'matplotlib', 'plotly', 'pandas'): sys.modules[extra] = None\n"
            "from paretograd.experiments.federated.__main__ import main\n"
            "sys.exit(main(['--data-dir', '/nowhere', '--out', '/nowhere/study']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: /nowhere holds neither")
