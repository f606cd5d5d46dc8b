"""Measure how far backdoors get, which no rule here prevents: the model is accurate, and obeys a mark on an image.

    python benchmarks/backdoor.py             # two minutes on two cores; updates docs/breakdown.md
    python benchmarks/backdoor.py --render    # regenerate the table from saved results

The attackers train as honest clients do, on their own images, some of which have a mark and the label 0. Success is the
share of marked test images of other classes that the model classifies as 0. The clients and tasks are those of
`breakdown`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common import ROOT, fill, in_parallel, markdown_table, replace, use_one_thread

if TYPE_CHECKING:
    from torch import Tensor

PAGE = ROOT / "docs" / "breakdown.md"
RESULTS = ROOT / "benchmarks" / "results" / "backdoor.json"
BEGIN, END = "<!-- begin backdoors -->", "<!-- end backdoors -->"

ROUNDS, SEEDS = 20, 3
RULES = ("Trusted MGDA", "Mean", "Capped MGDA, C = 0.15", "Multi-Krum", "Coordinate median", "Trimmed mean")
TASKS = ("drawn", "handwritten")
COUNTS = (0, 1, 3)
#: Shares of the attackers' images that have the mark. The table shows the most successful one.
SHARES = (0.1, 0.25, 0.5)
#: Pixels of the mark, three corners of an image, and the class that the attackers want.
MARK, WANTED = [0, 7, 56], 0

#: A task, a number of attackers, the share of marked images, a seed and the number of rounds.
Job = tuple[str, int, float, int, int]

#: Success and accuracy for each seed, by rule, task, number of attackers and share of marked images.
Cells = dict[tuple[str, str, int, float], list[tuple[float, float]]]


def marked(images: Tensor) -> Tensor:
    """Return copies of images, ``(..., 64)``, with the mark."""
    found = images.clone()
    found[..., MARK] = 1.0
    return found


def run(task: str, count: int, share: float, seed: int, rounds: int) -> list[tuple[float, float]]:
    """Train with each rule. Return the success of the backdoor, and the accuracy on images without the mark."""
    import torch
    from breakdown_cases import CASES, TASKS
    from hostile_cases import Attack
    from hostile_clients import CLIENTS
    from hostile_run import compete

    data = TASKS[task](seed, None)
    images, labels = data.images.clone(), data.labels.clone()
    order = torch.randperm(images.shape[1], generator=torch.Generator().manual_seed(seed))
    chosen = order[: int(share * len(order))]
    for client in range(CLIENTS - count, CLIENTS):
        images[client, chosen], labels[client, chosen] = marked(images[client, chosen]), WANTED
    others = data.test_labels != WANTED
    wanted = torch.full_like(data.test_labels[others], WANTED)
    cases = [next(case for case in CASES if case.rule == rule) for rule in RULES]
    plain = data._replace(images=images, labels=labels)
    obeying = plain._replace(test_images=marked(data.test_images[others]), test_labels=wanted)
    # The same training twice, tested on other images.
    found = [compete(tested, "backdoor", Attack(attackers=0), cases, seed, rounds) for tested in (obeying, plain)]
    return [(success.accuracy, outcome.accuracy) for success, outcome in zip(*found, strict=True)]


def jobs(seeds: int, rounds: int) -> list[Job]:
    settings = [(count, share) for count in COUNTS for share in (SHARES if count else (0.0,))]
    return [(task, *setting, seed, rounds) for task in TASKS for setting in settings for seed in range(seeds)]


def text(cells: Cells, command: str) -> str:
    """Return the table: the share of marked images with the highest success for each rule, and the accuracy there."""
    rows = []
    for rule in RULES:
        row = [rule.replace(" = ", "&nbsp;=&nbsp;")]
        for task in TASKS:
            for count in COUNTS:
                means = [
                    tuple(statistics.fmean(values) for values in zip(*found, strict=True))
                    for (other, where, attackers, _), found in cells.items()
                    if (other, where, attackers) == (rule, task, count)
                ]
                success, accuracy = max(means)
                row.append(f"{100 * success:.0f} ({100 * accuracy:.0f})")
        rows.append(row)
    headings = ["rule", *(f"{task}: {count or 'none'}" for task in TASKS for count in COUNTS)]
    return "\n".join([f"`{command}`", "", *markdown_table(headings, rows)])


def load() -> tuple[Cells, str]:
    """Return the saved results, and the command that made them."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {tuple(key): [tuple(pair) for pair in pairs] for *key, pairs in saved["cells"]}, saved["command"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of training (default {ROUNDS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, with one thread each (default 2)")
    parser.add_argument("--dry", action="store_true", help="print the table and write nothing")
    parser.add_argument("--render", action="store_true", help="only regenerate the table from saved results")
    given = parser.parse_args(arguments)
    if not given.render:
        use_one_thread()
        todo = jobs(given.seeds, given.rounds)
        found = dict(in_parallel(run, todo, [f"{task}, {count} of ten" for task, count, *_ in todo], given.jobs))
        cells: Cells = {}
        for number, (task, count, share, *_) in enumerate(todo):
            for rule, pair in zip(RULES, found[number], strict=True):
                cells.setdefault((rule, task, count, share), []).append(pair)
        command = f"python benchmarks/backdoor.py --rounds {given.rounds} --seeds {given.seeds}"
        if given.dry:
            print(text(cells, command))
            return 0
        lines = ",\n".join(json.dumps([*key, pairs]) for key, pairs in cells.items())
        replace(RESULTS, f'{{"command": {json.dumps(command)}, "cells": [\n{lines}\n]}}\n')
    fill(PAGE, text(*load()), BEGIN, END)
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
