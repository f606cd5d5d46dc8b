"""Measure what a round costs the server of a federation: memory beyond the replies, and time, beside FedAvg.

    python benchmarks/federated_cost.py                     # ten clients, 5e6 parameters: three minutes
    python benchmarks/federated_cost.py --spooled /scratch  # 100 clients, 1e8 parameters on disk: 40 GB, four minutes
    python benchmarks/federated_cost.py --render            # updates the tables in docs/federated-cost.md

It needs Flower. Each strategy aggregates the same replies in a process of its own: messages whose arrays are bytes, as
Flower unpacks them. Memory is the largest resident size of the process during the first round, less the size before it,
in units of all replies. Time is the least of several rounds, and the processes take turns.

With ``--spooled``, the replies are `numpy.memmap` arrays in a folder, which is emptied afterwards. Memory is then the
largest anonymous memory of the process: pages of files can be dropped at any time, and the machine may have less memory
than the replies take.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import ROOT, fill, markdown_table, processor, progress, replace

RESULTS = ROOT / "benchmarks" / "results" / "federated-cost.json"
PAGE = ROOT / "docs" / "federated-cost.md"

CLIENTS, PARAMETERS, LAYERS = 10, 5_000_000, 10

#: Most rounds of a process, and seconds after which no further round begins; turns of all processes.
ROUNDS, LONGEST, TURNS = 10, 3.0, 2

FEDAVG, ALONE, WHOLE = "FedAvg of Flower", "`Server` alone, capped MGDA", "`FedPareto`, a function of all rows"

#: Rules that sort each coordinate, by a part of their names.
SORTING = ("TrimmedMean", "CoordinateMedian")

#: Most memory, in units of the replies and with them, and most time without sorting, in units of FedAvg's.
MEMORY, TIME = 1.3, 3.0


def rules() -> dict[str, Any]:
    import paretograd as pg
    from paretograd.federated import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean, TrustedMGDA

    found: dict[str, Any] = {
        "the default": TrustedMGDA(),
        "mean": pg.Mean(),
        "capped MGDA, eps = 0.67": pg.CappedMGDA(eps=0.67),
        "UPGrad": pg.UPGrad(),
        "Krum(2)": Krum(2),
        "MultiKrum(2)": MultiKrum(2),
        "TrimmedMean(2)": TrimmedMean(2),
        "CoordinateMedian()": CoordinateMedian(),
        "GeometricMedian()": GeometricMedian(),
    }
    found = {f"`FedPareto`, {name}": rule for name, rule in found.items()}
    return found | {WHOLE: lambda updates: updates.mean(dim=0)}


def names() -> list[str]:
    return [FEDAVG, *rules(), ALONE]


# ---- one process -----------------------------------------------------------------------------------------------------


def model(parameters: int) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return {f"layer{k}.weight": rng.standard_normal(parameters // LAYERS, dtype=np.float32) for k in range(LAYERS)}


def trained(start: dict[str, Any], node: int) -> dict[str, Any]:
    """A client's model after training."""
    import numpy as np

    rng = np.random.default_rng(node + 1)
    return {name: array - np.float32(0.01) * rng.standard_normal(len(array), "f4") for name, array in start.items()}


def round_of_flower(name: str, parameters: int, clients: int) -> Callable[[], object]:
    """Return a function that aggregates replies as Flower calls it."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from paretograd.federated import FedPareto

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Messages carry who made them, which Flower sets in the process of a ServerApp.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    start = model(parameters)
    grid: Any = type("Nodes", (), {"get_node_ids": lambda self: list(range(1, clients + 1))})()
    strategy = FedAvg() if name == FEDAVG else FedPareto(rules()[name])
    sent = ArrayRecord({key: Array(array) for key, array in start.items()})
    instructions = list(strategy.configure_train(1, sent, ConfigRecord(), grid))
    replies = []
    for node, instruction in enumerate(instructions):
        arrays = ArrayRecord({key: Array(array) for key, array in trained(start, node).items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10, "loss": 1.0})})
        replies.append(Message(content, reply_to=instruction))
    return lambda: strategy.aggregate_train(1, replies)


def round_alone(parameters: int, clients: int) -> Callable[[], object]:
    import paretograd as pg
    from paretograd.federated import Server

    start = model(parameters)
    replies = {node: trained(start, node) for node in range(clients)}
    server = Server(pg.CappedMGDA(eps=0.67))
    return lambda: server.step(start, replies)


def made(name: str, parameters: int, clients: int) -> Callable[[], object]:
    return round_alone(parameters, clients) if name == ALONE else round_of_flower(name, parameters, clients)


def kilobytes(what: str) -> int:
    """Return a number of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def measured(name: str, parameters: int, clients: int) -> dict[str, float]:
    """Return the memory of the first round, in units of the replies, and the least seconds of a round."""
    made(name, 1000, clients)()  # imports, and threads that start
    once = made(name, parameters, clients)
    ctypes.CDLL(None).malloc_trim(0)  # give back what was freed, so that it counts if it is used again
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest resident size so far
    before = kilobytes("VmRSS")
    times = []
    while len(times) < ROUNDS and sum(times) < LONGEST:
        begin = time.perf_counter()
        once()
        times.append(time.perf_counter() - begin)
        if len(times) == 1:
            memory = (kilobytes("VmHWM") - before) * 1024 / (4 * parameters * clients)
    return {"memory": memory, "seconds": min(times)}


