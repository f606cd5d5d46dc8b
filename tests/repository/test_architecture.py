"""docs/architecture.md: its files exist, its calls run in them, and its picture shows the layers of pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import FrameType

import paretograd as pg

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PACKAGE = ROOT / "src" / "paretograd"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```\n")
#: A path has a slash or a suffix; `report.html` and the like are what a study writes.
PATH = re.compile(r"`([\w-][\w./-]*(?:/|\.(?:py|md|toml|svg)))`")


def journeys() -> list[tuple[str, list[str]]]:
    """Return the Python block of each journey that has one, and the files it names."""
    sections = PAGE.split("## Four journeys")[1].split("\n## ")[0].split("\n### ")[1:]
    pairs = [(BLOCK.search(section), PATH.findall(BLOCK.sub("", section))) for section in sections]
    return [(block[1], [path for path in paths if path.endswith(".py")]) for block, paths in pairs if block]


def visited(code: str, namespace: dict[str, object]) -> set[str]:
    """Run the code; return the files of the package in which a function is called."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        exec(compile(code, "architecture.md", "exec"), namespace)
    finally:
        sys.setprofile(before)
    home = Path(pg.__file__).parent
    return {Path(file).relative_to(home).as_posix() for file in files if Path(file).is_relative_to(home)}


def test_every_path_exists():
    paths = PATH.findall(BLOCK.sub("", PAGE))
    assert len(paths) > 50
    assert [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())] == []


def test_journeys_pass_through_their_files():
    namespace: dict[str, object] = {}
    found = journeys()
    assert len(found) == 3
    for code, paths in found:
        files = visited(code, namespace)
        assert [path for path in paths if path not in files] == []


def test_the_picture_shows_the_declared_layers():
    """`python docs/make_figures.py` draws it again."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    picture = (ROOT / "docs" / "assets" / "layers.svg").read_text(encoding="utf-8")
    assert re.findall(r'id="layer-(\w+)"', picture) == layers
    assert "(assets/layers.svg)" in PAGE


def test_recipes_exist():
    headings = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    recipes = re.findall(r"\*(Recipe: [^*]+)\*", PAGE)
    assert recipes
    assert [recipe for recipe in recipes if f"## {recipe}" not in headings] == []
