"""Compare the time, memory and accuracy of whole steps with UPGrad, from losses to ``.grad``, with TorchJD.

    python benchmarks/engine.py --device cpu     # about twenty minutes
    python benchmarks/engine.py --device cuda    # larger models in float32 and bfloat16, about ten minutes
    python benchmarks/engine.py --device cuda --models bert,vit --precision bfloat16
    python benchmarks/engine.py --render         # updates docs/engine-benchmark.md from saved results

Each part of the benchmark, such as a model in one precision, is merged into the saved results when it is done, so that
several commands fill one file. TorchJD, transformers and peft are optional: without them, their rows or models are
left out. docs/engine-benchmark.md says what is measured, and how.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import processor, replace
from engine_cases import CASES
from engine_measure import LEAST_REPEATS, combining, correctness, measure, resident_memory
from engine_methods import MISSING, methods
from engine_models import PRECISIONS
from engine_report import CHECKS, COMBINE, FORMAT, RESULTS, console, part_key, read, render


def machine(device: str, with_torchjd: bool) -> str:
    """Describe the device and the versions of the packages that take part."""
    name = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}" if device == "cuda" else processor()
    threads = f"; {torch.get_num_threads()} of {os.cpu_count()} threads" if device == "cpu" else ""
    others = ("torchjd", "transformers", "peft") if with_torchjd else ("transformers", "peft")
    packages = ["torch", *(package for package in others if find_spec(package))]
    return f"{name}{threads}; Python {platform.python_version()}, {', '.join(f'{p} {_version(p)}' for p in packages)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # on the path, but not installed
        return "of unknown version"


def merge(path: Path, device: str, key: str, part: dict[str, Any]) -> None:
    """Add a part to the results in the file, or replace it there."""
    results = read(path) or {"format": FORMAT, "device": device, "parts": {}}
    results["parts"][key] = part
    replace(path, json.dumps(results, indent=1) + "\n")


def run(arguments: argparse.Namespace, parts: list[tuple[str, str | None]], path: Path) -> dict[str, Any] | None:
    """Measure these parts; return all results in the file, or None if there are none."""
    with_torchjd = MISSING is None and not arguments.without_torchjd
    for name, precision in parts:
        key = part_key(name, precision)
        print(key, file=sys.stderr)
        load = os.getloadavg()[0]
        if name == CHECKS:
            part = correctness(arguments.device)
        elif name == COMBINE:
            part = combining(with_torchjd, arguments.repeats)
        else:
            try:
                problem = CASES[arguments.device][name].build()
            except Exception as error:  # noqa: BLE001
                print(f"{key} is left out: it cannot be built ({type(error).__name__}: {error})", file=sys.stderr)
                continue
            given = (problem, precision, with_torchjd, arguments.repeats, arguments.seconds)
            part = measure(arguments.device, name, *given)
            del problem, given  # they occupy the device
        part |= {"machine": machine(arguments.device, with_torchjd), "load": [load, os.getloadavg()[0]]}
        merge(path, arguments.device, key, part)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    return read(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    names = ", ".join([*CASES["cuda"], CHECKS, COMBINE])
    parser.add_argument("--models", help=f"separated by commas: {names} (default all)")
    parser.add_argument("--precision", choices=list(PRECISIONS), help="default: both on a GPU, float32 on the CPU")
    parser.add_argument("--repeats", type=int, default=21, help="timed steps per method (default 21)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help=f"limit of all timed steps of a model, if it leaves {LEAST_REPEATS} per method (default 20)",
    )
    parser.add_argument("--threads", type=int, default=2, help="number of torch threads on the CPU (default 2)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: this repository)")
    parser.add_argument("--without-torchjd", action="store_true", help="omit the rows of TorchJD")
    parser.add_argument("--render", action="store_true", help="measure nothing, update the tables on the page")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)  # used by `cpu_memory`
    arguments = parser.parse_args()
    if arguments.render:
        return render()
    warnings.simplefilter("ignore")  # batched backward passes warn about slow operations
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32 for every method
    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        model, label = arguments.memory_of
        problem = CASES["cpu"][model].build().in_precision(arguments.precision)
        return print(resident_memory(problem, methods(problem, MISSING is None)[label](problem)))
    if MISSING and not arguments.without_torchjd:
        print(f"TorchJD cannot be imported ({MISSING}); continuing without it", file=sys.stderr)
    known = [*CASES[arguments.device], *([CHECKS, COMBINE] if arguments.device == "cuda" else [])]
    names = arguments.models.split(",") if arguments.models else known
    if unknown := set(names) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))} for {arguments.device}; there are {', '.join(known)}")
    every = list(PRECISIONS) if arguments.device == "cuda" else ["float32"]
    precisions = [arguments.precision] if arguments.precision else every
    parts: list[tuple[str, str | None]] = []
    for name in names:
        parts += [(name, None)] if name in (CHECKS, COMBINE) else [(name, precision) for precision in precisions]
    path = (arguments.out or RESULTS) / f"engine-{arguments.device}.json"
    if results := run(arguments, parts, path):
        print(console(results))
    print(f"wrote {path}", file=sys.stderr)
    return None if arguments.out else render()


if __name__ == "__main__":
    main()
