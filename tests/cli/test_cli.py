"""The ``paretograd`` command, run on real files: what it prints, what it writes, and what it says to a mistake."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import ROOT
from typer.testing import CliRunner

import paretograd as pg
from paretograd import cli
from paretograd.aggregators.registry import FURTHER
from paretograd.cli.app import app
from paretograd.cli.files import read_jacobian
from paretograd.reports.rules.steps import make_rule

TWO = [[1.0, 0.0], [-0.5, 1.0]]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command in an empty folder; ``run("compare", "j.csv").stdout``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments, stdin=None: CliRunner().invoke(app, list(arguments), input=stdin)


def said(result) -> str:
    """The message of a command that must have failed as a mistake of the caller, without a traceback."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    return result.stderr


def rules(result) -> dict[str, dict]:
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["rules"]}


class TestTop:
    def test_version(self, run):
        assert run("--version").stdout == f"paretograd {pg.__version__}\n"

    def test_help_names_every_command_by_the_question_it_answers(self, run):
        text = run("--help").stdout
        assert all(command in text for command in ("list", "explain", "theorems", "compare"))
        assert "what does each one promise?" in text

    def test_runs_as_a_module(self):
        done = subprocess.run([sys.executable, "-m", "paretograd", "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, f"paretograd {pg.__version__}\n")

    def test_library_does_not_import_the_extras(self):
        code = "import sys, paretograd; print({'typer', 'rich', 'matplotlib'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "set()"

    @pytest.mark.parametrize("package", ["typer", "rich"])
    def test_without_its_extra_it_says_how_to_get_it(self, package, monkeypatch, capsys):
        for parent, name in ((pg, "reports"), (cli, "app")):  # what is imported anew here goes again afterwards
            monkeypatch.setattr(parent, name, getattr(parent, name))
        for name in [name for name in sys.modules if name.startswith(("paretograd.cli.app", "paretograd.reports"))]:
            monkeypatch.delitem(sys.modules, name)
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert package in message
        assert "pip install 'paretograd[cli]'" in message


class TestList:
    def test_has_every_rule_with_its_promise(self, run):
        text = run("list").stdout
        for name in pg.names():
            line = next(line for line in text.splitlines() if line.split()[:1] == [name])
            assert pg.get(name, **({"eps": 0.5} if name == "capped-mgda" else {})).label in line
        assert "Theorem 2 (non-conflicting directions)" in text
        assert "A star asks for the normalized variant" in text
        for name in (*pg.names(further=True), *pg.scalarizer_names(), "unit-rows(RULE)"):
            assert name in text.replace("\n", " ")


class TestExplain:
    @pytest.mark.parametrize("name", [*pg.names(), "upgrad*", "capped-mgda*", "UPGrad"])
    def test_says_formula_use_guarantee_and_reference(self, run, name):
        result = run("explain", name)
        assert result.exit_code == 0, result.output
        words = " ".join(result.stdout.split())
        about = pg.get(name, **({"eps": 0.5} if "capped" in name else {}))
        for text in (about.label, about.description.when, about.description.reference, about.guarantee.note):
            assert " ".join(text.split()) in words
        assert about.description.formula.split(",")[0] in result.stdout
        if about.guarantee.result is not None:
            assert about.guarantee.result.name in words
            assert about.guarantee.rate in words

    def test_parameters_change_the_promise(self, run):
        assert "Some objective may go up" in run("explain", "cagrad").stdout
        assert "No objective goes up" in run("explain", "cagrad", "--param", "c=1").stdout

    @pytest.mark.parametrize("name", [*FURTHER, *pg.scalarizer_names(), "unit-rows(upgrad)", "cr-mogm(mgda)*"])
    def test_rules_that_need_more_or_less_than_a_gramian(self, run, name):
        result = run("explain", name)
        assert result.exit_code == 0, result.output
        about = make_rule(name, m=2)
        assert about.label in result.stdout
        assert about.description.formula.split(",")[0] in result.stdout

    def test_parameters_of_these_rules(self, run):
        assert "STCH(mu=0.5)" in run("explain", "stch", "--param", "mu=0.5").stdout
        assert "STCH(mu=0.25)" in run("explain", "stch(mu=0.25)").stdout
        assert "MoCo(beta=0.25)" in run("explain", "moco", "--param", "moco.beta=0.25").stdout
        assert "Their parameters are stch: mu, weights" in said(run("explain", "stch", "--param", "c=1"))

    def test_unknown_name_gets_a_suggestion(self, run):
        assert "Did you mean 'upgrad'?" in said(run("explain", "upgrd"))

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ("c=x", "cagrad takes c as a number; got 'x'"),
            ("p=1", "takes 'p'. Their parameters are cagrad: c"),
            ("c", "is no parameter; write key=value"),
            ("c=-1", "c=-1"),
            ("cagrd.c=1", "Did you mean 'cagrad'?"),
        ],
    )
    def test_wrong_parameters(self, run, written, message):
        assert message in said(run("explain", "cagrad", "--param", written))


