"""docs/from-torchjd.md: its blocks run, those of TorchJD included, and its tables name every public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from support import ROOT
from support.blocks import ANY_BLOCK, BLOCK, run_page

PAGE = ROOT / "docs" / "from-torchjd.md"
TEXT = PAGE.read_text(encoding="utf-8")
MODULES = ("autojac", "autogram", "aggregation", "scalarization", "linalg")


def test_all_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(ANY_BLOCK.findall(TEXT)) > len(BLOCK.findall(TEXT)) > 4
    run_page(PAGE, ANY_BLOCK)


@pytest.mark.parametrize("module", ["torchjd", *(f"torchjd.{name}" for name in MODULES)])
def test_every_public_name_is_in_its_table(module: str) -> None:
    section = re.search(rf"(?ms)^### {re.escape(module)}\n(.*?)(?=^#|\Z)", TEXT)
    assert section is not None
    cells = [line.split("|")[1] for line in section[1].splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(importlib.import_module(module).__all__)


def test_no_module_was_forgotten() -> None:
    package = Path(importlib.import_module("torchjd").__path__[0])
    public = {path.name for path in package.iterdir() if (path / "__init__.py").exists() and path.name[0] != "_"}
    assert public == set(MODULES)
