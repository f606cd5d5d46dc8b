"""Compare the steps per second of `pg.descend` on VLMOP2 with the same loop around TorchJD's aggregators.

    python benchmarks/descent.py                 # about a minute; updates the table in docs/descent-benchmark.md
    python benchmarks/descent.py --only MGDA     # prints only

Measures processor time on one thread, in float32 as in the paper's protocol, with lr 0.001 and the protocol's starts.
Blocks of steps of the two libraries alternate; the ratio is the median over pairs of adjacent blocks. Our loop records
losses, points, gamma, weights and slopes at every step and checks its stopping rules. The other loop only takes steps:
it computes the losses and the Jacobian of all seeds with one forward pass and one backward pass per objective, calls
TorchJD's aggregator on each seed's Jacobian, and updates the points. It is also timed with our closed form instead of
autograd.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from common import ROOT, fill, markdown_table, processor, progress, replace, use_one_thread

if TYPE_CHECKING:
    import paretograd as pg

PAGE = ROOT / "docs" / "descent-benchmark.md"
RESULTS = ROOT / "benchmarks" / "results" / "descent.json"
LR = 1e-3
SEEDS = (100, 24, 42, 48, 123)
#: Target ratio for one seed and for five.
TARGET = 5.0
HEADINGS = (
    "rule",
    "seeds",
    "ours, us",
    "TorchJD, us",
    "times faster",
    "with our Jacobian, us",
    "times faster",
    "ours, steps per second",
)


@dataclass(frozen=True)
class Cell:
    """Result for one rule and number of seeds: microseconds per step of one run, and ratios of adjacent blocks."""

    rule: str
    seeds: int
    ours_us: float
    theirs_us: float
    ratio: float
    closed_us: float
    closed_ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rules to run, separated by commas; writes no files")
    parser.add_argument("--seconds", type=float, default=6.0, help="timing budget of a cell (default 6)")
    arguments = parser.parse_args()
    use_one_thread()  # before numpy and torch are imported

    import torch

    torch.set_num_threads(1)
    load = [os.getloadavg()[0]] * 2
    wanted = None if arguments.only is None else arguments.only.lower().split(",")
    jobs = [(name, count) for name in rules() for count in (1, 5) if wanted is None or name.lower() in wanted]
    cells, started = [], perf_counter()
    for done, (name, count) in enumerate(jobs):
        progress(done, len(jobs), f"{name}, {count} seeds", perf_counter() - started)
        cells.append(measure(name, count, arguments.seconds))
    progress(len(jobs), len(jobs), "done", perf_counter() - started)
    load[1] = os.getloadavg()[0]
    print(file=sys.stderr)
    print(machine(load))
    print("\n".join(markdown_table(HEADINGS, map(row, cells))))
    print(verdict(cells))
    if wanted is None:
        for path in write(cells, machine(load)):
            print(f"wrote {path}", file=sys.stderr)


def rules() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Return our rules and theirs, by name."""
    import torchjd.aggregation as theirs

    import paretograd as pg

    return {
        "MGDA": lambda: (pg.MGDA(), theirs.MGDA()),
        "UPGrad": lambda: (pg.UPGrad(), theirs.UPGrad()),
        "DualProj": lambda: (pg.DualProj(), theirs.DualProj()),
        "Nash-MTL": lambda: (pg.NashMTL(), theirs.NashMTL(n_tasks=2)),
    }


def measure(name: str, count: int, budget: float) -> Cell:
    """Time alternating blocks of the three loops."""
    import paretograd as pg

    problem, (ours, theirs) = pg.problem("vlmop2", n=4), rules()[name]()
    seeds = SEEDS[:count]
    loops = [our_loop(problem, ours, seeds), plain_loop(problem, theirs, seeds, autograd=True)]
    loops.append(plain_loop(problem, theirs, seeds, autograd=False))
    steps = [max(8, round(0.08 / block(loop, 8))) for loop in loops]  # the first blocks also warm up
    times: list[list[float]] = [[] for _ in loops]
    gc.collect()
    gc.disable()
    started = perf_counter()
    while perf_counter() - started < budget or len(times[0]) < 5:
        for loop, number, kept in zip(loops, steps, times, strict=True):
            kept.append(block(loop, number))
    gc.enable()
    us = [1e6 * statistics.median(kept) / count for kept in times]
    ratios = [statistics.median(b / a for a, b in zip(times[0], kept, strict=True)) for kept in times[1:]]
    return Cell(name, count, us[0], us[1], ratios[0], us[2], ratios[1])