class TestCompare:
    def test_example_shows_gradients_rules_and_how_to_read_them(self, run):
        result = run("compare", "example")
        assert result.exit_code == 0, result.output
        text = result.stdout
        assert text.startswith("3 objectives, 3 parameters, gamma = ")
        for name in pg.names():
            assert pg.get(name, **({"eps": 0.5} if name == "capped-mgda" else {})).label in text
        assert "CappedMGDA(eps=0.5), ClippedMGDA(cap=0.6667)" in text
        assert "is the length of the shortest weighted average" in text
        assert "objective 2 under Mean" in text

    def test_example_is_worth_comparing(self):
        """The bundled gradients differ in norm, and the mean increases one objective."""
        J = read_jacobian("example")
        assert J.shape == (3, 3)
        G = pg.gramian(J)
        assert G.diagonal().max() > 9.0 * G.diagonal().min()
        assert pg.certify(G, pg.Mean().weights(G)).conflicts == (2,)
        assert pg.stationarity(G) > 0.1

    def test_numbers_are_the_librarys(self, run):
        found = rules(run("compare", "example", "--json"))
        assert list(found) == pg.names()
        J = read_jacobian("example")
        G = pg.gramian(J)
        for name in ("mgda", "upgrad", "pcgrad", "imtl-g"):
            d, certificate = pg.get(name)(J), pg.certify(G, pg.get(name).weights(G))
            assert found[name]["norm"] == pytest.approx(float(d.norm()))
            assert found[name]["worst_cosine"] == pytest.approx(float((J @ d / J.norm(dim=1)).min() / d.norm()))
            assert found[name]["conflicts"] == list(certificate.conflicts)
            assert found[name]["in_hull"] == certificate.in_hull
            assert found[name]["alignment"] == pytest.approx(certificate.alignment)
            assert found[name]["weights"] == pytest.approx(pg.get(name).weights(G).tolist())

    @pytest.mark.parametrize(
        "text",
        [
            "1,0\n-0.5,1\n",
            "1 0\n-0.5 1",
            "1\t0\r\n-.5\t1e0\r\n",
            "# two tasks\n\nw0, w1\n 1 , 0  # first\n-0.5, 1\n",
            "\ufeffa b\n1 0\n-0.5 1\n",
        ],
    )
    def test_reads_csv_as_people_write_it(self, tmp_path, text):
        path = tmp_path / "jacobian.csv"
        path.write_text(text, encoding="utf-8", newline="")
        assert read_jacobian(str(path)).tolist() == TWO

    @pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8", "<f8"])
    def test_reads_npy_of_any_float(self, tmp_path, dtype):
        np.save(tmp_path / "j.npy", np.array(TWO, dtype=dtype))
        assert torch.equal(read_jacobian(str(tmp_path / "j.npy")), torch.tensor(TWO, dtype=torch.float64))

    def test_reads_integers_and_fortran_order(self, tmp_path):
        np.save(tmp_path / "j.npy", np.asfortranarray([[1, 2, 3], [4, 5, 6]]))
        assert read_jacobian(str(tmp_path / "j.npy")).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]

    def test_reads_standard_input(self, run):
        assert rules(run("compare", "-", "--json", stdin="1 0\n-0.5 1\n"))["mean"]["weights"] == [0.5, 0.5]

    def test_only_keeps_the_order_asked_for_and_knows_the_star(self, run):
        assert list(rules(run("compare", "example", "--json", "--only", "upgrad*, mgda,upgrad*"))) == [
            "upgrad*",
            "mgda",
        ]

    def test_stars_join_the_rules_they_may_change(self, run):
        found = rules(run("compare", "example", "--json", "--stars"))
        assert "upgrad*" in found
        assert "mgda*" not in found  # its weights sum to one already
        assert sum(found["nash-mtl*"]["weights"]) == pytest.approx(1.0)

    def test_a_parameter_goes_to_every_rule_that_takes_it(self, run):
        found = rules(run("compare", "example", "--json", "--param", "cap=0.4", "--param", "cagrad.c=2"))
        assert found["capped-mgda"]["setting"] == "CappedMGDA(cap=0.4)"
        assert found["clipped-mgda"]["setting"] == "ClippedMGDA(cap=0.4)"
        assert found["cagrad"]["setting"] == "CAGrad(c=2.0)"
        assert max(found["capped-mgda"]["weights"]) <= 0.4 + 1e-12

    def test_clipping_is_compared_at_the_cap_of_capped_mgda(self, run):
        found = rules(run("compare", "example", "--json", "--param", "eps=0.8"))
        assert found["clipped-mgda"]["setting"].startswith("ClippedMGDA(cap=0.41666")

    def test_random_rules_answer_the_same_twice(self, run):
        first, again = (run("compare", "example", "--json", "--only", "rgw").stdout for _ in range(2))
        assert first == again
        assert run("compare", "example", "--json", "--only", "rgw", "--param", "seed=1").stdout != first

    def test_csv_and_markdown_hold_the_same_rules(self, run):
        table = list(csv.DictReader(io.StringIO(run("compare", "example", "--format", "csv").stdout)))
        assert [row["name"] for row in table] == pg.names()
        assert float(table[0]["w2"]) == pytest.approx(1.0 / 3.0)
        lines = [line for line in run("compare", "example", "--format", "markdown").stdout.splitlines() if "|" in line]
        assert lines[2].startswith("| Mean | ")
        assert len({line.count(" | ") for line in lines if line.startswith("| ")}) == 1

    def test_many_objectives_are_summed_up(self, run, tmp_path):
        np.save(tmp_path / "j.npy", np.random.default_rng(0).normal(size=(10, 4)))
        text = run("compare", "j.npy").stdout
        assert "gradient norms from" in text
        assert "weights (first 6)" in text

    def test_stationary_point_is_told(self, run):
        text = run("compare", "-", stdin="1 0\n-1 0\n").stdout
        assert "gamma is zero to rounding" in text
        assert "stationary" in text
        found = rules(run("compare", "-", "--json", stdin="1 0\n-1 0\n"))
        assert found["upgrad"]["worst_cosine"] is None
        assert found["upgrad"]["alignment"] is None


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1,2,3\n4,5\n", "line 2 has 2 numbers, but line 1 has 3"),
            ("a,b\n1,2\n3,x\n", "line 3, column 2: 'x' is not a number"),
            ("# c\n1,2\n3,\n", "line 3, column 2: there is an empty cell"),
            ("1;2\n3;4\n", "separated by commas or blanks"),
            ("1,2\n3,nan\n", "of objective 1 holds NaN or infinity"),
            ("inf 2\n3 4\n", "of objective 0 holds NaN or infinity"),
            ("", "holds no numbers"),
            ("# nothing\n\n", "holds no numbers"),
            ("a,b\n", "holds no numbers"),
            ("1,2,3\n", "holds one gradient of 3 numbers"),
        ],
    )
    def test_in_a_csv(self, run, tmp_path, text, message):
        (tmp_path / "j.csv").write_text(text)
        assert message in said(run("compare", "j.csv"))

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.ones(3), "shape (3,); a Jacobian has two dimensions"),
            (np.ones((2, 2, 2)), "shape (2, 2, 2)"),
            (np.ones((0, 3)), "shape (0, 3)"),
            (np.ones((2, 2), dtype=complex), "values of type complex128"),
            (np.array([["a", "b"]]), "values of type <U1"),
            (np.array([[1, None]], dtype=object), "values of type object"),
            (np.array([[True, False], [False, True]]), "values of type bool"),
            (np.array([[1.0, np.nan], [0.0, 1.0]]), "of objective 0 holds NaN"),
            (np.ones((1, 3)), "holds one gradient"),
        ],
    )
    def test_in_an_npy(self, run, tmp_path, array, message):
        np.save(tmp_path / "j.npy", array, allow_pickle=True)
        assert message in said(run("compare", "j.npy"))

    def test_damaged_or_wrongly_named_files(self, run, tmp_path):
        np.save(tmp_path / "j.npy", np.ones((20, 20)))
        (tmp_path / "cut.npy").write_bytes((tmp_path / "j.npy").read_bytes()[:200])
        (tmp_path / "text.npy").write_text("1,2\n3,4\n")
        (tmp_path / "noise.csv").write_bytes(bytes(range(128, 256)))
        assert "damaged npy" in said(run("compare", "cut.npy"))
        assert "is called npy but is not one" in said(run("compare", "text.npy"))
        assert "neither text nor npy" in said(run("compare", "noise.csv"))

    def test_missing_file_and_folder(self, run, tmp_path):
        assert "there is no file nowhere.csv" in said(run("compare", "nowhere.csv"))
        assert "is a folder" in said(run("compare", str(tmp_path)))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--only", "mgda,upgrd"], "Did you mean 'upgrad'?"),
            (["--only", " , "], "--only is empty"),
            (["--only", "mgda", "--param", "c=1"], "none of the chosen rules takes 'c'"),
            (["--param", "cap=0.1"], "smallest feasible cap is 1/m"),
            (["--param", "preference=1,2"], "has 2 numbers, but there are m = 3 objectives"),
            (["--param", "renormalize=perhaps"], "takes renormalize as true or false"),
            (["--param", "seed=1.5"], "takes seed as a whole number"),
            (["--param", "order=random"], "use 'given' or 'shuffled'"),
        ],
    )
    def test_in_the_options(self, run, arguments, message):
        assert message in said(run("compare", "example", *arguments))

    def test_unknown_format_is_a_usage_error(self, run):
        assert run("compare", "example", "--format", "xml").exit_code == 2