# ---- replies on disk -------------------------------------------------------------------------------------------------


def spooled(folder: Path, parameters: int, clients: int) -> dict[str, float]:
    """Run one round of `Server` with capped MGDA on replies that are memory maps."""
    import numpy as np

    import paretograd as pg
    from paretograd.federated import Server

    start, replies = model(parameters), {}
    begin = time.perf_counter()
    for node in range(clients):
        progress(node, clients, "writing", time.perf_counter() - begin)
        found = {}
        for name, array in trained(start, node).items():
            path = folder / f"{node}-{name}.npy"
            np.save(path, array)
            found[name] = np.load(path, mmap_mode="r")
        replies[node] = found
    largest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.02):
            largest = max(largest, kilobytes("RssAnon"))

    ctypes.CDLL(None).malloc_trim(0)
    before, watcher = kilobytes("RssAnon"), threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    moved = Server(pg.CappedMGDA(eps=0.67)).step(start, replies).moved
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    assert moved
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "clients": clients,
        "parameters": parameters,
        "replies": 4e-9 * parameters * clients,
        "machine": 1024e-9 * total,
        "beyond": 1024e-9 * (largest - before),
        "model": 4e-9 * parameters,
        "seconds": seconds,
    }


# ---- all processes ---------------------------------------------------------------------------------------------------


def in_process(*arguments: object) -> dict[str, float]:
    """Call this script and return what it prints last."""
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, dict[str, float]]) -> list[str]:
    base = found[FEDAVG]["seconds"]
    rows = [
        [name, f"{each['memory']:.2f}", f"{1e3 * each['seconds']:.0f}", f"{each['seconds'] / base:.1f}"]
        for name, each in found.items()
    ]
    return markdown_table(["strategy", "memory beyond the replies", "milliseconds", "times FedAvg's"], rows)


def spooled_table(found: list[dict[str, float]]) -> list[str]:
    rows = [
        [
            f"{each['clients']:.0f}",
            f"{each['parameters']:.0e}".replace("+0", ""),
            *(f"{each[key]:.1f}" for key in ("replies", "model", "beyond")),
            f"{each['seconds']:.0f}",
        ]
        for each in found
    ]
    headings = ["clients", "parameters", "replies, GB", "model, GB", "memory of the round, GB", "seconds"]
    return markdown_table(headings, rows)


def broken(found: dict[str, dict[str, float]]) -> list[str]:
    """Return the strategies that take more memory or time than promised: time if they need not sort."""
    most = TIME * found[FEDAVG]["seconds"]
    blocks = {name: each for name, each in found.items() if name != WHOLE}
    heavy = [name for name, each in blocks.items() if 1.0 + each["memory"] > MEMORY]
    slow = [name for name, each in blocks.items() if each["seconds"] > most and not any(key in name for key in SORTING)]
    return sorted({*heavy, *slow})


def text(saved: dict[str, Any]) -> str:
    lines = [f"{saved['machine']}.", "", *table(saved["rounds"])] if "rounds" in saved else []
    if saved["spooled"]:
        memory = saved["spooled"][0]["machine"]
        lines += ["", f"Replies on disk, on a machine with {memory:.0f} GB of memory:", ""]
        lines += spooled_table(saved["spooled"])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, help="number of clients: 10, or 100 with --spooled")
    parser.add_argument("--parameters", type=float, help="number of parameters: 5e6, or 1e8 with --spooled")
    parser.add_argument("--spooled", type=Path, help="folder on a disk with room for the replies")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only update the page")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    large = arguments.spooled is not None
    clients = arguments.clients or (100 if large else CLIENTS)
    parameters = int(arguments.parameters or (1e8 if large else PARAMETERS))
    if arguments.one:
        print(json.dumps(measured(arguments.one, parameters, clients)))
        return
    saved = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"machine": "", "spooled": []}
    if arguments.render:
        fill(PAGE, text(saved))
        return
    if large:
        with tempfile.TemporaryDirectory(dir=arguments.spooled) as folder:
            saved["spooled"].append(spooled(Path(folder), parameters, clients))
    else:
        rounds: dict[str, dict[str, float]] = {}
        begin, todo = time.perf_counter(), [name for _ in range(TURNS) for name in names()]
        for done, name in enumerate(todo):
            progress(done, len(todo), name, time.perf_counter() - begin)
            found = in_process("--one", name, "--clients", clients, "--parameters", parameters)
            old = rounds.setdefault(name, found)
            rounds[name] = {
                "memory": max(old["memory"], found["memory"]),
                "seconds": min(old["seconds"], found["seconds"]),
            }
        versions = ", ".join(f"{package} {version(package)}" for package in ("flwr", "torch", "numpy"))
        saved["machine"] = f"{clients} clients, {parameters:,} parameters in float32; {processor()}; {versions}"
        saved["rounds"] = rounds
    replace(arguments.out, json.dumps(saved, indent=1) + "\n")
    print("\n" + text(saved))
    if not large and (missed := broken(saved["rounds"])):
        sys.exit(f"more than {MEMORY} times the memory of the replies, or {TIME:g} times FedAvg's time: {missed}")


if __name__ == "__main__":
    main()
