"""Studies on disk: what they are, what they write, what they never overwrite, and what they say to a mistake."""

from __future__ import annotations

import csv
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli import studies as commands
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES
from paretograd.errors import InputError, MissingExtraError, ParameterError, UnknownNameError
from paretograd.experiments import PAPER, Method, Study, paper_study, run_study
from paretograd.experiments.folder import remove_drafts, write_text
from paretograd.experiments.study import file_names, flag
from paretograd.experiments.synthetic.run import StudyFolder
from paretograd.experiments.synthetic.study import step_size

SMALL = Study(problem="vlmop2", methods=(Method("mgda", "0.1"), Method("upgrad*", "0.1")), seeds=(24, 42), steps=40)


def methods(*rules: str) -> tuple[Method, ...]:
    return tuple(Method(rule) for rule in rules)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def said(result) -> str:
    """The message of a command that must have failed as a mistake of the caller, without a traceback."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    return result.stderr


class TestStudy:
    def test_labels_are_the_paper_s_and_tell_methods_apart(self):
        study = Study(
            problem="vlmop2",
            methods=(*methods("nash-mtl*", "mas-rr(1000)", "capped-mgda(cap=0.6)", "capped-mgda(cap=0.8)", "mgda"),
                     Method("upgrad", "armijo")),
        )  # fmt: skip
        assert study.labels() == (
            "Nash-MTL*", "MAS-RR(1k)", "Capped MGDA (cap=0.6)", "Capped MGDA (cap=0.8)", "MGDA", "UPGrad (lr armijo)",
        )  # fmt: skip

    def test_names_of_files_are_plain_and_different(self):
        assert file_names(["Nash-MTL*", "PCGrad+", "MAS-RR(1k)", "A b", "a B", "../../etc", "*"]) == (
            "nash-mtl-star", "pcgrad-plus", "mas-rr-1k", "a-b", "a-b-2", "etc", "star",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seeds": ()}, "at least one seed"),
            ({"seeds": (1, 2, 1)}, "seed 1 is given twice"),
            ({"seeds": (-1,)}, "seed=-1 is too small; the smallest is 0"),
            ({"seeds": (2**63,)}, "is too large; the largest is 9223372036854775807"),
            ({"seeds": (1.5,)}, "whole number"),
            ({"figure_seed": 4}, "none of the seeds 24, 42"),
            ({"steps": 0}, "the smallest is 1"),
            ({"dtype": "float16"}, "use float32 or float64"),
            ({"methods": ()}, "at least one method"),
        ],
    )
    def test_mistakes(self, change, message):
        with pytest.raises(ParameterError, match=message):
            replace(SMALL, **change)

    def test_the_same_method_twice_is_refused(self):
        with pytest.raises(ParameterError, match="MGDA is in the list twice"):
            replace(SMALL, methods=methods("mgda", "mgda")).labels()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"methods": methods("mgda", "capped-mgda(cap=0.1)")}, "smallest feasible cap"),
            ({"methods": (Method("rgw", "smooth"),)}, "no theorem gives"),
            ({"problem": "zdt1", "methods": (Method("mgda", "smooth"),)}, "declares none"),
            ({"parameters": {"n": 0}}, "n=0"),
        ],
    )
    def test_a_rehearsal_finds_what_cannot_work_before_anything_is_written(self, change, message, tmp_path):
        with pytest.raises(ParameterError, match=message):
            run_study(replace(SMALL, **change), tmp_path / "study")
        assert not (tmp_path / "study").exists()


class TestStepSizes:
    def test_numbers_and_rules(self):
        assert repr(step_size("1e-2")) == "Constant(0.01)"
        assert repr(step_size("Smooth")) == "Smooth()"
        assert repr(step_size("aligned(smoothness=3.0)")) == "Aligned(smoothness=3.0)"
        assert repr(step_size("armijo(0.5, halvings=3)")).startswith("Armijo(start=0.5")

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("armjo", UnknownNameError, "Did you mean 'armijo'"),
            ("smooth*", UnknownNameError, "no step size"),
            ("-1", ParameterError, "above 0"),
            ("nan", ParameterError, "real number"),
            ("armijo(sigm=1)", ParameterError, "armijo takes start, sigma, halvings"),
        ],
    )
    def test_mistakes(self, text, error, message):
        with pytest.raises(error, match=message):
            step_size(text)


class TestPaper:
    def test_protocol(self):
        for name, n, seed in (("vlmop2", 4, 100), ("omnitest", 3, 48), ("mas", 3, 48)):
            study = paper_study(name)
            assert (study.parameters, study.shown_seed) == ({"n": n}, seed)
            assert study.seeds == (24, 42, 48, 100, 123)
            assert (study.stop_gamma, study.stop_norm, study.dtype) == (0.01, 0.01, "float32")
            assert {method.lr for method in study.methods} == {"0.001"}
        assert paper_study("vlmop2").labels() == (
            "MGDA", "UPGrad", "UPGrad*", "DualProj", "DualProj*", "Nash-MTL", "Nash-MTL*",
        )  # fmt: skip
        assert paper_study("mas").labels()[:5] == ("MGDA", "Nash-MTL*", "UPGrad*", "DualProj*", "MAS-Rand")

    def test_the_authors_step_size(self):
        theirs = {method.rule: method.lr for method in paper_study("vlmop2", authors_lr=True).methods}
        assert theirs.pop("nash-mtl*") == "0.005"
        assert set(theirs.values()) == {"0.001"}
        assert paper_study("vlmop2", authors_lr=True).labels()[-1] == "Nash-MTL* (lr 0.005)"

    def test_unknown_name(self):
        with pytest.raises(UnknownNameError, match="vlmop2, omnitest, mas"):
            paper_study("vlmop3")

    def test_the_paper_s_iterations(self, tmp_path):
        """Seed 100: the published counts within 0.5%, no conflict, nobody leaves the box; starred rules keep pace."""
        study = replace(paper_study("vlmop2"), seeds=(100,))
        rows = {row["method"]: row for row in run_study(study, tmp_path / "study").rows}
        for method, published in (("MGDA", 7417), ("UPGrad", 4043), ("DualProj", 4975), ("Nash-MTL", 1053)):
            assert rows[method]["iterations_figure_seed"] == pytest.approx(published, rel=0.005)
        assert all(row["conflicting_steps"] == row["seeds_left_box"] == 0 for row in rows.values())
        starred = [rows[method]["iterations_figure_seed"] for method in ("MGDA", "UPGrad*", "DualProj*", "Nash-MTL*")]
        assert max(starred) < 1.03 * min(starred)


class TestFolder:
    def test_holds_what_the_trajectories_say(self, tmp_path):
        results = run_study(SMALL, tmp_path / "a" / "study", metrics_every=7)
        assert sorted(path.name for path in results.folder.iterdir()) == [
            "config.json", "metrics.csv", "table.csv", "table.md", "trajectories",
        ]  # fmt: skip
        found = pg.Trajectory.load(results.folder / "trajectories" / "upgrad-star.npz")
        direct = pg.descend(pg.problem("vlmop2"), pg.get("upgrad*"), 0.1, 40, seeds=(24, 42), stop_gamma=0.01)
        assert np.array_equal(found.losses, direct.losses, equal_nan=True)
        with (results.folder / "metrics.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["method"] == "UPGrad*" and row["seed"] == "42"]
        assert [int(row["step"]) for row in rows] == [0, 7, 14, 21, 28, 35, 40]
        for row in rows:
            t = int(row["step"])
            assert float(row["f2"]) == direct.losses[t, 1, 1]
            assert float(row["gamma"]) == direct.gamma[t, 1]
            assert row["direction_norm"] == (repr(float(direct.norms[t, 1])) if t < 40 else "")
            assert row["conflicts"] == "0"

    def test_configuration(self, tmp_path):
        config = json.loads((run_study(SMALL, tmp_path).folder / "config.json").read_text())
        assert config["schema"] == 1
        assert config["study"] == json.loads(json.dumps(SMALL.plain()))
        assert config["command"] == SMALL.command()
        [session] = config["sessions"]
        assert set(session["versions"]) == {"python", "torch", "numpy", "paretograd"}
        assert session["versions"]["paretograd"] == pg.__version__

    def test_table(self, tmp_path):
        study = replace(SMALL, methods=(*SMALL.methods, Method("mean", "50")), figure_seed=42, stop_gamma=0.2)
        results = run_study(study, tmp_path)
        [mgda, _, mean] = results.rows
        counts = results.trajectories["MGDA"].iterations_to(0.2)
        assert mgda["iterations_figure_seed"] == counts[1]
        assert mgda["iterations_median"] == np.median(counts)
        assert (mgda["iterations_min"], mgda["iterations_max"]) == (counts.min(), counts.max())
        assert mgda["final_f1"] == results.trajectories["MGDA"].finals[1, 0]
        assert mgda["theorem"].startswith("Theorem 2")
        left = results.trajectories["Mean (lr 50)"].left_box
        assert mean["seeds_left_box"] == (left >= 0).sum() > 0
        text = (tmp_path / "table.md").read_text()
        assert f"`{study.command()}`" in text
        assert f"Mean (lr 50), seed 24: outside of the box at step {left[0]}." in text
        with (tmp_path / "table.csv").open() as file:
            [first, *_] = csv.DictReader(file)
        assert float(first["final_f1"]) == mgda["final_f1"]

    def test_a_run_that_does_not_arrive_has_no_count(self, tmp_path):
        results = run_study(replace(SMALL, steps=2), tmp_path)
        row = results.rows[0]
        assert row["iterations_figure_seed"] is row["iterations_median"] is row["iterations_max"] is None
        text = (tmp_path / "table.md").read_text()
        assert "none of 2" in text
        assert "MGDA, seed 24: all steps were taken (at step 2, gamma" in text

    def test_nothing_is_overwritten_unless_asked(self, tmp_path):
        run_study(SMALL, tmp_path / "s")
        before = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=r"holds this study, finished\. .*--resume shows it again"):
            run_study(SMALL, tmp_path / "s")
        other = replace(SMALL, steps=30)
        with pytest.raises(InputError, match="holds another study"):
            run_study(other, tmp_path / "s")
        with pytest.raises(InputError, match="ask for one of them"):
            run_study(SMALL, tmp_path / "s", resume=True, overwrite=True)
        assert {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()} == before
        run_study(other, tmp_path / "s", overwrite=True)
        assert json.loads((tmp_path / "s" / "config.json").read_text())["study"]["steps"] == 30

    def test_overwriting_removes_the_study_s_files_and_no_others(self, tmp_path):
        run_study(SMALL, tmp_path)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "report.html").write_text("old")
        run_study(replace(SMALL, methods=methods("mean")), tmp_path, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "mine"
        assert not (tmp_path / "report.html").exists()
        assert [path.name for path in (tmp_path / "trajectories").iterdir()] == ["mean.npz"]

    @pytest.mark.parametrize("asked", [{}, {"resume": True}, {"overwrite": True}])
    def test_a_folder_of_someone_else_is_left_alone(self, tmp_path, asked):
        (tmp_path / "thesis.tex").write_text("years of work")
        with pytest.raises(InputError, match="holds no study"):
            run_study(SMALL, tmp_path, **asked)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "damaged"),
            ("[]", "not the configuration"),
            ('{"a": 1}', "not the configuration"),
            ("[" * 10**5, "dam"),
        ],
    )
    def test_a_configuration_that_is_none(self, tmp_path, text, message):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=message):
            run_study(SMALL, tmp_path, overwrite=True)

    def test_a_later_schema_is_refused(self, tmp_path):
        run_study(SMALL, tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"schema": 2}))
        with pytest.raises(InputError, match="has schema 2; this version reads 1"):
            run_study(SMALL, tmp_path, resume=True)

    def test_a_file_in_the_place_of_the_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="is a file"):
            run_study(SMALL, tmp_path / "file")

    def test_one_process_at_a_time(self, tmp_path):
        with StudyFolder(tmp_path).locked(), pytest.raises(InputError, match="another process is working"):
            run_study(SMALL, tmp_path)
        run_study(SMALL, tmp_path)

    def test_text_is_written_whole_or_not_at_all(self, tmp_path, monkeypatch):
        path = write_text(tmp_path / "t.txt", ["old"])

        def fail(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(InputError, match="No space left"):
            write_text(path, ["new"])
        assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old\n"]
        (tmp_path / ".t.txt.1.part").write_text("left by a kill")
        remove_drafts(tmp_path)
        assert [entry.name for entry in tmp_path.iterdir()] == ["t.txt"]


class TestCommands:
    ARGUMENTS = ("--aggregators", "mgda,upgrad*", "--seeds", "2", "--lr", "0.1", "--steps", "30")

    def test_run_writes_all_and_says_where(self, run, tmp_path):
        result = run("run", "vlmop2", *self.ARGUMENTS)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""  # no bars outside of a terminal
        for name in ("report.html", "figures", "table.md", "metrics.csv"):
            assert f"runs/vlmop2/{name}" in result.stdout
            assert (tmp_path / "runs" / "vlmop2" / name).exists()
        assert {path.suffix for path in (tmp_path / "runs/vlmop2/figures").iterdir()} == {".png", ".svg"}
        assert max(map(len, map(str.rstrip, result.stdout.splitlines()))) <= 100
        assert all(word in result.stdout for word in ("MGDA", "UPGrad*", "Theorem 2", "seed", "median", "range"))

    def test_the_last_words_say_what_the_table_means(self, run):
        """They count the runs that arrived, and compare rules only if there are several."""
        several = " ".join(run("run", "vlmop2", *self.ARGUMENTS, "--no-report").stdout.split())
        assert several.endswith("fewer iterations may only mean longer steps.")
        assert "In short: 0 of 4 runs came close" in several
        alone = ("--aggregators", "mgda", "--lr", "1", "--steps", "300", "--no-report", "--overwrite")
        alone = " ".join(run("run", "vlmop2", *alone).stdout.split())
        assert "In short: 1 of 1 runs" in alone
        assert alone.endswith("(gamma < 0.01), and no step raised an objective, to first order.")

    def test_the_table_fits_a_narrow_terminal(self, run, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        rules = ",".join(method.rule for method in paper_study("vlmop2").methods)
        result = run("run", "vlmop2", "--aggregators", rules, "--seeds", "3", "--steps", "20", "--no-report")
        rows = [line for line in result.stdout.splitlines() if line.startswith(paper_study("vlmop2").labels())]
        assert [row.split()[0] for row in rows[:7]] == list(paper_study("vlmop2").labels())
        assert all("Theorem" in row or "Corollary" in row for row in rows[:7])

    def test_reproduce_without_a_name_lists_the_studies(self, run):
        text = run("reproduce").stdout
        assert all(name in text and PAPER[name].title in text for name in PAPER)

    def test_resume_shows_a_finished_study_again(self, run, tmp_path):
        arguments = ("run", "vlmop2", *self.ARGUMENTS, "--no-report", "--metrics-every", "3")
        first = run(*arguments)
        config = (tmp_path / "runs/vlmop2/config.json").read_bytes()
        assert "--resume shows it again" in said(run(*arguments))
        assert run(*arguments, "--resume").stdout == first.stdout
        without = [part for part in arguments if part not in ("--metrics-every", "3")]
        assert run(*without, "--resume").stdout == first.stdout  # thinned as it was
        assert (tmp_path / "runs/vlmop2/config.json").read_bytes() == config

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["vlmop3"], "Did you mean 'vlmop2'"),
            (["vlmop2", "--aggregators", "mgda,upgrd"], "Did you mean 'upgrad'?"),
            (["vlmop2", "--aggregators", " , "], "--aggregators is empty"),
            (["vlmop2", "--aggregators", "mgda,mgda"], "in the list twice"),
            (["vlmop2", "--seeds", "x"], "a count such as 5"),
            (["vlmop2", "--seeds", "0"], "it can be 1 to 1000"),
            (["vlmop2", "--seeds", "12345"], "write --seeds 12345,"),
            (["vlmop2", "--seeds", "1,1"], "seed 1 is given twice"),
            (["vlmop2", "--lr", "fast"], "Give a number, or one of smooth"),
            (["vlmop2", "--lr-for", "nash-mtl*=1"], "a rule of --aggregators (mgda, upgrad, dualproj, nash-mtl)"),
            (["vlmop2", "--param", "n"], "write key=value"),
            (["vlmop2", "--param", "k=3"], "Its parameters are n"),
            (["vlmop2", "--param", "n=2", "--param", "n=3"], "gives n twice"),
            (["vlmop2", "--figure-seed", "9"], "none of the seeds 0"),
            (["vlmop2", "--dtype", "half"], "use float32 or float64"),
            (["vlmop2", "--resume", "--overwrite"], "ask for one of them"),
            (["dtlz2", "--aggregators", "nash-mtl(preference=[1,2])"], "nash-mtl"),
        ],
    )
    def test_mistakes_before_anything_is_written(self, run, tmp_path, arguments, message):
        assert message in said(run("run", *arguments))
        assert list(tmp_path.iterdir()) == []

    def test_unknown_study(self, run):
        assert "there are vlmop2, omnitest, mas" in said(run("reproduce", "vlmop3"))

    def test_without_the_extra_of_the_report_all_numbers_are_there(self, run, monkeypatch, tmp_path):
        def missing(*arguments, **options):
            raise MissingExtraError("figures need plotly; install it with: pip install 'paretograd[report]'")

        monkeypatch.setattr("paretograd.reports.study.write_study", missing)
        result = run("run", "vlmop2", *self.ARGUMENTS)
        assert result.exit_code == 0
        assert "no report: figures need plotly" in result.stderr
        assert (tmp_path / "runs/vlmop2/table.md").exists()

    @pytest.mark.parametrize(
        "study",
        [
            *(paper_study(name, authors_lr) for name in PAPER for authors_lr in (False, True)),
            SMALL,
            replace(SMALL, seeds=(7,), dtype="float32", stop_gamma=0.0, stop_norm=1e-5, parameters={"n": 6}),
            Study(
                problem="quadratic",
                parameters=pg.problem("quadratic", n=3, spectrum=[1.0, 2.0, 3.0]).parameters,
                methods=(Method("capped-mgda(cap=0.6)*", "armijo(start=0.5)"), Method("mas-rr(10)", "smooth")),
                seeds=(1, 2),
                figure_seed=2,
            ),
        ],
        ids=Study.command,
    )
    def test_a_study_s_command_makes_it(self, run, monkeypatch, study):
        """What a table carries is enough to make it again."""
        seen = []
        monkeypatch.setattr(commands, "_follow", lambda kind, made, *rest: seen.append(made))
        assert run(*shlex.split(study.command())[1:]).exit_code == 0
        problem = study.make_problem()
        assert seen == [replace(study, parameters=dict(problem.parameters))]


def test_the_folder_is_a_path_or_text(tmp_path):
    assert run_study(SMALL, str(tmp_path / "s")).folder == Path(tmp_path / "s")


class TestRegistry:
    def test_studies_that_share_an_option_share_its_declaration(self):
        """The command line shows an option once, with one help text."""
        for name in {name for kind in STUDIES.values() for name in kind.options}:
            assert len({kind.options[name] for kind in STUDIES.values() if name in kind.options}) == 1

    @pytest.mark.parametrize("kind", STUDIES.values(), ids=list(STUDIES))
    def test_without_options_a_study_is_the_paper_s(self, kind):
        study = kind.make(dict.fromkeys(kind.options))
        assert study.command() == f"paretograd reproduce {kind.name}"

    def test_every_option_is_on_the_command_line(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        text = CliRunner().invoke(app, ["reproduce", "--help"]).output
        for kind in STUDIES.values():
            assert all(flag(name) in text and option.help in text for name, option in kind.options.items())