class TestPlot:
    def test_writes_a_picture_and_says_where(self, run, tmp_path):
        result = run("compare", "example", "--plot", "new/folder/out.png")
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith("The picture is in new/folder/out.png\n")
        with Image.open(tmp_path / "new/folder/out.png") as picture:
            picture.load()
            assert picture.size == (1350, 900)
        assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["out.png"]

    @pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
    def test_the_suffix_chooses_the_format(self, run, tmp_path, suffix, start):
        assert run("compare", "-", "--plot", f"out.{suffix}", stdin="1 0\n-0.5 1\n").exit_code == 0
        assert (tmp_path / f"out.{suffix}").read_bytes().startswith(start)

    def test_data_stays_clean(self, run):
        result = run("compare", "example", "--json", "--only", "mgda", "--plot", "out.png")
        json.loads(result.stdout)
        assert "out.png" in result.stderr

    def test_wrong_suffix_folder_or_too_few_parameters(self, run, tmp_path):
        assert "written as .png, .pdf, .svg" in said(run("compare", "example", "--plot", "out.bmp"))
        assert "has no suffix" in said(run("compare", "example", "--plot", "out"))
        (tmp_path / "folder.png").mkdir()
        assert "is a folder" in said(run("compare", "example", "--plot", "folder.png"))
        assert "two or more parameters" in said(run("compare", "-", "--plot", "out.png", stdin="1\n2\n"))
        assert not (tmp_path / "out.png").exists()

    def test_a_failed_write_keeps_the_old_picture(self, run, tmp_path, monkeypatch):
        from matplotlib.figure import Figure

        def fail(self, path, **_):
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")

        (tmp_path / "out.png").write_bytes(b"old")
        monkeypatch.setattr(Figure, "savefig", fail)
        result = run("compare", "example", "--plot", "out.png")
        assert result.exit_code == 2
        assert "cannot write out.png: No space left on device" in result.stderr
        assert (tmp_path / "out.png").read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["out.png"]

    def test_without_matplotlib_it_says_how_to_get_it(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert "pip install 'paretograd[plot]'" in said(run("compare", "example", "--plot", "out.png"))


def test_the_documented_table_is_what_is_printed(run) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    printed = run("compare", "example", "--only", "mean,mgda,upgrad,capped-mgda").output.partition("\n\nworst:")[0]
    assert "\n".join(line.rstrip() for line in printed.splitlines()) in page
