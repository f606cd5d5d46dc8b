"""What a step of each rule costs: one network, trained by `paretograd.backward` as a user would."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from paretograd.aggregators.base import Aggregator
from paretograd.autograd.backward import backward
from paretograd.bench.protocol import Protocol, settings_of
from paretograd.bench.roster import MEAN, Rule, check_suits, draw, make
from paretograd.bench.run import reproducible
from paretograd.bench.task import Batch, Data, Task
from paretograd.bench.tasks import task_of
from paretograd.errors import InputError, ParetogradError
from paretograd.experiments.folder import versions, write_text
from paretograd.experiments.work import device_name, find_device
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.famo import FAMO

#: Steps before the first that counts: ``engine="auto"`` compares its ways in them.
_WARM_UP = 25
#: Steps that count; the median is reported.
_MEASURED = 40
#: The file with the results, in the folder of a task.
COST = "cost.json"


class Cost(NamedTuple):
    """What a step of a rule costs.

    Attributes:
        milliseconds: the median time of a step: drawing rows, forward pass, backward, and AdamW.
        mebibytes: the peak of the GPU's memory above what the data and the network need; None on a CPU.
    """

    milliseconds: float
    mebibytes: float | None


def measure_costs(
    protocol: Protocol,
    folder: str | Path,
    *,
    rules: Sequence[str] = (),
    data_dir: str | Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Cost]:
    """Measure the rules one after the other, in one process, and write ``cost.json`` after each.

    Rules that were measured before stay there, if all else is the same: device, versions, and variant of the task.

    Args:
        protocol: its task, and whether that is small or made.
        folder: of the benchmark.
        rules: only these; empty for all.
        data_dir: a folder with the data.
        device: ``auto``, ``cpu`` or ``cuda``.
        tell: is given a line for each rule.
    """
    where = find_device(device)
    task = task_of(protocol.task, small=protocol.small)
    data = (task.made() if protocol.made else task.load(data_dir)).to(where)
    path = Path(folder) / task.name / COST
    how = {"device": device_name(where), "versions": versions(), "small": protocol.small, "made": protocol.made}
    found = _kept(path, how)
    with reproducible():  # as `run_task` computes
        _cost(task, data, MEAN)  # loads code and tunes kernels, which must not count
        for name in dict.fromkeys(setting.rule for setting in settings_of(rules, ["adamw"], task)):
            try:
                found[name] = _cost(task, data, name)
            except ParetogradError as error:
                tell(f"{name}: {error}")
                continue
            memory = found[name].mebibytes
            tell(f"{name}: {found[name].milliseconds:.2f} ms" + ("" if memory is None else f", {memory:.0f} MiB"))
            content = {**how, "costs": {name: cost._asdict() for name, cost in found.items()}}
            write_text(path, json.dumps(content, indent=1).splitlines())
    return found


def read_costs(folder: Path) -> tuple[str, dict[str, Cost]]:
    """Return the device and the costs that were measured in the folder of a task; nothing if there are none."""
    how, costs = _read(folder / COST)
    return str(how.get("device", "")), costs


def _kept(path: Path, how: Mapping[str, object]) -> dict[str, Cost]:
    """Return the costs in a file if they were measured like this; files of early versions have the full task."""
    written, costs = _read(path)
    written = {"small": False, "made": False, **written}
    return costs if all(written.get(name) == value for name, value in how.items()) else {}


def _read(path: Path) -> tuple[dict[str, object], dict[str, Cost]]:
    """Return how the costs in a file were measured, and the costs; nothing if there is no file."""
    if not path.exists():
        return {}, {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        costs = {str(name): Cost(**cost) for name, cost in found.pop("costs").items()}
        return {**found, "device": str(found["device"])}, costs
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}). Remove it, and measure the costs again") from None


def _cost(task: Task, data: Data, name: str) -> Cost:
    m, device = len(task.objectives), data.train[0].device
    rule = make(draw(name, 0.5, m, np.random.default_rng(0)), m, 0)
    check_suits(rule, task)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        network = task.network()
    network.to(device)
    own = list(rule.to(device).parameters()) if isinstance(rule, Weighting) else []
    optimizer = torch.optim.AdamW([*network.parameters(), *own], lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    several = isinstance(rule, Aggregator) and "batches" in rule.needs

    def batch() -> Batch:
        with torch.no_grad():
            return task.batch(data, generator, network)

    def step() -> None:
        rows = [batch() for _ in range(2 if several else 1)]
        losses = [list(task.losses(network, part)) for part in rows]
        optimizer.zero_grad()
        backward(losses if several else losses[0], rule)  # type: ignore[arg-type]
        optimizer.step()
        if isinstance(rule, FAMO):
            with torch.no_grad():
                rule.update(list(task.losses(network, rows[0])))

    return _timed(step, device, rule)


def _timed(step: Callable[[], None], device: torch.device, rule: Rule) -> Cost:
    for _ in range(_WARM_UP):
        step()
    times, before = [], 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(_MEASURED):
        begun = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - begun))
    peak = (torch.cuda.max_memory_allocated(device) - before) / 2**20 if device.type == "cuda" else None
    return Cost(round(statistics.median(times), 4), None if peak is None else round(peak, 2))
