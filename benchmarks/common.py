"""Shared by the benchmarks: threads, progress, a description of the machine, tables, and generated parts of pages."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

Result = TypeVar("Result")

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"


def use_one_thread() -> None:
    """Limit numpy and torch to one thread. Call this before importing them."""
    for pool in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{pool}_NUM_THREADS"] = "1"


def progress(done: int, total: int, what: str, elapsed: float) -> None:
    """Update the progress line on standard error."""
    filled = 30 * done // total
    bar = "#" * filled + "." * (30 - filled)
    print(f"\r[{bar}] {done}/{total} {elapsed:4.0f} s  {what:<40}", end="", file=sys.stderr, flush=True)


def in_parallel(
    function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], titles: Sequence[str], processes: int
) -> Iterator[tuple[int, Result]]:
    """Yield the number of each job with its result, as they finish, and show the progress.

    If a job fails, the others still run. Its error is raised at the end.
    """
    started, failed = perf_counter(), None
    progress(0, len(jobs), "", 0.0)
    for done, (number, result) in enumerate(_finished(function, jobs, processes), start=1):
        progress(done, len(jobs), titles[number], perf_counter() - started)
        if isinstance(result, Exception):
            failed = result
        else:
            yield number, result
    print(file=sys.stderr)
    if failed is not None:
        raise failed


def _finished(
    function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[int, Result | Exception]]:
    if processes == 1:
        for number, job in enumerate(jobs):
            try:
                yield number, function(*job)
            except Exception as error:  # noqa: BLE001  raised by the caller
                yield number, error
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(function, *job): number for number, job in enumerate(jobs)}
        for future in as_completed(waiting):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield waiting[future], future.result() if error is None else error


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> list[str]:
    """Return the lines of a table whose first ``names`` columns are left-aligned."""
    rule = ["---"] * names + ["---:"] * (len(headings) - names)
    return [f"| {' | '.join(row)} |" for row in (headings, rule, *rows)]


def replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def fill(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between the markers of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page.name} must contain the lines '{begin}' and '{end}', between which the tables go")
    replace(page, f"{before}{begin}\n\n{text}\n\n{end}{after}")
