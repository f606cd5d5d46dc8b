"""``python -m paretograd.experiments.fairness``: the study with torch, numpy and scipy alone, and plain progress lines.

It writes what ``paretograd reproduce fairness`` writes, but for figures and page, which ``paretograd report FOLDER``
draws later, where the extras are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paretograd.experiments.fairness.run import run_fairness
from paretograd.experiments.fairness.study import read_study
from paretograd.experiments.terminal import add_common_options, run_program

_NAMES = ("methods", "seeds", "steps", "gaps", "scaling", "tf32")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code: 0, 2 for a mistake of the caller, 130 after an interrupt."""
    return run_program(_parser(), arguments, read_study, _NAMES, run_fairness)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m paretograd.experiments.fairness", description=__doc__)
    made.add_argument("--data-dir", type=Path, help="folder with adult.data and adult.test, plain, .gz or .xz")
    made.add_argument("--methods", help="rules separated by commas; all of the study if not given")
    made.add_argument("--seeds", help="seeds separated by commas: 24,42,64,100")
    made.add_argument("--steps", type=int, help="at most this many: 40000")
    made.add_argument("--gaps", choices=("sums", "means"), help="of the benchmark, or of group means")
    made.add_argument("--scaling", choices=("all", "train"), help="rows that features are standardised over")
    add_common_options(made, "fairness")
    return made


if __name__ == "__main__":
    sys.exit(main())
