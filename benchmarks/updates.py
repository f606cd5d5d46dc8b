"""Compare the time of training steps with Adam: plain, in the metric of Adam, watched, and without conflicts.

    python benchmarks/updates.py --device cpu      # the MLP with ten losses: two minutes
    python benchmarks/updates.py --device cuda     # BERT-base with four losses; needs transformers
    python benchmarks/updates.py --render          # updates the table in docs/guide/adam.md

A step is all between the losses and the changed parameters: backward passes, UPGrad, and Adam. The forward pass is not
timed. All methods train copies of the same model on the same data, in turns. The overhead of `Unconflicting` may be one
plain backward pass (of the sum of all losses) and 15% of the plain step. Where no update conflicts, it only compares it
with the gradients; so its cost with reversed momentum is shown, too, with the share of losses that conflict.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import ROOT, fill, markdown_table, processor, progress, replace
from engine_cases import CASES
from engine_measure import seconds
from engine_methods import FIRST_STEPS
from engine_models import Problem

import paretograd as pg

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "guide" / "adam.md"

MODELS = {"cpu": "mlp", "cuda": "bert"}

#: Rate of Adam.
RATE = 1e-4

PLAIN, METRIC, WATCHED, OURS, WORST, PASS = (
    "`backward` and Adam",
    "`backward(metric=...)` and Adam",
    "`of_update` at each step",
    "`Unconflicting`",
    "the same with reversed momentum",
    "one plain backward pass",
)

Make = Callable[[Problem], Callable[[list[torch.Tensor]], None]]


def adam(problem: Problem) -> torch.optim.Adam:
    return torch.optim.Adam([param for param in problem.model.parameters() if param.requires_grad], lr=RATE)


def plain(problem: Problem) -> Callable[[list[torch.Tensor]], None]:
    optimizer = adam(problem)

    def step(losses: list[torch.Tensor]) -> None:
        pg.backward(losses, pg.UPGrad())
        optimizer.step()

    return step


def in_metric(problem: Problem) -> Callable[[list[torch.Tensor]], None]:
    optimizer = adam(problem)

    def step(losses: list[torch.Tensor]) -> None:
        pg.backward(losses, pg.UPGrad(), metric=optimizer)
        optimizer.step()

    return step


def watched(problem: Problem) -> Callable[[list[torch.Tensor]], None]:
    optimizer = adam(problem)

    def step(losses: list[torch.Tensor]) -> None:
        with pg.backward(losses, pg.UPGrad(), keep_rows=True).of_update():
            optimizer.step()

    return step


class Unconflicting:
    """Steps with the wrapper, and the shares of the losses with which Adam's own updates conflict."""

    def __init__(self, problem: Problem, backwards: bool) -> None:
        self.optimizer, self.backwards = pg.Unconflicting(adam(problem), pg.UPGrad()), backwards
        self.conflicts: list[float] = []

    def __call__(self, losses: list[torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        self.optimizer.backward(losses)
        self.optimizer.step()
        self.conflicts.append(len(self.optimizer.last.proposed) / len(losses))

    def prepare(self) -> None:
        """Reverse the momentum, so that the update conflicts with most gradients."""
        for param, state in self.optimizer.state.items() if self.backwards else ():
            state["exp_avg"].copy_(param.grad.sign()).mul_(-10.0 * state["exp_avg_sq"].sqrt())


def one_pass(problem: Problem) -> Callable[[list[torch.Tensor]], None]:
    return lambda losses: torch.stack(losses).sum().backward()


METHODS: dict[str, Make] = {
    PLAIN: plain,
    METRIC: in_metric,
    WATCHED: watched,
    OURS: partial(Unconflicting, backwards=False),
    WORST: partial(Unconflicting, backwards=True),
    PASS: one_pass,
}


def measure(device: str, precision: str, repeats: int) -> dict[str, Any]:
    """Return the median milliseconds of each method, and the share of updates that were projected."""
    case = CASES[device][MODELS[device]]
    problem = case.build().in_precision(precision)
    copies = {name: problem.copy() for name in METHODS}
    steps = {name: make(copies[name]) for name, make in METHODS.items()}
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for done in range(FIRST_STEPS + repeats):
        progress(done, FIRST_STEPS + repeats, f"{case.name} in {precision}", 0.0)
        for name, step in steps.items():
            if isinstance(step, Unconflicting):
                step.prepare()
            copies[name].clear()
            losses = copies[name].losses()
            spent = seconds(lambda step=step, losses=losses: step(losses), device)
            if done >= FIRST_STEPS:
                times[name].append(1e3 * spent)
    found = {name: statistics.median(each) for name, each in times.items()}
    conflicts = {name: step.conflicts[FIRST_STEPS:] for name, step in steps.items() if isinstance(step, Unconflicting)}
    return {
        "model": f"{case.name}, {case.detail}",
        "losses": len(problem.losses()),
        "precision": precision,
        "milliseconds": found,
        "conflicts": {name: statistics.mean(shares) for name, shares in conflicts.items()},
        "overhead": found[OURS] - found[PLAIN],
        "allowed": found[PASS] + 0.15 * found[PLAIN],
    }


def table(results: list[dict[str, Any]]) -> list[str]:
    """Return a column for each model in each precision."""
    columns = [
        [
            f"{found['model']}, {found['losses']} losses, {found['precision']}",
            *(f"{found['milliseconds'][name]:.1f}" if name in found["milliseconds"] else "-" for name in METHODS),
            *(f"{found[key]:.1f}" for key in ("overhead", "allowed")),
            " and ".join(f"{share:.0%}" for share in found["conflicts"].values()),
        ]
        for part in results
        for found in part["parts"]
    ]
    names = ["", *METHODS, "overhead", "allowed", "conflicts"]
    heads, *rows = [list(row) for row in zip(names, *columns, strict=True)]
    return markdown_table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(MODELS), default="cpu")
    parser.add_argument("--precision", default="float32", help="precisions, separated by commas")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--render", action="store_true", help="only update the page")
    arguments = parser.parse_args()
    if not arguments.render:
        device = arguments.device
        name = torch.cuda.get_device_name() if device == "cuda" else processor()
        parts = [measure(device, precision, arguments.repeats) for precision in arguments.precision.split(",")]
        found = {"machine": f"{name}, torch {torch.__version__}", "parts": parts}
        replace(arguments.out / f"updates-{device}.json", json.dumps(found, indent=1) + "\n")
        print("\n" + "\n".join(table([found])))
        return
    saved = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("updates-*.json"))]
    text = "\n".join(f"{'- ' * (len(saved) > 1)}{part['machine']}" for part in saved)
    fill(PAGE, "\n".join([*table(saved), "", "Milliseconds, medians. Machines:", "", text]))


if __name__ == "__main__":
    main()
