"""The documentation: its Python examples run and show what they claim, and its results are those in results/."""

import importlib.util
from pathlib import Path

import pytest
from support import ROOT
from support.blocks import BLOCK, run_page

PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/config.json"))


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's examples run from top to bottom, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    run_page(page, BLOCK)


@pytest.mark.parametrize("page", [ROOT / "docs/guide/federated.md", ROOT / "examples/flower/README.md"])
def test_flower_does_not_install_what_is_installed(page: Path) -> None:
    """Else `flwr run` looks for the app's dependencies in the package index, and fails. The page must say so first."""
    before, run, _ = page.read_text(encoding="utf-8").partition("flwr run examples/flower local")
    assert run
    assert "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in before


@pytest.fixture(scope="module")
def script():
    """docs/make_results.py, which finds what it shares with its neighbours beside it."""
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        spec.loader.exec_module(module)
    return module


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
