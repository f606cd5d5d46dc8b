"""Tables and verdicts from the accuracies of `breakdown_run`, for the terminal, the docs and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT, fill, markdown_table, replace
from hostile_report import LOSS, machine

if TYPE_CHECKING:
    from breakdown_run import Job

PAGE = ROOT / "docs" / "breakdown.md"
RESULTS = ROOT / "benchmarks" / "results" / "breakdown.json"
DEFAULT = "Trusted MGDA"
#: Rules of the second table, besides the two baselines that lose least to three attackers.
CHOSEN = (DEFAULT, "Mean", "Capped MGDA, C = 0.15")
BASELINES = ("Krum", "Multi-Krum", "Coordinate median", "Trimmed mean", "Geometric median")
COUNTS = (1, 2, 3, 4)
#: A rule that reaches less without an attack has not learned the task, so that no attack can break it.
LEARNED = 0.5
TITLES = {"drawn": "drawn digits, uneven clients", "handwritten": "handwritten digits, even clients"}


@dataclass
class Results:
    """The accuracies of all seeds, by rule, task, attack and number of attackers; and what went wrong."""

    cells: dict[tuple[str, str, str, int], list[float]]
    faults: list[str] = field(default_factory=list)

    def mean(self, rule: str, task: str, attack: str, count: int) -> float:
        """Return the mean accuracy over seeds."""
        return statistics.fmean(self.cells[rule, task, attack, count])

    def free(self, rule: str, task: str) -> float:
        """Return the accuracy without an attack."""
        return self.mean(rule, task, "none", 0)

    def worst(self, rule: str, task: str, count: int) -> tuple[float, str]:
        """Return the lowest accuracy at this number of attackers, and the attack."""
        return min((self.mean(rule, task, attack, count), attack) for attack in self.attacks)

    def lost(self, rule: str, task: str, accuracy: float) -> bool:
        """Return True if this accuracy is more than a tenth below that without an attack."""
        return accuracy < (1.0 - LOSS) * self.free(rule, task)

    def breakdown(self, rule: str, task: str) -> str:
        """Return the smallest number of attackers at which some attack costs more than a tenth of the accuracy.

        It is a dash for a rule that does not learn the task.
        """
        if self.free(rule, task) < LEARNED:
            return "-"
        broken = [count for count in COUNTS if self.lost(rule, task, self.worst(rule, task, count)[0])]
        return str(broken[0]) if broken else f"> {COUNTS[-1]}"

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(rule for rule, *_ in self.cells))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for _, task, _, _ in self.cells))

    @property
    def attacks(self) -> list[str]:
        return list(dict.fromkeys(attack for _, _, attack, _ in self.cells if attack != "none"))


def gather(found: Iterable[tuple[Job, list[tuple[str, float, str]]]], rules: Sequence[str]) -> Results:
    """Return the results of jobs in a fixed order."""
    from breakdown_cases import ATTACKS, TASKS

    by_seed: dict[tuple[str, str, str, int], dict[int, float]] = {
        (rule, task, attack, count): {}
        for rule in rules
        for task in TASKS
        for attack, count in (("none", 0), *((name, count) for name in ATTACKS for count in COUNTS))
    }
    faults = []
    for job, rows in found:
        for rule, accuracy, fault in rows:
            by_seed[rule, job.task, job.attack, job.count][job.seed] = round(accuracy, 4)
            faults += [f"{rule}, {job.title}: {fault}"] if fault else []
    return Results({key: [seeds[seed] for seed in sorted(seeds)] for key, seeds in by_seed.items()}, sorted(faults))


def verdicts(results: Results) -> list[tuple[str, bool, str]]:
    """Return each requirement, whether it is met, and the case that violates it or comes closest."""
    count = f"{sum(map(len, results.cells.values()))} runs"
    found = [
        (
            "nothing crashes the server, and every model is finite",
            not results.faults,
            "; ".join(results.faults[:5]) or count,
        )
    ]
    if DEFAULT not in results.rules:
        return found
    cases = []
    for task in results.tasks:
        for attackers in COUNTS[:3]:
            accuracy, attack = results.worst(DEFAULT, task, attackers)
            cases.append((accuracy / results.free(DEFAULT, task), f"{attack} by {attackers}, {TITLES[task]}"))
    kept, case = min(cases)
    what = f"up to three attackers of ten cost the default at most {LOSS:.0%} of its accuracy"
    return [*found, (what, kept >= 1.0 - LOSS, f"keeps {kept:.1%}: {case}")]


def overview(results: Results, mark: str = "**") -> list[list[str]]:
    """Return one row per rule: breakdown points, accuracies without an attack, and the worst by number of attackers."""
    found = []
    for rule in results.rules:
        row = [rule, *(results.breakdown(rule, task) for task in results.tasks)]
        for task in results.tasks:
            row.append(_percent(results.free(rule, task)))
            row += [_marked(results, rule, task, results.worst(rule, task, count)[0], mark) for count in COUNTS]
        found.append(row)
    return found


def _headings(results: Results) -> list[str]:
    found = ["rule", *(f"breaks at: {task}" for task in results.tasks)]
    for task in results.tasks:
        found += [f"{task}: none", *map(str, COUNTS)]
    return found


def _percent(accuracy: float) -> str:
    return f"{100.0 * accuracy:.0f}"


def _marked(results: Results, rule: str, task: str, accuracy: float, mark: str = "**") -> str:
    text = _percent(accuracy)
    return f"{mark}{text}{mark}" if results.lost(rule, task, accuracy) else text


def compared(results: Results) -> list[str]:
    """Return the rules of the second table: the default, the clipped mean, capped MGDA, and the two best baselines."""

    def kept(rule: str) -> float:
        return min(results.worst(rule, task, 3)[0] / results.free(rule, task) for task in results.tasks)

    best = sorted((rule for rule in BASELINES if rule in results.rules), key=kept, reverse=True)[:2]
    return [*(rule for rule in CHOSEN if rule in results.rules), *best]


def by_attack(results: Results, count: int) -> list[list[str]]:
    """Return one row per attack by this many clients: the accuracies of the compared rules on each task."""
    cells = [(rule, task) for rule in compared(results) for task in results.tasks]
    free = [["no attack", *(_percent(results.free(rule, task)) for rule, task in cells)]]
    return free + [
        [attack, *(_marked(results, rule, task, results.mean(rule, task, attack, count)) for rule, task in cells)]
        for attack in results.attacks
    ]


def worst_for_default(results: Results) -> list[list[str]]:
    """Return one row per number of attackers: what hurts the default most on each task."""
    rows = []
    for count in COUNTS:
        worst = [results.worst(DEFAULT, task, count) for task in results.tasks]
        texts = [
            (attack, _marked(results, DEFAULT, task, low))
            for task, (low, attack) in zip(results.tasks, worst, strict=True)
        ]
        rows.append([str(count), *(text for pair in texts for text in pair)])
    return rows


def spread(results: Results) -> float:
    """Return the median over all cells of the standard deviation over seeds."""
    return statistics.median(statistics.pstdev(values) for values in results.cells.values())


def console(results: Results) -> str:
    """Return the aligned overview and the verdicts."""
    table = [_headings(results), *overview(results, mark="!")]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]
    lines.append("")
    lines += [f"{'met   ' if met else 'MISSED'}  {what} ({why})" for what, met, why in verdicts(results)]
    return "\n".join(lines)


def markdown(results: Results, facts: dict[str, Any]) -> str:
    """Return the text between the markers of the page."""
    seeds = max(map(len, results.cells.values()))
    names = [TITLES[task] for task in results.tasks]
    lines = [
        f"`{facts['command']}`, {facts['seconds']:.0f} s on {facts['machine']}.",
        "",
        f"Accuracy in percent, the mean over {seeds} seeds; the standard deviation over seeds is "
        f"{100 * spread(results):.1f} in the median cell. Bold: the attack costs more than {LOSS:.0%} of the accuracy "
        "without one.",
        "",
        "### Breakdown points",
        "",
        "A rule breaks at the smallest number of attackers of ten at which some attack costs more than "
        f"{LOSS:.0%} of its accuracy. A dash marks a rule that reaches less than {LEARNED:.0%} without an attack. "
        "The other columns show, for each task, the accuracy without an attack, and under the worst attack by one to "
        "four clients.",
        "",
        *markdown_table(_headings(results), _unbroken(overview(results))),
    ]
    if DEFAULT in results.rules:
        lines += ["", "### The worst attacks on the default", ""]
        headings = ["attackers", *(text for name in names for text in (f"worst on {name}", "accuracy"))]
        lines += markdown_table(headings, worst_for_default(results), names=2)
    lines += ["", "### Three attackers of ten, by attack", ""]
    headings = ["attack", *(f"{rule}: {task}" for rule in compared(results) for task in results.tasks)]
    lines += markdown_table(headings, by_attack(results, 3))
    lines += ["", "### What must hold", ""]
    checked = ([what, "yes" if met else "no", why] for what, met, why in verdicts(results))
    return "\n".join([*lines, *markdown_table(["promise", "kept", "closest"], checked, names=3)])


def _unbroken(rows: list[list[str]]) -> list[list[str]]:
    """Keep a cap on one line in a narrow column."""
    return [[rule.replace(" = ", "&nbsp;=&nbsp;"), *cells] for rule, *cells in rows]


def write(results: Results, command: str, seconds: float) -> list[Path]:
    """Write the accuracies and update the tables on the page."""
    facts = {"command": command, "seconds": round(seconds, 1), "machine": machine(), "faults": results.faults}
    lines = ",\n".join(json.dumps([*key, values]) for key, values in results.cells.items())
    replace(RESULTS, f'{json.dumps(facts)[:-1]}, "cells": [\n{lines}\n]}}\n')
    return [RESULTS.relative_to(ROOT), render()]


def render() -> Path:
    """Update the tables on the page from the saved results."""
    results, facts = load()
    fill(PAGE, markdown(results, facts))
    return PAGE.relative_to(ROOT)


def load() -> tuple[Results, dict[str, Any]]:
    """Return the saved results and facts."""
    facts = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Results({tuple(key): values for *key, values in facts["cells"]}, facts["faults"]), facts
