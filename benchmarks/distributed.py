"""Compare the time, bytes and memory of a step on several processes with ordinary training and with sending J.

    python benchmarks/distributed.py             # two processes on this machine; about ten minutes
    python benchmarks/distributed.py --quick     # small models only; writes no files
    python benchmarks/distributed.py --render    # regenerate the tables from saved results

All processes run on one machine and communicate over its loopback, with torch's gloo and one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import ROOT, processor, progress, replace
from distributed_report import render
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg
from paretograd.distributed import Traffic

RESULTS = ROOT / "benchmarks" / "results" / "distributed.json"
OBJECTIVES, SIZES = (2, 10, 50), (1_000_000, 10_000_000)
LAYERS, BATCH = 4, 16


def make_model(n: int, m: int) -> nn.Sequential:
    """Return a perceptron with about n parameters, all shared by all m outputs."""
    width = round((n / LAYERS) ** 0.5)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, m))


def losses_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - 1.0).square().mean(dim=0)


def reduced_jacobian(losses: Tensor, model: nn.Module) -> None:
    """Average the whole Jacobian over the processes, on each of them."""
    params = list(model.parameters())
    rows = torch.vmap(lambda seed: torch.autograd.grad([losses], params, [seed], retain_graph=True))(
        torch.eye(len(losses))
    )
    J = torch.cat([block.flatten(1) for block in rows], dim=1)
    del rows
    dist.all_reduce(J)
    J /= dist.get_world_size()
    direction = pg.UPGrad()(J)
    start = 0
    for param in params:
        param.grad = direction[start : start + param.numel()].reshape(param.shape)
        start += param.numel()


def two_passes(losses: Tensor, _: nn.Module) -> None:
    """Compute weights from the Gramian, then run a backward pass of the weighted sum, which DDP averages."""
    weights = pg.UPGrad().weights(pg.gramian(losses))
    (losses * weights.to(losses)).sum().backward()


def one_by_one(losses: Tensor, _: nn.Module) -> None:
    """Run one ordinary backward pass per objective."""
    for k in range(len(losses)):
        losses[k].backward(retain_graph=k < len(losses) - 1)


def ours(losses: Tensor, _: nn.Module) -> None:
    pg.backward(losses, pg.UPGrad())


def plain(losses: Tensor, _: nn.Module) -> None:
    losses.sum().backward()


def replicas(n: int, m: int) -> nn.Module:
    return DistributedDataParallel(make_model(n, m))


def shards(n: int, m: int) -> nn.Module:
    model = make_model(n, m)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


METHODS: dict[str, tuple[Callable[[int, int], nn.Module], Callable[[Tensor, nn.Module], None]]] = {
    "DDP, plain sum": (replicas, plain),
    "DDP, paretograd": (replicas, ours),
    "DDP, Gramian and a weighted pass": (replicas, two_passes),
    "DDP, all-reduce of J": (replicas, reduced_jacobian),
    "FSDP2, plain sum": (shards, plain),
    "FSDP2, one plain pass per objective": (shards, one_by_one),
    "FSDP2, paretograd": (shards, ours),
}


def loopback() -> int:
    """Return the bytes sent over this machine's loopback so far, by all programs."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next((int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:")), 0)


def peak_of(step: Callable[[], None]) -> float | None:
    """Return the increase of the resident memory within a step in MiB, or None if the kernel does not report it."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def read(key: str) -> float:
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(key))

    try:
        clear.write_text("5")
        before = read("VmRSS")
        step()
        return read("VmHWM") - before
    except (OSError, StopIteration):
        step()
        return None


def measure(name: str, n: int, m: int, repetitions: int, rank: int) -> dict[str, Any]:
    build, method = METHODS[name]
    model = build(n, m)
    x = torch.randn(BATCH, next(model.parameters()).shape[-1], generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        for param in model.parameters():
            param.grad = None
        method(losses_of(model, x), model)

    step()
    step()
    with Traffic() as traffic:
        step()
    for param in model.parameters():
        param.grad = None
    dist.barrier()
    memory = peak_of(step)
    times, seen, worked = [], loopback(), time.process_time()
    for _ in range(repetitions):
        dist.barrier()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    worked = time.process_time() - worked
    dist.barrier()
    wire = (loopback() - seen) / repetitions / dist.get_world_size()
    return {
        "method": name,
        "m": m,
        "n": sum(param.numel() for param in make_model(n, m).parameters()),
        "median_ms": 1e3 * statistics.median(times),
        "best_ms": 1e3 * min(times),
        "processor_ms": 1e3 * worked / repetitions,
        "payload": traffic.payload,
        "sent": traffic.sent,
        "loopback": wire,
        "extra_mib": memory,
    }


def work(rank: int, size: int, folder: str, cases: list[tuple[str, int, int]], repetitions: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    found, begin = [], time.perf_counter()
    for number, (name, n, m) in enumerate(cases):
        count = max(2, repetitions // 3) if n * m > 10**8 else repetitions
        found.append(measure(name, n, m, count, rank))
        if rank == 0:
            progress(number + 1, len(cases), f"{name}, m = {m}", time.perf_counter() - begin)
            replace(Path(folder) / "found.json", json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that exits normally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small models only; writes no files")
    parser.add_argument("--render", action="store_true", help="regenerate the tables from saved results")
    args = parser.parse_args()
    if args.render:
        print(render(json.loads(RESULTS.read_text(encoding="utf-8")), write=True))
        return
    sizes, counts = ((100_000,), (2, 3)) if args.quick else (SIZES, OBJECTIVES)
    cases = [(name, n, m) for n in sizes for m in counts for name in METHODS]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (args.processes, folder, cases, args.repetitions), nprocs=args.processes)
        rows = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    print(file=sys.stderr)
    results = {
        "machine": f"{processor()}; Python {sys.version.split()[0]}, torch {torch.__version__}, gloo",
        "processes": args.processes,
        "batch": BATCH,
        "load": [load, os.getloadavg()[0]],
        "rows": rows,
    }
    if not args.quick:
        replace(RESULTS, json.dumps(results, indent=1) + "\n")
    print(render(results, write=not args.quick))


if __name__ == "__main__":
    main()
