"""``python -m paretograd.experiments.federated``: the study with torch, numpy and scipy alone, and plain progress.

It writes what ``paretograd reproduce federated`` writes, but for figures and page, which ``paretograd report FOLDER``
draws later, where the extras are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paretograd.experiments.federated.plan import PARTS
from paretograd.experiments.federated.run import run_federated
from paretograd.experiments.federated.study import read_study
from paretograd.experiments.terminal import add_common_options, run_program

_NAMES = ("small", "parts", "methods", "seeds", "epochs", "lr", "noise", "tf32")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code: 0, 2 for a mistake of the caller, 130 after an interrupt."""
    return run_program(_parser(), arguments, read_study, _NAMES, run_federated)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m paretograd.experiments.federated", description=__doc__)
    made.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin or cifar-10-batches-py")
    made.add_argument("--small", action="store_true", help="a few minutes on two cores, with the same ordering")
    made.add_argument("--parts", help=f"groups of runs separated by commas, of {','.join(PARTS)}: all")
    made.add_argument("--methods", help="only these rules of the parts, separated by commas")
    made.add_argument("--seeds", help="seeds separated by commas: 0,1,2")
    made.add_argument("--epochs", type=int, help="full-batch steps: 1000")
    made.add_argument("--lr", type=float, help="their size: 0.01")
    made.add_argument("--noise", help="of the attack, relative to the gradient: 0.15; or the word literal")
    add_common_options(made, "federated")
    return made


if __name__ == "__main__":
    sys.exit(main())
