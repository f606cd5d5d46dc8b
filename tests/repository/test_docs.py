"""The documentation: its Python examples run and show what they claim, and its results are those in results/.

The blocks of one file run in order in one namespace. A comment that starts with `# ->` after an expression is
compared with the expression's value, or with what it printed where the value is None; `...` matches anything,
and the comment lines right below it belong to it.
"""

import ast
import contextlib
import doctest
import importlib.util
import io
import itertools
import re
import textwrap
from pathlib import Path

import pytest
from support import ROOT

PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
BLOCK = re.compile(r"(?ms)^(?P<fence>[ \t]*```)(?:python|py)\b[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$")
CHECKER, FLAGS = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/config.json"))


def claimed(lines: list[str], statement: ast.stmt) -> str | None:
    """The text of the `# ->` comment that ends the statement or is among the comments below it."""
    last = statement.end_lineno or statement.lineno
    _, arrow, text = lines[last - 1].encode()[statement.end_col_offset :].decode().partition("# ->")
    if arrow:
        return text.strip()
    below = list(itertools.takewhile(lambda line: line.startswith("#"), lines[last:]))
    start = next((i for i, comment in enumerate(below) if comment.startswith("# ->")), None)
    if start is None:
        return None
    return "\n".join([below[start].removeprefix("# ->"), *(line[1:] for line in below[start + 1 :])]).strip()


def run_block(code: str, page: str, offset: int, namespace: dict[str, object]) -> None:
    """Run one block, statement by statement; tracebacks name the page and the line in it."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        expected = claimed(lines, statement)
        ast.increment_lineno(statement, offset)
        where = f"{page}:{statement.lineno}"
        if not isinstance(statement, ast.Expr):
            assert expected is None, f"{where}: `# ->` follows a statement that has no value"
            exec(compile(ast.Module([statement], []), page, "exec"), namespace)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            value = eval(compile(ast.Expression(statement.value), page, "eval"), namespace)
        shown = printed.getvalue() if value is None else repr(value)
        if expected is not None and not CHECKER.check_output(f"{expected}\n", f"{shown}\n", FLAGS):
            pytest.fail(f"{where} shows\n{shown}\nbut claims\n{expected}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's examples run from top to bottom, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__example__"}
    for block in BLOCK.finditer(text):
        offset = text.count("\n", 0, block.start("code"))
        code = textwrap.dedent(block["code"])
        run_block(code, page.relative_to(ROOT).as_posix(), offset, namespace)


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
