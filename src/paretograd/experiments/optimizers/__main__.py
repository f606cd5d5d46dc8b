"""``python -m paretograd.experiments.optimizers``: the study with torch, numpy and scipy alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paretograd.experiments.optimizers.report import OPTIMIZER_STUDY
from paretograd.experiments.terminal import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    return run_program(OPTIMIZER_STUDY, arguments)


if __name__ == "__main__":
    sys.exit(main())
