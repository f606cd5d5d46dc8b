"""Compare rules by their own class with the same rules by `pg.Subproblem`, in up to three ways.

    python benchmarks/subproblem.py                # about a minute; updates the table in docs/generality.md
    python benchmarks/subproblem.py --only MGDA    # prints only

Time: processor time of ``weights(G)`` on one thread for a float64 Gramian. Blocks of calls of each way and of the
rule's own class alternate on each matrix; ratios are those of adjacent blocks. Difference: the largest relative
difference of the direction ``J.T w`` from that of the rule's own class, over the matrices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import report
from common import ROOT, fill, markdown_table, processor, progress, replace, use_one_thread

if TYPE_CHECKING:
    from subproblem_cases import Case

PAGE = ROOT / "docs" / "generality.md"
RESULTS = ROOT / "benchmarks" / "results" / "subproblem.json"
#: Number of objectives, and number of matrices.
SIZES = {3: 8, 10: 6, 32: 4}
WAYS = ("family", "torch", "cvxpy")
HEADINGS = ("rule", "m", "own class, us", *(f"{way}, times" for way in WAYS), *(f"{way}, difference" for way in WAYS))


@dataclass(frozen=True)
class Cell:
    """Result for one rule, way and m: microseconds, time ratio, and largest relative difference of the directions."""

    rule: str
    way: str
    m: int
    own_us: float
    us: float
    ratio: float
    difference: float
    matrices: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rules to run, separated by commas; writes no files")
    parser.add_argument("--seconds", type=float, default=0.5, help="timing budget of a cell (default 0.5)")
    arguments = parser.parse_args()
    use_one_thread()  # before numpy and torch are imported

    import torch
    from subproblem_cases import CASES

    torch.set_num_threads(1)
    wanted = None if arguments.only is None else arguments.only.lower().split(",")
    chosen = [case for case in CASES if wanted is None or case.name.lower() in wanted]
    jobs = [(case, m, way) for case in chosen for m in SIZES for way in case.ways()]
    cells = []
    started = perf_counter()
    for done, (case, m, way) in enumerate(jobs):
        progress(done, len(jobs), f"{case.name}, m = {m}, {way}", perf_counter() - started)
        cells.append(measure(case, m, way, arguments.seconds))
    progress(len(jobs), len(jobs), "done", perf_counter() - started)
    print(file=sys.stderr)
    print(machine())
    print(console(cells))
    if wanted is None:
        for path in write(cells):
            print(f"wrote {path}", file=sys.stderr)


def measure(case: Case, m: int, way: str, budget: float) -> Cell:
    """Compare one way with the rule's own class."""
    from measure import _race
    from subproblem_cases import jacobian

    own, other = case.dedicated, case.ways()[way](m)
    matrices = [jacobian(m, seed) for seed in range(SIZES[m])]
    difference = 0.0  # first, because it also warms up both
    for J in matrices:
        d = J.T @ own.weights(J @ J.T)
        difference = max(difference, float((J.T @ other.weights(J @ J.T) - d).norm() / d.norm()))
    times = _race(lambda J, G: own.weights(G), lambda J, G: other.weights(G), matrices, budget)
    own_us, us = (statistics.median(statistics.median(t) for t in side) for side in times)
    pairs = (zip(*pair, strict=True) for pair in zip(*times, strict=True))
    ratio = statistics.median(statistics.median(b / a for a, b in pair) for pair in pairs)
    return Cell(case.name, way, m, own_us, us, ratio, difference, len(matrices))


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """Return one row per rule and m."""
    at = {(cell.rule, cell.m, cell.way): cell for cell in cells}
    found = []
    for rule, m in dict.fromkeys((cell.rule, cell.m) for cell in cells):
        ways = [at.get((rule, m, way)) for way in WAYS]
        own_us = statistics.median(cell.own_us for cell in ways if cell is not None)
        times = ["" if cell is None else report._factor(cell.ratio) for cell in ways]
        differences = ["" if cell is None else f"{cell.difference:.0e}" if cell.difference else "0" for cell in ways]
        found.append([rule, str(m), f"{own_us:,.0f}", *times, *differences])
    return found


def console(cells: Sequence[Cell]) -> str:
    """Return an aligned table."""
    lines = [list(HEADINGS), *rows(cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def machine() -> str:
    """Return the processor and the versions as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "cvxpy", "clarabel"))
    return f"{processor()}, one thread; Python {'.'.join(map(str, sys.version_info[:3]))}, {packages}"


def write(cells: Sequence[Cell]) -> list[Path]:
    """Write the raw results and update the table on the page."""
    table = "\n".join(markdown_table(HEADINGS, rows(cells)))
    fill(PAGE, f"Measured on: {machine()}.\n\n{table}")
    replace(RESULTS, json.dumps({"machine": machine(), "cells": [asdict(cell) for cell in cells]}, indent=1) + "\n")
    return [PAGE.relative_to(ROOT), RESULTS.relative_to(ROOT)]


if __name__ == "__main__":
    main()
