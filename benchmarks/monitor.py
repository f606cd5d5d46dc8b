"""Measure what `pg.Monitor` adds to training steps, on the CPU or a GPU.

    python benchmarks/monitor.py                   # models of the engine benchmark, two minutes
    python benchmarks/monitor.py --device cuda     # with a captured step
    python benchmarks/monitor.py --render          # updates the table in docs/guide/watch.md

A step is a whole one: forward pass, backward passes, UPGrad and SGD. Blocks of steps with and without a monitor take
turns on copies of a model, so that both see the same machine. The overhead is that of the median pair of blocks, with
the quartiles: of the time of the processor on the CPU, where other programs may run, and of the time that passes on a
GPU. *recording* is the time that the monitor itself has measured. Once, the monitor keeps to its default budget; once,
it records every step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from common import ROOT, fill, markdown_table, processor, progress, replace, use_one_thread

use_one_thread()

import torch  # noqa: E402
from engine_models import Problem, mlp, resnet, transformer  # noqa: E402

import paretograd as pg  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "guide" / "watch.md"
BLOCKS = 31
#: Seconds of a block.
LONG = 0.2

MODELS: dict[str, dict[str, Callable[[str], Problem]]] = {
    "cpu": {
        "small MLP, width 32": lambda device: mlp(32, 32, device),
        "MLP, width 256": lambda device: mlp(256, 64, device),
        "transformer, 2 layers": lambda device: transformer(64, 2, 8, 16, device),
        "ResNet-18": lambda device: resnet(4, 32, device),
    },
    "cuda": {
        "MLP, width 256": lambda device: mlp(256, 64, device),
        "transformer, 4 layers": lambda device: transformer(256, 4, 32, 64, device),
        "ResNet-18": lambda device: resnet(64, 32, device),
    },
}


def step_of(problem: Problem, monitor: pg.Monitor | None, captured: bool) -> Callable[[], None]:
    """Return a training step."""
    params = [param for param in problem.model.parameters() if param.requires_grad]
    optimizer, rule = torch.optim.SGD(params, lr=1e-4), pg.UPGrad()
    if captured:
        losses_of = lambda *inputs: problem.forward(*inputs)[0]  # noqa: E731
        run = pg.capture(losses_of, rule, problem.model, optimizer=optimizer)

        def taken() -> None:
            found = run(*problem.inputs)
            if monitor is not None:
                monitor(found)

        return taken

    def plain() -> None:
        optimizer.zero_grad()
        losses = problem.losses()
        found = pg.backward(losses, rule)
        optimizer.step()
        if monitor is not None:
            monitor(found, losses)

    return plain


def block(step: Callable[[], None], count: int, device: str) -> tuple[float, float]:
    """Return the seconds of one step, the mean of some: those that pass, and those of the processor."""
    started, worked = perf_counter(), process_time()
    for _ in range(count):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (perf_counter() - started) / count, (process_time() - worked) / count


def measure(name: str, device: str, budget: float | None, captured: bool, blocks: int) -> dict[str, Any]:
    """Return the times of steps with and without a monitor."""
    problem = MODELS[device][name](device)
    with tempfile.TemporaryDirectory() as folder, pg.Monitor(folder, budget=budget) as monitor:
        steps = [step_of(problem.copy(), each, captured) for each in (None, monitor)]
        for step in steps:
            block(step, 8, device)
        count = max(4, round(LONG / block(steps[0], 8, device)[0]))
        spent, seen = monitor.spent, monitor.steps
        times: list[list[tuple[float, float]]] = [[], []]
        for done in range(blocks):
            progress(done, blocks, name, 0.0)
            for each, step in zip(times, steps, strict=True):
                each.append(block(step, count, device))
        seen = monitor.steps - seen
        own = (monitor.spent - spent) / seen
    clock = 0 if device == "cuda" else 1
    ratios = [100.0 * (b[clock] / a[clock] - 1.0) for a, b in zip(*times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "model": name + (", captured" if captured else ""),
        "losses": len(problem.losses()),
        "budget": budget,
        "milliseconds": 1e3 * statistics.median(each[clock] for each in times[0]),
        "recording_percent": 100.0 * own / statistics.mean(each[0] for each in times[1]),
        "overhead_percent": [low, middle, high],
    }


def table(parts: list[dict[str, Any]]) -> list[str]:
    headings = ["model", "budget", "losses", "step, ms", "recording, %", "overhead, % (quartiles)"]
    rows = [
        [
            found["model"],
            "none: every step" if found["budget"] is None else f"{found['budget']:.0%}",
            str(found["losses"]),
            f"{found['milliseconds']:.2f}",
            f"{found['recording_percent']:.2f}",
            "{1:.1f} ({0:.1f} to {2:.1f})".format(*found["overhead_percent"]),
        ]
        for found in parts
    ]
    return markdown_table(headings, rows, names=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(MODELS), default="cpu")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--render", action="store_true", help="only update the page")
    arguments = parser.parse_args()
    if not arguments.render:
        device = arguments.device
        parts = [
            measure(name, device, budget, captured, arguments.blocks)
            for name in MODELS[device]
            for captured in ((False, True) if device == "cuda" else (False,))
            for budget in (0.01, None)
        ]
        machine = torch.cuda.get_device_name() if device == "cuda" else processor()
        found = {"machine": f"{machine}, torch {torch.__version__}", "parts": parts}
        replace(arguments.out / f"monitor-{device}.json", json.dumps(found, indent=1) + "\n")
        print("\n" + "\n".join(table(parts)))
        return
    saved = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("monitor-*.json"))]
    fill(PAGE, "\n\n".join(f"{part['machine']}:\n\n" + "\n".join(table(part["parts"])) for part in saved))


if __name__ == "__main__":
    main()
