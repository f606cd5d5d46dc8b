"""Measure the steps of the engine benchmark: their time, memory and accuracy."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from engine_cases import CASES
from engine_methods import CAPTURED, FLOOR, LOOP, PEER, PLAIN, Method, Step, TorchJDUPGrad, loop, methods, ours
from engine_models import TASKS, Problem, checks
from torch import Tensor

import paretograd as pg

#: Settings of glibc's allocator that return freed blocks to the system at once, so that none are reused unseen.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}

#: Number of processes whose median is reported for the default allocator, whose numbers vary by a third.
PROCESSES = 5

#: Least number of timed steps per method.
LEAST_REPEATS = 9

#: Engines of the checks.
ENGINES = ("auto", "jacobian", "batched", "gramian")


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


def seconds(step: Step, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started


def race(
    steps: dict[str, Step], before: Callable[[str], None], device: str, repeats: int, failed: dict[str, str]
) -> dict[str, list[float]]:
    """Return the milliseconds of alternating steps in random order; garbage is collected between the steps."""
    times: dict[str, list[float]] = {label: [] for label in steps}
    order, generator = list(steps), random.Random(0)
    gc.collect()
    gc.freeze()  # what exists by now is not garbage, and need not be searched before every step
    gc.disable()
    for done in range(repeats):
        print(f"\rround {done + 1} of {repeats} ", end="", file=sys.stderr, flush=True)
        generator.shuffle(order)
        for label in order:
            before(label)
            gc.collect()
            found = attempt(label, lambda label=label: seconds(steps[label], device), failed)
            if found is not None:
                times[label].append(1e3 * found)
    gc.enable()
    gc.unfreeze()
    print(file=sys.stderr)
    return times


def cuda_memory(step: Step) -> float:
    """Return the peak MiB during a step in excess of what was allocated before."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def capture_memory(make: Callable[[], Step]) -> tuple[Step, float]:
    """Return a captured step, and the MiB by which it has increased the memory that the allocator reserves."""

    def reserved() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    held = reserved()
    step = make()
    step()
    return step, (reserved() - held) / 2**20


def resident_memory(problem: Problem, step: Step) -> float:
    """Return the peak resident MiB in excess of the memory before the step, which is not the first of the process."""
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


