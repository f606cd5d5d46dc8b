"""Measure how many attackers of ten each rule withstands, for each attack, on two tasks.

    python benchmarks/breakdown.py                      # 40 minutes on two cores; updates docs/breakdown.md
    python benchmarks/breakdown.py --only "trimmed"     # prints only
    python benchmarks/breakdown.py --render             # regenerate the tables from saved results

Ten clients train a model together, and none to four of them attack in every round. All replies go through
`paretograd.federated.Server`. The exit status is 1 if the server crashes, a model is not finite, or up to three
attackers cost the default rule more than a tenth of its accuracy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import breakdown_report as report
from common import in_parallel, replace, use_one_thread

if TYPE_CHECKING:
    from breakdown_run import Job

    Found = list[tuple[str, float, str]]

ROUNDS, SEEDS = 20, 3
#: Number of rules that one job trains. Fewer balance better, more share the overhead.
TOGETHER = 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run rules whose name contains this text; writes no files")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of training (default {ROUNDS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, with one thread each (default 2)")
    parser.add_argument("--keep", type=Path, help="save finished jobs in this file, and skip those already in it")
    parser.add_argument("--digits", type=Path, help="read the handwritten digits from this file, not from scikit-learn")
    parser.add_argument("--save-digits", type=Path, metavar="FILE", help="only write the file for --digits")
    parser.add_argument("--render", action="store_true", help="only regenerate the tables from saved results")
    given = parser.parse_args(arguments)
    use_one_thread()  # before numpy and torch are imported
    if given.render:
        print(f"wrote {report.render()}", file=sys.stderr)
        return 0
    if given.save_digits is not None:
        from hostile_clients import save_digits

        save_digits(given.save_digits)
        return 0

    from breakdown_cases import CASES
    from breakdown_run import jobs

    rules = [case.rule for case in CASES if given.only is None or given.only.lower() in case.rule.lower()]
    if not rules or given.rounds < 1 or given.seeds < 1 or given.jobs < 1:
        parser.error(f"nothing to run; rules are {'; '.join(case.rule for case in CASES)}")
    started = perf_counter()
    found = _all(jobs(rules, given.seeds, given.rounds, TOGETHER), given.jobs, given.keep, given.digits)
    results = report.gather(found, rules)
    print(report.console(results))
    if given.only is None:
        command = f"python benchmarks/breakdown.py --rounds {given.rounds} --seeds {given.seeds}"
        for path in report.write(results, command, perf_counter() - started):
            print(f"wrote {path}", file=sys.stderr)
    return 0 if all(met for _, met, _ in report.verdicts(results)) else 1


def _all(jobs: list[Job], processes: int, keep: Path | None, digits: Path | None) -> list[tuple[Job, Found]]:
    """Return what the jobs found, and save each as it finishes."""
    from breakdown_run import run

    known = _kept(keep)
    found = [(job, known[_key(job)]) for job in jobs if _key(job) in known]
    missing = [job for job in jobs if _key(job) not in known]
    titles = [job.title for job in missing]
    for number, result in in_parallel(run, [(job, digits) for job in missing], titles, processes):
        found.append((missing[number], result))
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps([_key(missing[number]), result]) + "\n")
    return found


def _key(job: Job) -> str:
    return json.dumps(job)


def _kept(keep: Path | None) -> dict[str, Found]:
    """Return the saved results by job, and drop the last line from the file if it is incomplete."""
    if keep is None or not keep.exists():
        return {}
    lines = [line for line in keep.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    replace(keep, "".join(lines))
    return {key: [tuple(row) for row in rows] for key, rows in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
