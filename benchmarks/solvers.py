"""Gramian to weights: time and accuracy of every method that paretograd and TorchJD share, in one run.

    python benchmarks/solvers.py            # under six minutes; rewrites the tables in docs/benchmarks.md
    python benchmarks/solvers.py --quick    # half a minute, prints only

Time: processor time of this process on one thread (so that other programs on the machine count little), a
float32 Gramian for both, blocks of calls of the two libraries in turn on each matrix; a matrix counts with
its median over all rounds, a cell with the median over its matrices; ratios are those of adjacent blocks.
Accuracy: each direction ``J.T w`` against the float64 one of `reference`, for a float32 and for a float64
Gramian.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import asdict
from time import perf_counter

from common import progress, use_one_thread

#: Number of objectives, and how many matrices of each family.
SIZES = {2: 8, 3: 8, 10: 8, 32: 5, 128: 3}
QUICK_SIZES = {2: 3, 10: 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and matrices; writes no files")
    parser.add_argument("--only", help="methods to run, separated by commas; writes no files")
    parser.add_argument("--seconds", type=float, default=0.5, help="timing budget of a cell (default 0.5)")
    arguments = parser.parse_args()
    use_one_thread()  # so the imports of numpy and torch come after it

    import report
    import torch
    from families import FAMILIES
    from measure import measure
    from methods import METHODS

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")  # conic solvers warn of inaccurate answers; the table shows them
    wanted = None if arguments.only is None else arguments.only.lower().split(",")
    chosen = [method for method in METHODS if wanted is None or method.name.lower() in wanted]
    sizes, budget = (QUICK_SIZES, 0.15) if arguments.quick else (SIZES, arguments.seconds)
    jobs = [(method, m, family) for m in sizes for family in FAMILIES for method in chosen]
    cells = []
    started = perf_counter()
    for done, (method, m, family) in enumerate(jobs):
        progress(done, len(jobs), f"{method.name}, m = {m}, {family}", perf_counter() - started)
        matrices = [FAMILIES[family](m, seed) for seed in range(sizes[m])]
        cells.append(measure(method, m, family, matrices, budget))
    progress(len(jobs), len(jobs), "done", perf_counter() - started)
    print(file=sys.stderr)
    print(report.console(cells))
    print(report.targets(cells))
    if not arguments.quick and wanted is None:
        for path in report.write(cells, [asdict(cell) for cell in cells]):
            print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
