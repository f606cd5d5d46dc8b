"""Tables and verdicts from the results of `solvers`, for the terminal, the docs and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from common import ROOT, fill, markdown_table, processor, replace

PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results" / "solvers.json"
BEGIN, END = "<!-- begin: benchmarks/solvers.py -->", "<!-- end: benchmarks/solvers.py -->"

#: (method, smallest m, largest m, target speed-up).
TARGETS = (
    *((name, 10, 10**9, 10.0) for name in ("MGDA", "CAGrad", "Nash-MTL", "FairGrad", "PCGrad")),
    ("UPGrad", 10, 10, 4.0),
    ("UPGrad", 32, 32, 10.0),
    ("UPGrad", 128, 128, 50.0),
)


class Cell(Protocol):
    """The fields of `measure.Cell` that the report needs."""

    method: str
    m: int
    family: str
    ours_us: float
    theirs_us: float
    ratio: float
    spread: float
    ours_error32: float | None
    theirs_error32: float | None
    ours_error64: float | None
    theirs_error64: float | None
    ours_cosine: float
    theirs_cosine: float


HEADINGS = (
    "method",
    "m",
    "ours, us",
    "TorchJD, us",
    "times faster",
    "error",
    "TorchJD",
    "error, float64",
    "TorchJD",
    "worst cosine",
    "TorchJD",
)


def _row(cell: Cell) -> list[str]:
    errors = (cell.ours_error32, cell.theirs_error32, cell.ours_error64, cell.theirs_error64)
    return [
        cell.method,
        str(cell.m),
        _number(cell.ours_us),
        _number(cell.theirs_us),
        _factor(cell.ratio),
        *("random" if error is None else f"{error:.0e}" for error in errors),
        _cosine(cell.ours_cosine),
        _cosine(cell.theirs_cosine),
    ]


def _number(us: float) -> str:
    return f"{us:,.0f}" if us >= 99.5 else f"{us:.1f}"


def _factor(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 19.5 else f"{ratio:.1f}"


def _cosine(value: float) -> str:
    return "0" if abs(value) < 5e-7 else f"{value:.0e}" if abs(value) < 5e-3 else f"{value:.2f}"


def _families(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.family for cell in cells))


def _by_method(cells: Iterable[Cell]) -> list[Cell]:
    cells = list(cells)
    order = list(dict.fromkeys(cell.method for cell in cells))
    return sorted(cells, key=lambda cell: (order.index(cell.method), cell.m))


def console(cells: Sequence[Cell]) -> str:
    """Return one aligned table per family."""
    lines: list[str] = [machine()]
    for family in _families(cells):
        rows = [list(HEADINGS), *(_row(cell) for cell in _by_method(c for c in cells if c.family == family))]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
        lines += ["", f"Rows: {family}"]
        lines += [
            "  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
    noise = sorted(cell.spread for cell in cells)
    lines += [
        "",
        f"Noise: interquartile range of our times, median over the cells {noise[len(noise) // 2]:.0%}",
    ]
    return "\n".join(lines)


def verdicts(cells: Sequence[Cell]) -> list[tuple[str, bool, str]]:
    """Return each target, whether it is met, and the cell that comes closest to missing it."""
    found = []
    for name, low, high, factor in TARGETS:
        members = [cell for cell in cells if cell.method == name and low <= cell.m <= high]
        if members:
            where = f"m = {low}" if low == high else f"m >= {low}"
            found.append((f"{name} at least {factor:g} times faster at {where}", *_verdict(members, factor)))
    for what, members in (("slower nowhere at m = 10", [c for c in cells if c.m == 10]), ("slower nowhere", cells)):
        if members:
            found.append((what, *_verdict(members, 1.0)))
    return found


def _verdict(members: Sequence[Cell], factor: float) -> tuple[bool, str]:
    missed = [cell for cell in members if cell.ratio < factor]
    shown = missed or [min(members, key=lambda cell: cell.ratio)]
    listed = "; ".join(f"{c.method} m = {c.m} {c.family} {c.ratio:.2f}" for c in sorted(shown, key=lambda c: c.ratio))
    return not missed, listed if missed else f"least: {listed}"


def targets(cells: Sequence[Cell]) -> str:
    """Return the last section of the printed report."""
    lines = ["", "Targets"]
    lines += [f"  {'met   ' if met else 'MISSED'}  {what} ({cell})" for what, met, cell in verdicts(cells)]
    return "\n".join(lines)


def machine() -> str:
    """Return the processor and the versions as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "torchjd"))
    return f"{processor()}, one of {os.cpu_count()} threads; Python {platform.python_version()}, {packages}"


def markdown(cells: Sequence[Cell]) -> str:
    """Return the text between the markers of the page."""
    sizes = sorted({cell.m for cell in cells})
    lines = [f"Measured on: {machine()}.", "", "### How many times faster", ""]
    rows = []
    methods = list(dict.fromkeys(cell.method for cell in cells))
    at = {(cell.method, cell.family, cell.m): cell for cell in cells}
    for method in methods:
        rows += [
            [method, f, *(_factor(at[method, f, m].ratio) if (method, f, m) in at else "-" for m in sizes)]
            for f in _families(cells)
        ]
    lines += markdown_table(["method", "rows", *(f"m = {m}" for m in sizes)], rows, names=2)
    for family in _families(cells):
        lines += ["", f"### Time and accuracy, {family} rows", ""]
        lines += markdown_table(HEADINGS, (_row(c) for c in _by_method(c for c in cells if c.family == family)))
    lines += ["", "### Targets", ""]
    lines += markdown_table(
        ["target", "met", "smallest ratio"],
        ([what, "yes" if met else "no", cell.removeprefix("least: ")] for what, met, cell in verdicts(cells)),
        names=3,
    )
    return "\n".join(lines)


def write(cells: Sequence[Cell], raw: list[dict[str, Any]]) -> list[Path]:
    """Write the raw results and update the tables on the page."""
    replace(RESULTS, json.dumps({"machine": machine(), "cells": raw}, indent=1) + "\n")
    fill(PAGE, markdown(cells), BEGIN, END)
    return [RESULTS.relative_to(ROOT), PAGE.relative_to(ROOT)]
