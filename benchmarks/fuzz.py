"""Check every rule on hard Jacobians against exact solutions and guarantees, and print minimal failing inputs.

    python benchmarks/fuzz.py                                  # 200,000 Jacobians: about an hour on two cores
    python benchmarks/fuzz.py --seconds 60 --rules upgrad,mgda
    python benchmarks/fuzz.py --families signs --seed 7 --jacobians 1000

Ctrl-C ends the search and prints the findings so far. The exit code is 1 if there was any violation. The fuzzer
itself is in `tests/support/fuzz`.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter

from common import ROOT, progress, use_one_thread


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jacobians", type=int, default=200_000, help="number of Jacobians (default 200000)")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first Jacobian (default 0)")
    parser.add_argument(
        "--rules", help="rows of the shared test table, separated by semicolons or commas; all by default"
    )
    parser.add_argument("--families", help="families of Jacobians, separated by commas; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--shrink", type=float, default=120.0, help="seconds for minimising violations (default 120)")
    arguments = parser.parse_args()
    use_one_thread()  # before numpy and torch are imported
    sys.path.insert(0, str(ROOT / "tests"))

    from support.fuzz import campaign, report
    from support.fuzz.inputs import ALL
    from support.fuzz.shrink import shrink

    def chosen(text: str | None, known: list[str], what: str) -> list[str] | None:
        if text is None:
            return None
        names = [name for name in (text.split(";") if ";" in text or text in known else text.split(",")) if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"unknown {what}: {', '.join(unknown)}; known are {'; '.join(known)}")
        return names

    rules, families = (
        chosen(arguments.rules, campaign.SUBJECTS, "rules"),
        chosen(arguments.families, list(ALL), "families"),
    )

    def show(tally: campaign.Tally, elapsed: float) -> None:
        found = f"{sum(tally.violations.values())} violations of {len(tally.violations)} kinds"
        progress(tally.jacobians, arguments.jacobians, found, elapsed)

    tally = campaign.run(
        arguments.jacobians,
        first=arguments.seed,
        seconds=arguments.seconds,
        names=rules,
        families=families,
        workers=arguments.workers,
        progress=show,
    )
    print(file=sys.stderr)
    campaign.prepare()
    deadline = perf_counter() + arguments.shrink
    try:
        for kind, kept in sorted(tally.smallest.items(), key=lambda item: (item[0][1], item[0][0])):
            smallest = shrink(kept[0]) if perf_counter() < deadline else kept[0]
            print(report.describe(smallest, tally.violations[kind]), end="\n\n", flush=True)
    except KeyboardInterrupt:
        print("\n(interrupted: the remaining kinds are in the table only)\n")
    print(report.table(tally))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
