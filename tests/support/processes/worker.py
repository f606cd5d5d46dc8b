"""One process of a test: runs the cases for its number of processes, and writes what went wrong.

Run: python worker.py RANK SIZE RENDEZVOUS RESULT [CASE ...]
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from support.processes import (  # noqa: F401
    accumulation,
    compiled,
    data_parallel,
    failures,
    hooks,
    objectives,
    recipes,
    row_rules,
    scalarized,
    sharded,
    updates,
)
from support.processes.common import CASES, DEVICE, SIZES

#: Long enough for a busy machine, short enough for a test of what hangs.
PATIENCE = datetime.timedelta(seconds=90)


def run(name: str, rank: int, size: int) -> list[str]:
    """What is wrong in a case, as lines."""
    wrong = []
    try:
        for comparison in CASES[name](rank, size):
            got, want = comparison.got.double(), comparison.want.double()
            if got.shape != want.shape:
                wrong.append(f"{comparison.name}: shape {tuple(got.shape)}, not {tuple(want.shape)}")
                continue
            error = float((got - want).abs().max()) if got.numel() else 0.0
            allowed = comparison.tolerance * max(1.0, float(want.abs().max()) if want.numel() else 1.0)
            if not error <= allowed:
                wrong.append(f"{comparison.name}: off by {error:.3g}, allowed {allowed:.3g}")
    except Exception:  # noqa: BLE001
        wrong.append(traceback.format_exc())
    return wrong


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    faulthandler.enable()  # a crash inside of torch says where it was
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*(barrier|deprecated).*")
    torch.set_num_threads(1)
    torch.set_default_device(DEVICE)
    backend: str | None = "gloo"
    if DEVICE == "cuda":
        backend = os.environ.get("PARETOGRAD_TEST_BACKEND", "nccl")
        torch.cuda.set_device(rank % torch.cuda.device_count())
        if size > torch.cuda.device_count():  # NCCL wants a GPU for each process of a host; so each is a host
            os.environ.update({"NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo"})
    if size == 4:
        backend = None  # without a name, torch takes one for each kind of device
    dist.init_process_group(backend, init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size, timeout=PATIENCE)
    found = {}
    for name in sys.argv[5:] or [name for name in CASES if size in SIZES[name]]:
        begin = time.perf_counter()
        wrong = run(name, rank, size)
        found[name] = {"wrong": wrong, "seconds": time.perf_counter() - begin}
        Path(sys.argv[4]).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way on a busy machine


if __name__ == "__main__":
    main()
