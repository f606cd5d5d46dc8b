"""The pages for users of other libraries: every name of ours on them exists, and is called as it may be."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from support import ROOT

import paretograd as pg

PAGES = [ROOT / "docs" / name for name in ("from-torchjd.md", "from-libmtl.md")]
NAME = re.compile(r"\bpg\.([A-Za-z_]\w*)")
CALL = re.compile(r"`(pg\.\w+\([^`]*\))`")


def names() -> set[str]:
    """Return all names of ours on the pages."""
    return {name for page in PAGES for name in NAME.findall(page.read_text(encoding="utf-8"))}


def test_every_name_exists() -> None:
    assert {name for name in names() if not hasattr(pg, name)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_calls_have_arguments_that_exist(page) -> None:
    calls = [
        call
        for code in CALL.findall(page.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(code, mode="eval"))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    ]
    assert len(calls) > 10
    for call in calls:
        keywords = {keyword.arg: None for keyword in call.keywords}
        inspect.signature(getattr(pg, call.func.attr)).bind(*call.args, **keywords)
