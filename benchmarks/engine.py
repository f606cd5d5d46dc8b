"""Compare the time, memory and accuracy of whole steps with UPGrad, from losses to ``.grad``, with TorchJD.

    python benchmarks/engine.py --device cpu     # about seven minutes
    python benchmarks/engine.py --device cuda    # larger models, and a Jacobian of ten rows of 1e8 numbers
    python benchmarks/engine.py --render         # updates docs/engine-benchmark.md from saved results

Time: the forward and backward pass; the methods alternate in a new random order each time. Memory: the peak during a
step in excess of the memory before it, without gradients. On the CPU each method runs in its own process, whose peak
resident memory is read from the kernel (Linux only). Accuracy: the direction of the shared parameters against that of
the naive loop in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import processor, replace
from engine_methods import MISSING, PEER, PLAIN, Step, TorchJDUPGrad, methods, naive, ours
from engine_models import MODELS, TASKS, Problem, checks
from engine_report import COMBINE, RESULTS, TARGETS, console, render
from torch import Tensor

import paretograd as pg

#: Settings of glibc's allocator that return freed blocks to the system at once, so that none are reused unseen.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}

#: Number of processes whose median is reported for the default allocator, whose numbers vary by a third.
PROCESSES = 5


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def attempt(label: str, call: Callable[[], Any], failed: dict[str, str]) -> Any:
    """Return the result of the call, or None if it fails, which is recorded."""
    if label in failed:
        return None
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        text = str(error).strip().splitlines() or [""]
        failed[label] = f"{type(error).__name__}: {text[0]}"
        print(f"\n{label} failed: {failed[label]}", file=sys.stderr)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the next method may need this memory
    return None


def race(
    steps: dict[str, Step], before: Callable[[str], None], device: str, repeats: int, failed: dict[str, str]
) -> dict[str, list[float]]:
    """Return the milliseconds of alternating steps in random order; garbage is collected between the steps."""
    times: dict[str, list[float]] = {label: [] for label in steps}
    order, generator = list(steps), random.Random(0)

    def timed(label: str) -> float:
        before(label)
        synchronize(device)
        started = perf_counter()
        steps[label]()
        synchronize(device)
        return 1e3 * (perf_counter() - started)

    gc.disable()
    for done in range(repeats):
        print(f"\rround {done + 1} of {repeats} ", end="", file=sys.stderr, flush=True)
        generator.shuffle(order)
        for label in order:
            gc.collect()
            if (milliseconds := attempt(label, lambda label=label: timed(label), failed)) is not None:
                times[label].append(milliseconds)
    gc.enable()
    print(file=sys.stderr)
    return times


def cuda_memory(step: Step) -> float:
    """Return the peak MiB in excess of what was allocated before."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def resident_memory(problem: Problem, step: Step) -> float:
    """Return the peak resident MiB in excess of the memory before the step, the second of the process."""
    step()
    problem.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    held = _status("VmRSS")
    step()
    return (_status("VmHWM") - held) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def cpu_memory(model: str, label: str, settings: dict[str, str]) -> float:
    """Run `resident_memory` in a separate process with these settings of glibc's allocator."""
    if not Path("/proc/self/clear_refs").exists():
        raise OSError("peak memory on the CPU is read from /proc, which Linux alone has")
    command = [sys.executable, __file__, "--memory-of", model, label, "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return float(done.stdout)


def relative(answer: Tensor, exact: Tensor) -> float:
    return float((answer.double() - exact.double()).norm() / exact.double().norm())


def exact_direction(problem: Problem) -> Tensor:
    own = problem.double()
    naive(own)()
    return own.direction()


def rows(times: dict[str, list[float]], memory: dict[str, Any], errors: dict[str, Any], failed: dict[str, str]) -> Any:
    """Return one record per method; missing values of failed methods are None."""
    return [
        {
            "method": label,
            "median_ms": statistics.median(found) if found and label not in failed else None,
            "best_ms": min(found) if found and label not in failed else None,
            "extra_mib": memory.get(label),
            "error": errors.get(label),
            "failure": failed.get(label),
        }
        for label, found in times.items()
    ]


def measure(device: str, model: str, chosen: dict[str, Callable[[Problem], Step]], repeats: int) -> dict[str, Any]:
    """Measure all methods on one model."""
    description, build = MODELS[device][model]
    original = build()
    exact = exact_direction(original)
    failed: dict[str, str] = {}
    problems = {label: original.copy() for label in chosen}
    steps = {label: attempt(label, lambda m=m, label=label: m(problems[label]), failed) for label, m in chosen.items()}
    steps = {label: step or (lambda: None) for label, step in steps.items()}
    errors: dict[str, float | None] = {}
    for label in (label for _ in range(2) for label in steps):  # the second round warms up compiled code
        problems[label].clear()
        attempt(label, steps[label], failed)
        if label not in failed and label != PLAIN:
            errors[label] = relative(problems[label].direction(), exact)
        problems[label].clear()
    memory: dict[str, float | None] = {}
    untuned: dict[str, float | None] = {}
    unread = dict(failed)  # unreadable memory is not a failure of the method
    for label, step in steps.items():
        if device == "cuda":
            memory[label] = attempt(label, lambda step=step: cuda_memory(step), unread)
            problems[label].clear()
        else:
            memory[label] = attempt(label, lambda label=label: cpu_memory(model, label, GIVE_BACK), unread)
            found = [attempt(label, lambda x=label: cpu_memory(model, x, {}), unread) for _ in range(PROCESSES)]
            untuned[label] = None if None in found else statistics.median(found)
    times = race(steps, lambda label: problems[label].clear(), device, repeats, failed)
    parameters = sum(param.numel() for param in original.shared)
    records = rows(times, memory, errors, failed)
    for record in records if untuned else ():
        record["untuned_mib"] = untuned[record["method"]]
    return {"name": description, "shared": parameters, "methods": records}


def combining(device: str, with_torchjd: bool, repeats: int, n: int = 10**8) -> dict[str, Any]:
    """Measure the computation of the direction from a given Jacobian."""
    generator = torch.Generator(device).manual_seed(0)
    J = torch.randn(TASKS, n, device=device, generator=generator)
    for k in range(TASKS):
        J[k] += 0.5 * (-1) ** k  # two groups at cosine -0.2
    parts = range(0, n, 10**7)
    G = sum(J[:, start : start + 10**7].double() @ J[:, start : start + 10**7].double().T for start in parts)
    exact_weights = pg.UPGrad().weights(G)
    exact = torch.cat([exact_weights @ J[:, start : start + 10**7].double() for start in parts])
    given = torch.full((TASKS,), 1 / TASKS, device=device)
    found: dict[str, Tensor] = {}

    def kept(label: str, rule: Callable[[Tensor], Tensor]) -> Step:
        def step() -> None:
            found[label] = rule(J)

        return step

    reading = "two passes of J.sum()"
    steps: dict[str, Step] = {reading: lambda: (J.sum(), J.sum())}
    steps["J @ J.T, then w @ J for a given w"] = lambda: (J @ J.T, given @ J)
    if with_torchjd:
        steps[f"{PEER} UPGrad()(J)"] = kept(f"{PEER} UPGrad()(J)", TorchJDUPGrad())
    steps["paretograd UPGrad()(J)"] = kept("paretograd UPGrad()(J)", pg.UPGrad())
    failed: dict[str, str] = {}
    memory, errors = {}, {}
    for label, step in steps.items():
        attempt(label, step, failed)
        if label in found:
            errors[label] = relative(found.pop(label), exact)
        if device == "cuda":
            memory[label] = attempt(label, lambda step=step: cuda_memory(step), failed)
        found.clear()
    times = race(steps, lambda label: found.clear(), device, repeats, failed)
    shown = f"Combining a given Jacobian, {TASKS} rows of {n:.0e} float32 numbers"
    return {"name": shown, "reading": reading, "methods": rows(times, memory, errors, failed)}


def correctness(device: str) -> list[dict[str, Any]]:
    """Compare every engine with the naive loop in the same precision, and the naive loop with float64."""
    results = []
    for name, original in checks(device).items():
        record: dict[str, Any] = {"name": name}
        failed: dict[str, str] = {}
        wanted, taken = _checked_step(original.copy(), naive)
        record["naive against float64"] = relative(wanted, exact_direction(original))
        record["naive, step taken"] = taken
        for engine in ("auto", "gramian", "jacobian"):
            answer = attempt(f"{name}, {engine}", lambda p=original, e=engine: _checked_step(p.copy(), ours(e)), failed)
            record[engine] = None if answer is None else relative(answer[0], wanted)
            record[f"{engine}, step taken"] = None if answer is None else answer[1]
        record["failures"] = failed
        results.append(record)
    return results


def _checked_step(problem: Problem, make: Callable[[Problem], Step]) -> tuple[Tensor, bool]:
    """Return the unscaled direction, and whether the scaler let the optimizer step."""
    make(problem)()
    if problem.scaler is None:
        return problem.direction(), True
    optimizer = torch.optim.SGD([*problem.shared, *problem.heads.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler(problem.targets.device.type)
    scaler.load_state_dict(problem.scaler.state_dict())
    scaler.scale(torch.zeros((), device=problem.targets.device))  # the scaler creates its tensors on first use
    before = scaler.get_scale()
    scaler.unscale_(optimizer)
    direction = problem.direction()
    scaler.step(optimizer)
    scaler.update()
    return direction, scaler.get_scale() >= before


def machine(device: str, with_torchjd: bool) -> str:
    name = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}" if device == "cuda" else processor()
    threads = f"; {torch.get_num_threads()} of {os.cpu_count()} threads" if device == "cpu" else ""
    packages = ["torch", *(["torchjd"] if with_torchjd else [])]
    return f"{name}{threads}; Python {platform.python_version()}, {', '.join(f'{p} {_version(p)}' for p in packages)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # on the path, but not installed
        return "of unknown version"


def run(device: str, names: list[str], with_torchjd: bool, repeats: int, path: Path) -> dict[str, Any]:
    """Run everything; results are written after each part, so an interrupted run keeps them."""
    results: dict[str, Any] = {"device": device, "machine": machine(device, with_torchjd), "repeats": repeats}
    results |= {"load": [os.getloadavg()[0]] * 2, "models": []}
    if device == "cuda":
        print("correctness", file=sys.stderr)
        results["correctness"] = correctness(device)
    for name in names:
        print(name, file=sys.stderr)
        if name == COMBINE:
            results["combining"] = combining(device, with_torchjd, repeats)
        else:
            results["models"].append(measure(device, name, methods(with_torchjd), repeats))
        gc.collect()
        results["load"][1] = os.getloadavg()[0]
        replace(path, json.dumps(results, indent=1) + "\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(TARGETS), default="cpu")
    parser.add_argument("--models", help=f"separated by commas: {', '.join(MODELS['cuda'])}, {COMBINE} (default all)")
    parser.add_argument("--repeats", type=int, default=21, help="timed steps per method (default 21)")
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
        problem = MODELS["cpu"][model][1]()
        return print(resident_memory(problem, methods(MISSING is None)[label](problem)))
    if MISSING and not arguments.without_torchjd:
        print(f"TorchJD cannot be imported ({MISSING}); continuing without it", file=sys.stderr)
    known = [*MODELS[arguments.device], *([COMBINE] if arguments.device == "cuda" else [])]
    names = arguments.models.split(",") if arguments.models else known
    if unknown := set(names) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))} for {arguments.device}; there are {', '.join(known)}")
    with_torchjd = MISSING is None and not arguments.without_torchjd
    folder = arguments.out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"engine-{arguments.device}.json"
    print(console(run(arguments.device, names, with_torchjd, arguments.repeats, path)))
    print(f"wrote {path}", file=sys.stderr)
    return None if arguments.out else render()


if __name__ == "__main__":
    main()
