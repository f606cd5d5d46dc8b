"""Make a notebook of each tutorial: `python docs/make_notebooks.py`, and with `--pictures` their pictures, too.

The Markdown in docs/tutorials is the source. A Python block becomes a cell of code, and what lies between two blocks a
cell of text. The pictures are left out, because the code draws them.
"""

import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "tutorials"
ASSETS = Path(__file__).parent / "assets"
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")
PICTURE = re.compile(r"(?m)^!\[.*\]\(\.\./assets/tutorial-.*\)\n\n?")
LINK = re.compile(r" \[The same as a notebook\]\(.*\)\.|\n\[The same as a notebook\]\(.*\)\.")


def notebook(page: str) -> str:
    """Return the notebook of a page, as JSON."""
    text = LINK.sub("", PICTURE.sub("", page))
    cells = []
    for number, part in enumerate(BLOCK.split(text)):
        if not part.strip():
            continue
        cell = {"cell_type": "code" if number % 2 else "markdown", "id": f"cell-{len(cells)}", "metadata": {}}
        if number % 2:
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell | {"source": part.strip().splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    made = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def draw(page: Path) -> None:
    """Run the code of a page in an empty folder, and keep its pictures."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "paretograd"
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("page.py").write_text("".join(BLOCK.findall(page.read_text(encoding="utf-8"))), encoding="utf-8")
        runpy.run_path("page.py")
        for picture in Path().glob("tutorial-*"):
            (ASSETS / picture.name).write_bytes(picture.read_bytes())
        os.chdir(before)


def main() -> None:
    for page in sorted(FOLDER.glob("*.md")):
        page.with_suffix(".ipynb").write_text(notebook(page.read_text(encoding="utf-8")), encoding="utf-8")
        if "--pictures" in sys.argv:
            draw(page)


if __name__ == "__main__":
    main()
