"""The documentation: its Python examples run and show what they claim, and its results are those in results/."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
from support import ROOT
from support.blocks import BLOCK, run_page

import paretograd as pg

PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/config.json"))


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's examples run from top to bottom, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    run_page(page, BLOCK)


def test_the_readme_counts_the_answers_of_the_table() -> None:
    rows = pg.table()
    yes = sum(answer.holds is True for row in rows for answer in row.answers.values())
    no = sum(answer.counterexample is not None for row in rows for answer in row.answers.values())
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"For {len(rows)} rules and variants" in text
    assert f"({yes} times *yes*)" in text
    assert f"({no} times *no*)" in text


@pytest.mark.parametrize("page", [ROOT / "docs/guide/federated.md", ROOT / "examples/flower/README.md"])
def test_flower_does_not_install_what_is_installed(page: Path) -> None:
    """Else `flwr run` looks for the app's dependencies in the package index, and fails. The page must say so first."""
    before, run, _ = page.read_text(encoding="utf-8").partition("flwr run examples/flower local")
    assert run
    assert "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in before


class TestCitation:
    @pytest.fixture
    def citation(self):
        yaml = pytest.importorskip("yaml")
        return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    def test_it_has_what_the_format_requires(self, citation) -> None:
        assert citation["cff-version"] == "1.2.0"
        assert citation["message"]
        assert citation["authors"]
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert {name: citation[name] for name in ("title", "version", "license", "abstract")} == {
            "title": project["name"],
            "version": project["version"],
            "license": project["license"],
            "abstract": f"{project['description']}.",
        }

    def test_the_page_cites_the_same_paper(self, citation) -> None:
        paper = citation["preferred-citation"]
        page = (ROOT / "docs" / "citation.md").read_text(encoding="utf-8")
        names = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
        for entry in (paper["title"], names, paper["conference"]["name"], str(paper["year"])):
            assert f"{{{entry}}}" in page


def imported(name: str):
    """A script of docs/, which finds what it shares with its neighbours beside it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return imported("make_results")


class TestNotebooks:
    """`python docs/make_notebooks.py` writes them. Their code is that of the tutorials, which run above."""

    @pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
    def test_they_are_made_from_the_tutorials(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == imported("make_notebooks").notebook(text)

    @pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
    def test_they_hold_the_code_and_no_link_to_a_picture(self, page: Path) -> None:
        cells = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert code == [block["code"].strip() for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]
        assert not any("../assets/" in line for cell in cells for line in cell["source"])

    def test_each_tutorial_has_one(self) -> None:
        assert len(TUTORIALS) == 4
        assert {path.stem for path in TUTORIALS[0].parent.glob("*.ipynb")} == {page.stem for page in TUTORIALS}


@pytest.mark.skipif(not (ROOT / "results" / "referee").exists(), reason="the results lie in the repository only")
def test_the_page_of_the_referee_has_its_tables(script):
    """`python docs/make_results.py` writes it again."""
    page = (ROOT / "docs" / "referee-results.md").read_text(encoding="utf-8")
    assert script.with_referee(page) == page


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
class TestResults:
    def test_the_page_has_the_tables(self, script, folder):
        """`python docs/make_results.py` writes it again."""
        page = (ROOT / "docs" / f"{folder.name}.md").read_text(encoding="utf-8")
        assert script.with_results(page, folder) == page

    def test_the_page_shows_the_figures(self, folder):
        page = (ROOT / "docs" / f"{folder.name}.md").read_text(encoding="utf-8")
        figures = sorted((folder / "figures").glob("*.svg"))
        assert figures
        for figure in figures:
            name = f"{folder.name}-{figure.name}"
            assert (ROOT / "docs" / "assets" / name).read_bytes() == figure.read_bytes()
            assert f"(assets/{name})" in page
