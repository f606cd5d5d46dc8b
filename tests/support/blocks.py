"""The Python examples of a page: they run, and show what they claim.

The blocks of one file run in order in one namespace. A comment that starts with `# ->` after an expression is
compared with the expression's value, or with what it printed where the value is None; `...` matches anything,
and the comment lines right below it belong to it.
"""

import ast
import contextlib
import doctest
import io
import itertools
import re
import textwrap
from pathlib import Path

import pytest

from . import ROOT

#: A block that runs with the packages of `make test`.
BLOCK = re.compile(r"(?ms)^(?P<fence>[ \t]*```)(?:python|py)\b[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$")
#: The same, or one that `make test` does not run: a copy of a program in examples/, or one that needs another package.
ANY_BLOCK = re.compile(BLOCK.pattern.replace(r"(?:python|py)\b", r"(?:python\b|py\b| \{ \.python \})"))
CHECKER, FLAGS = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


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


def run_page(page: Path, kind: re.Pattern[str]) -> None:
    """Run a page's blocks of this kind from top to bottom."""
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__example__"}
    for block in kind.finditer(text):
        offset = text.count("\n", 0, block.start("code"))
        code = textwrap.dedent(block["code"])
        run_block(code, page.relative_to(ROOT).as_posix(), offset, namespace)
