"""Measure the accuracy of a global model after 20 rounds with hostile clients, for each attack and rule.

    python benchmarks/hostile.py                         # ten minutes; updates the tables in docs/hostile.md
    python benchmarks/hostile.py --only "MGDA, clip"     # prints only
    python benchmarks/hostile.py --render                # regenerate the tables from saved results

Ten clients learn to classify the digits of the example app, each mostly from its own digits; the last one or two
attack in every round. All replies go through `paretograd.federated.Server`. The exit status is 1 if
the server crashes, a model is not finite, or trusted or capped MGDA with bounded lengths loses more than a tenth of its
accuracy to one attacker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import hostile_report as report
from common import in_parallel, use_one_thread

if TYPE_CHECKING:
    from hostile_run import Outcome

ROUNDS, SEEDS = 20, 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run rules whose name and bound contain this text; writes no files")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of training (default {ROUNDS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, with one thread each (default 2)")
    parser.add_argument("--render", action="store_true", help="only regenerate the tables from saved results")
    given = parser.parse_args(arguments)
    use_one_thread()  # before numpy and torch are imported
    if given.render:
        print(f"wrote {report.render()}", file=sys.stderr)
        return 0

    from hostile_cases import ATTACKS, CASES

    labels = [case.label for case in CASES if given.only is None or given.only.lower() in case.label.lower()]
    if not labels or given.rounds < 1 or given.seeds < 1 or given.jobs < 1:
        parser.error(f"nothing to run; rules are {'; '.join(case.label for case in CASES)}")
    jobs = [(attack, seed, given.rounds, labels) for seed in range(given.seeds) for attack in ATTACKS]
    started = perf_counter()
    outcomes = _all(jobs, given.jobs)
    print(report.console(outcomes))
    if given.only is None:
        command = f"python benchmarks/hostile.py --rounds {given.rounds} --seeds {given.seeds}"
        for path in report.write(outcomes, command, perf_counter() - started):
            print(f"wrote {path}", file=sys.stderr)
    return 0 if all(met for _, met, _ in report.verdicts(outcomes)) else 1


def _all(jobs: list[tuple[str, int, int, list[str]]], processes: int) -> list[Outcome]:
    """Return the outcomes in the order of the jobs."""
    from hostile_run import run

    titles = [f"{attack}, seed {seed}" for attack, seed, *_ in jobs]
    found = dict(in_parallel(run, jobs, titles, processes))
    return [outcome for number in range(len(jobs)) for outcome in found[number]]


if __name__ == "__main__":
    sys.exit(main())
