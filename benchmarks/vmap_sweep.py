"""Compare batched backward passes with plain ones on every differentiable operator of torch's own test suite.

    python benchmarks/vmap_sweep.py                            # all operators: one minute
    python benchmarks/vmap_sweep.py --operators cdist,roll     # prints only
    python benchmarks/vmap_sweep.py --device cuda

The engine "batched" differentiates all losses in one pass under `torch.vmap`. If an operator's backward pass cannot be
batched, the pass fails, and the engine notices. If its batching rule is wrong, so are the rows. This sweep finds both
kinds of operators in the installed torch.

`tests/support/batching.py` compares the passes, in another process. If an operator crashes or takes too long, the sweep
reports it and continues with the next one. The findings are saved in `benchmarks/results/vmap-<device>.json`, with the
nodes of graphs that were right in every sample. torch's test suite needs expecttest, which is in the extra `test`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from time import perf_counter

import torch
from common import ROOT, markdown_table, processor, progress, replace

sys.path.insert(0, str(ROOT / "tests"))
from support.batching import WAYS, Result, Worker


def table(findings: Sequence[Result]) -> str:
    """Return the operators with findings as a table, those with wrong rows first."""
    headings = ["operator", "first finding", "samples"]
    headings += [f"{kind}, {way}" for kind in ("wrong", "failed") for way in WAYS]
    rows = []
    for result in sorted(findings, key=lambda found: -max(tally.wrong for tally in found.ways.values())):
        tallies = result.ways.values()
        first = result.stopped or next(tally.first for tally in tallies if tally.first)
        counts = [*(tally.wrong for tally in tallies), *(tally.failed for tally in tallies)]
        rows.append([result.operator, first.replace("|", "/")[:110], str(result.samples), *map(str, counts)])
    return "\n".join(markdown_table(headings, rows, names=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", help="operators, separated by commas; all by default; writes no file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="device (default cpu)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of an operator (default 120)")
    arguments = parser.parse_args()
    start = perf_counter()
    worker = Worker(arguments.device, arguments.seconds)
    chosen = arguments.operators.split(",") if arguments.operators else worker.names
    unknown = sorted(set(chosen) - set(worker.names))
    if unknown:
        parser.error(f"unknown operators: {', '.join(unknown)}")
    numbers = [number for number, name in enumerate(worker.names) if name in chosen]
    results = []
    for done, number in enumerate(numbers):
        progress(done, len(numbers), worker.names[number], perf_counter() - start)
        results.append(worker.result(number))
    worker.stop()
    print(file=sys.stderr)

    findings = [result for result in results if result.stopped or any(tally.first for tally in result.ways.values())]
    suspects = set().union(*(result.suspects for result in results))
    summary = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else processor(),
        "operators": sum(result.samples > 0 for result in results),
        "samples": sum(result.samples for result in results),
        "skipped": sum(result.skipped for result in results),
        "findings": [result.as_dict() for result in findings],
        "suspects": sorted(suspects),
        "right": sorted(set().union(*(result.right for result in results)) - suspects),
    }
    if arguments.operators is None:
        results_file = ROOT / "benchmarks" / "results" / f"vmap-{arguments.device}.json"
        replace(results_file, json.dumps(summary, indent=1) + "\n")
    print(table(findings))
    print("\n{operators} operators, {samples} samples, {skipped} skipped; torch {torch}".format(**summary))
    for way in WAYS:
        wrong, failed = (sum(getattr(result.ways[way], kind) for result in results) for kind in ("wrong", "failed"))
        print(f"{way}: {wrong} samples with wrong rows, {failed} failures")


if __name__ == "__main__":
    main()