def block(loop: Callable[[int], None], steps: int) -> float:
    """Return the seconds per step."""
    start = process_time()
    loop(steps)
    return (process_time() - start) / steps


def our_loop(problem: pg.Problem, rule: Any, seeds: tuple[int, ...]) -> Callable[[int], None]:
    import torch

    import paretograd as pg

    def run(steps: int) -> None:
        pg.descend(problem, rule, LR, steps, seeds=seeds, stop_gamma=1e-12, stop_norm=1e-12, dtype=torch.float32)

    return run


def plain_loop(problem: pg.Problem, rule: Any, seeds: tuple[int, ...], autograd: bool) -> Callable[[int], None]:
    """Run the loop of a TorchJD user: all seeds in one batch, except for the aggregator, which handles one."""
    import torch

    def run(steps: int) -> None:
        points = problem.starts(seeds)
        if hasattr(rule, "reset"):
            rule.reset()
        for _ in range(steps):
            if autograd:
                points.requires_grad_()
                losses = problem.objectives(points)
                first = torch.autograd.grad(losses[:, 0].sum(), points, retain_graph=True)[0]
                J = torch.stack([first, torch.autograd.grad(losses[:, 1].sum(), points)[0]], dim=1)
            else:
                J = problem.closed_jacobian(points)[1]  # type: ignore[misc]
            with torch.no_grad():
                d = torch.stack([rule(one) for one in J]) if len(J) > 1 else rule(J[0]).unsqueeze(0)
                points = points.detach() - LR * d

    return run


def row(cell: Cell) -> list[str]:
    return [
        cell.rule,
        str(cell.seeds),
        f"{cell.ours_us:,.0f}",
        f"{cell.theirs_us:,.0f}",
        f"{cell.ratio:.1f}",
        f"{cell.closed_us:,.0f}",
        f"{cell.closed_ratio:.1f}",
        f"{1e6 / cell.ours_us:,.0f}",
    ]


def verdict(cells: list[Cell]) -> str:
    """Return a sentence on the target and on the cost of five seeds."""
    five, one = ([cell.ratio for cell in cells if cell.seeds == count] for count in (5, 1))
    costs = {cell.rule: {c.seeds: c.ours_us * c.seeds for c in cells if c.rule == cell.rule} for cell in cells}
    dearest = max(cost[5] / cost[1] for cost in costs.values())
    met = "met" if min(one + five) >= TARGET else "NOT MET"
    return (
        f"One seed: {min(one):.1f} to {max(one):.1f} times faster. Five seeds, per step of a run: {min(five):.1f} to "
        f"{max(five):.1f} times (target for both: at least {TARGET:g}, {met}). A step of five seeds costs at most "
        f"{dearest:.2f} times a step of one."
    )


def machine(load: list[float]) -> str:
    """Return the processor, the versions, and the load before and after, as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "torchjd"))
    python = ".".join(map(str, sys.version_info[:3]))
    busy = f"load average {load[0]:.1f} before and {load[1]:.1f} after on {os.cpu_count()} processors"
    return f"{processor()}, one thread; Python {python}, {packages}; {busy}"


def write(cells: list[Cell], measured_on: str) -> list[Path]:
    """Write the raw results and update the table on the page."""
    table = "\n".join(markdown_table(HEADINGS, map(row, cells)))
    fill(PAGE, f"Measured on: {measured_on}.\n\n{table}\n\n{verdict(cells)}")
    replace(RESULTS, json.dumps({"machine": measured_on, "cells": [asdict(cell) for cell in cells]}, indent=1) + "\n")
    return [PAGE.relative_to(ROOT), RESULTS.relative_to(ROOT)]


if __name__ == "__main__":
    main()
