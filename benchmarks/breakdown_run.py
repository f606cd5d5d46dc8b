"""Federated training under attack by some number of clients, on one of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from breakdown_cases import ATTACKS, CASES, SLOW, TASKS
from hostile_cases import Attack
from hostile_run import compete


class Job(NamedTuple):
    """Rules that are trained together: on the same data, under the same attack."""

    task: str
    attack: str
    count: int
    seed: int
    rounds: int
    rules: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the job as text."""
        return f"{self.task}, {self.attack}, {self.count} of ten, seed {self.seed}"


def jobs(rules: Sequence[str], seeds: int, rounds: int, together: int) -> list[Job]:
    """Return all jobs with up to ``together`` rules each, the longest first."""
    groups = [tuple(rules[start : start + together]) for start in range(0, len(rules), together)]
    attacks = [(name, count) for name in ATTACKS for count in (1, 2, 3, 4)]
    attacks.sort(key=lambda attack: attack[0] != SLOW)
    return [
        Job(task, *attack, seed, rounds, group)
        for attack in (*attacks, ("none", 0))
        for task in TASKS
        for group in groups
        for seed in range(seeds)
    ]


def run(job: Job, digits: Path | None = None) -> list[tuple[str, float, str]]:
    """Return each rule with the accuracy of its model, and what went wrong, if anything.

    Args:
        job: what to train.
        digits: the file with the handwritten digits, if scikit-learn is not installed.
    """
    attack = ATTACKS[job.attack](job.count) if job.count else Attack(attackers=0)
    cases = [case for case in CASES if case.rule in job.rules]
    found = compete(TASKS[job.task](job.seed, digits), job.attack, attack, cases, job.seed, job.rounds)
    return [(o.rule, o.accuracy, o.error or ("" if o.finite else "the model is not finite")) for o in found]
