"""Measure the weights that are computed on the GPU: time, accuracy against the host, and the share that is trusted.

    python benchmarks/device_weights.py                          # needs CUDA; ten minutes, most of them compilation
    python benchmarks/device_weights.py --sizes 2,10 --rules upgrad,mgda --out device.json

Time: from a float64 Gramian on the GPU to weights on the GPU, by CUDA events over many calls on conflicting gradients.
"captured" replays a CUDA graph of the call; "host" is `rule.weights`, with its copies from and to the GPU. Accuracy:
the largest error of a trusted direction relative to the host's, over the families of the tests. A direction shorter
than 2e-7 of the longest gradient is rounding and counts as zero. Each family has matrices with m + 4 parameters and, if
its definition allows, with m / 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import ROOT, markdown_table, progress, replace
from torch import Tensor

import paretograd as pg
from paretograd.device.weights import TRUSTED, device_weights

SIZES = (2, 4, 10, 32, 64, 128)
EPS = torch.finfo(torch.float64).eps

#: A direction this much shorter than the longest gradient is below what a Gramian resolves.
NEGLIGIBLE = 2e-7

RULES: dict[str, Callable[[], pg.Aggregator]] = {
    "mean": pg.Mean,
    "upgrad": pg.UPGrad,
    "upgrad*": lambda: pg.UPGrad().normalized(),
    "greedy-dcp": pg.GreedyDCP,
    "dualproj": pg.DualProj,
    "cagrad": pg.CAGrad,
    "imtl-g": pg.IMTLG,
    "config": pg.ConFIG,
    "pcgrad": pg.PCGrad,
    "pcgrad+": pg.PCGradPlus,
    "mgda": pg.MGDA,
    "capped-mgda": lambda: pg.CappedMGDA(eps=0.5),
    "chi-square-mgda": pg.ChiSquareMGDA,
    "clipped-mgda": lambda: pg.ClippedMGDA(cap=0.3),
    "entropic-mgda": pg.EntropicMGDA,
    "spectral-mgda": pg.SpectralMGDA,
    "nash-mtl": pg.NashMTL,
    "fairgrad": pg.FairGrad,
    "pivrg": pg.PIVRG,
    "power-mean(.5)": lambda: pg.PowerMean(0.5),
}


def microseconds(call: Callable[[], object], seconds: float = 0.1) -> float:
    """Return the time of a call on the GPU, or that of its launches if these take longer."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = max(5, int(seconds / (perf_counter() - start)))
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    torch.cuda.synchronize()
    return 1e3 * first.elapsed_time(last) / repeats


def times(rule: pg.Aggregator, J: Tensor) -> dict[str, float]:
    G = pg.gramian(J).cuda()
    plain = microseconds(lambda: device_weights(rule, G, EPS))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device_weights(rule, G, EPS)
    return {
        "plain_us": plain,
        "captured_us": microseconds(graph.replay),
        "host_us": microseconds(lambda: rule.weights(G)),
    }


def accuracy(rule: pg.Aggregator, matrices: dict[str, list[Tensor]]) -> dict[str, Any]:
    """Return the share of trusted answers and the largest error among them, with the families of the exceptions."""
    total = trusted = 0
    worst, where, left = 0.0, "", set()
    for family, members in matrices.items():
        for J in members:
            G = pg.gramian(J)
            found = device_weights(rule, G.cuda(), EPS)
            assert found is not None
            total += 1
            if not float(found.residual) <= TRUSTED:
                left.add(family)
                continue
            trusted += 1
            d, wanted = found.weights.cpu() @ J, rule.weights(G) @ J
            if max(d.norm(), wanted.norm()) > NEGLIGIBLE * J.norm(dim=1).max():
                error = float((d - wanted).norm() / wanted.norm())
                if not error <= worst:
                    worst, where = error, family
    return {"trusted": trusted / total, "error": worst, "error_in": where, "left_to_the_host": sorted(left)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of objectives")
    parser.add_argument("--rules", default=",".join(RULES), help="rules, separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=2, help="matrices of each family and shape (default 2)")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))

    from support.families import FAMILIES

    warnings.simplefilter("ignore")  # of the host, about inaccurate solutions next to stationary points
    rows: list[dict[str, Any]] = []
    started = perf_counter()
    sizes, names = [int(m) for m in arguments.sizes.split(",")], arguments.rules.split(",")
    for m in sizes:
        matrices = {
            name: [family.make(m, n, s) for n in (m + 4, m // 2) if family.fits(m, n) for s in range(arguments.seeds)]
            for name, family in FAMILIES.items()
        }
        for name in names:
            progress(len(rows), len(sizes) * len(names), f"{name}, m = {m}", perf_counter() - started)
            rule = RULES[name]()
            timed = times(rule, FAMILIES["conflicting"].make(m, m + 4, 0))
            rows.append({"rule": name, "m": m} | timed | accuracy(rule, matrices))
    print(file=sys.stderr)
    shown = [
        [
            row["rule"],
            *(str(row["m"]), *(f"{row[key]:.0f}" for key in ("plain_us", "captured_us", "host_us"))),
            *(f"{row['error']:.0e}", row["error_in"], f"{row['trusted']:.0%}", ", ".join(row["left_to_the_host"])),
        ]
        for row in rows
    ]
    headings = ["rule", "m", "us", "captured", "host", "error", "in", "trusted", "left to the host"]
    print("\n".join(markdown_table(headings, shown)))
    if arguments.out is not None:
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        replace(arguments.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
