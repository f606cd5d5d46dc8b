"""Compare the time and accuracy from Gramian to weights with TorchJD, for every method that both libraries have.

    python benchmarks/solvers.py            # under six minutes; updates the tables in docs/benchmarks.md
    python benchmarks/solvers.py --quick    # half a minute, prints only

Time: processor time of this process on one thread, so that other programs have little effect, with a float32
Gramian for both. Blocks of calls of the two libraries alternate on each matrix. The time of a matrix is its median
over all rounds, that of a cell the median over its matrices; ratios are those of adjacent blocks. Accuracy: each
direction ``J.T w`` against that of `reference` in float64, for a float32 and a float64 Gramian.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import asdict
from time import perf_counter

from common import progress, use_one_thread

#: Number of objectives, and number of matrices per family.
SIZES = {2: 8, 3: 8, 10: 8, 32: 5, 128: 3}
QUICK_SIZES = {2: 3, 10: 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and matrices; writes no files")
    parser.add_argument("--only", help="methods to run, separated by commas; writes no files")
    parser.add_argument("--seconds", type=float, default=0.5, help="timing budget of a cell (default 0.5)")
    arguments = parser.parse_args()
    use_one_thread()  # before numpy and torch are imported

    import report
    import torch
    from families import FAMILIES
    from measure import measure
    from methods import METHODS

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")  # conic solvers warn about inaccurate solutions; the table shows them
    wanted = None if arguments.only is None else arguments.only.lower().split(",")
    chosen = [method for method in METHODS if wanted is None or method.name.lower() in wanted]
    sizes, budget = (QUICK_SIZES, 0.15) if arguments.quick else (SIZES, arguments.seconds)
    jobs = [(method, m, family) for m in sizes for family in FAMILIES for method in chosen if m >= method.least]
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