def cpu_memory(model: str, precision: str, label: str, settings: dict[str, str]) -> float:
    """Run `resident_memory` in a separate process with these settings of glibc's allocator."""
    if not Path("/proc/self/clear_refs").exists():
        raise OSError("peak memory on the CPU is read from /proc, which Linux alone has")
    command = [sys.executable, str(Path(__file__).with_name("engine.py")), "--memory-of", model, label]
    command += ["--precision", precision, "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return float(done.stdout)


def relative(answer: Tensor, exact: Tensor) -> float:
    return float((answer.double() - exact.double()).norm() / exact.double().norm())


def direction_of(problem: Problem, make: Method = loop) -> Tensor:
    make(problem)()
    return problem.direction()


def reference(problem: Problem, exact: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return the direction with which the others are compared: the loop's in float64, or in the same precision.

    Returns also the precision, and in reduced precision the loop's own error against float32.
    """
    if problem.precision is None and exact:
        return direction_of(problem.converted(torch.float64)), {"reference": "float64"}
    found = direction_of(problem.copy())
    if problem.precision is None:
        return found, {"reference": "float32"}
    full = direction_of(problem.converted(torch.float32))
    return found, {"reference": str(problem.precision).removeprefix("torch."), "loop_error": relative(found, full)}


def rows(times: dict[str, list[float]], failed: dict[str, str], others: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one record per method; the times of failed methods are None."""
    return [
        {
            "method": label,
            "median_ms": statistics.median(found) if found and label not in failed else None,
            "best_ms": min(found) if found and label not in failed else None,
            **others[label],
            "failure": failed.get(label),
        }
        for label, found in times.items()
    ]


@dataclass
class Run:
    """One method with its own copy of the problem.

    Attributes:
        step: None if the method failed before its first step.
        seconds: time of its latest step before the timed ones.
        record: what is known besides its times.
    """

    label: str
    problem: Problem
    step: Step | None = None
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=lambda: {"extra_mib": None, "error": None, "how": None})

    @property
    def captured(self) -> bool:
        return self.label in (CAPTURED, FLOOR)

    def prepare(self, method: Method) -> None:
        if self.captured:
            self.step, self.record["extra_mib"] = capture_memory(lambda: method(self.problem))
        else:
            self.step = method(self.problem)

    def clear(self) -> None:
        if not self.captured:  # a captured step overwrites its gradients
            self.problem.clear()

    def warm_up(self, target: Tensor | None, device: str) -> None:
        """Take a step, and compare its direction with the target, if there is one."""
        results: list[object] = []
        self.clear()
        self.seconds = seconds(lambda: results.append(self.step()), device)
        if how := getattr(results[0], "how", None):
            self.record["how"] = str(how)
        if target is not None:
            self.record["error"] = relative(self.problem.direction(), target)
        self.clear()


def measure(
    device: str, model: str, built: Problem, precision: str, with_torchjd: bool, repeats: int, budget: float
) -> dict[str, Any]:
    """Measure all methods on one model; ``budget`` limits the seconds of the timed steps."""
    case = CASES[device][model]
    original = built.in_precision(precision)
    target, compared = reference(original, case.exact)
    failed: dict[str, str] = {}
    runs = []
    for label, method in methods(original, with_torchjd).items():
        runs.append(run := Run(label, original.copy()))
        attempt(label, lambda run=run, method=method: run.prepare(method), failed)
    without = {PLAIN, FLOOR} | ({LOOP} if compared["reference"] == precision else set())
    for run in (*runs, *runs):  # the second round warms up compiled code
        wanted = None if run.label in without else target
        attempt(run.label, lambda run=run, wanted=wanted: run.warm_up(wanted, device), failed)
    unread = dict(failed)  # unreadable memory is not a failure of the method
    for run in runs:
        attempt(run.label, lambda run=run: measure_memory(run, device, model, precision, case.untuned), unread)
        run.clear()
    rounds = max(LEAST_REPEATS, min(repeats, int(budget / sum(run.seconds for run in runs))))
    by_label = {run.label: run for run in runs}
    steps = {run.label: run.step for run in runs}
    times = race(steps, lambda label: by_label[label].clear(), device, rounds, failed)
    return {
        "name": case.name,
        "detail": case.detail,
        "precision": precision,
        "repeats": rounds,
        **compared,
        "losses": len(original.losses()),
        "shared": sum(param.numel() for param in original.shared),
        "methods": rows(times, failed, {run.label: run.record for run in runs}),
    }


def measure_memory(run: Run, device: str, model: str, precision: str, untuned: bool) -> None:
    """Add the memory of a step to the record; that of a captured step is known already."""
    if device == "cpu":
        run.record["extra_mib"] = cpu_memory(model, precision, run.label, GIVE_BACK)
        if untuned:
            several = [cpu_memory(model, precision, run.label, {}) for _ in range(PROCESSES)]
            run.record["untuned_mib"] = statistics.median(several)
    elif not run.captured:
        run.record["extra_mib"] = cuda_memory(run.step)


def combining(with_torchjd: bool, repeats: int, n: int = 10**8) -> dict[str, Any]:
    """Measure the computation of the direction from a given Jacobian on a GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    J = torch.randn(TASKS, n, device="cuda", generator=generator)
    for k in range(TASKS):
        J[k] += 0.5 * (-1) ** k  # two groups at cosine -0.2
    parts = range(0, n, 10**7)
    G = sum(J[:, start : start + 10**7].double() @ J[:, start : start + 10**7].double().T for start in parts)
    exact_weights = pg.UPGrad().weights(G)
    exact = torch.cat([exact_weights @ J[:, start : start + 10**7].double() for start in parts])
    given = torch.full((TASKS,), 1 / TASKS, device="cuda")
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
    others: dict[str, Any] = {}
    for label, step in steps.items():
        attempt(label, step, failed)
        error = relative(found.pop(label), exact) if label in found else None
        others[label] = {"extra_mib": attempt(label, lambda step=step: cuda_memory(step), failed), "error": error}
        found.clear()
    times = race(steps, lambda label: found.clear(), "cuda", repeats, failed)
    shown = f"Combining a given Jacobian, {TASKS} rows of {n:.0e} float32 numbers"
    return {"name": shown, "reading": reading, "repeats": repeats, "methods": rows(times, failed, others)}


def correctness(device: str) -> dict[str, Any]:
    """Compare every engine with the loop in the same precision, and the loop with float64."""
    results = []
    for name, original in checks(device).items():
        record: dict[str, Any] = {"name": name}
        failed: dict[str, str] = {}
        wanted, taken = _checked_step(original.copy(), loop)
        record["loop"] = relative(wanted, direction_of(original.converted(torch.float64)))
        record["loop, step taken"] = taken
        for engine in ENGINES:
            answer = attempt(f"{name}, {engine}", lambda p=original, e=engine: _checked_step(p.copy(), ours(e)), failed)
            record[engine] = None if answer is None else relative(answer[0], wanted)
            record[f"{engine}, step taken"] = None if answer is None else answer[1]
        results.append(record | {"failures": failed})
    return {"records": results}


def _checked_step(problem: Problem, make: Method) -> tuple[Tensor, bool]:
    """Return the unscaled direction, and whether the scaler let the optimizer step."""
    make(problem)()
    if problem.scaler is None:
        return problem.direction(), True
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(problem.device.type)
    scaler.load_state_dict(problem.scaler.state_dict())
    scaler.scale(torch.zeros((), device=problem.device))  # the scaler creates its tensors on first use
    before = scaler.get_scale()
    scaler.unscale_(optimizer)
    direction = problem.direction()
    scaler.step(optimizer)
    scaler.update()
    return direction, scaler.get_scale() >= before
