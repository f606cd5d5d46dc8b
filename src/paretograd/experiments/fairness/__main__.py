"""``python -m paretograd.experiments.fairness``: the study with torch, numpy and scipy alone, and plain progress lines.

It writes what ``paretograd reproduce fairness`` writes, but for figures and page, which ``paretograd report FOLDER``
draws later, where the extras are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paretograd.errors import ParetogradError
from paretograd.experiments.fairness.lines import Lines
from paretograd.experiments.fairness.run import run_fairness
from paretograd.experiments.fairness.study import read_study


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code: 0, 2 for a mistake of the caller, 130 after an interrupt."""
    asked = _parser().parse_args(arguments)
    names = ("methods", "seeds", "steps", "gaps", "scaling", "tf32")
    try:
        results = run_fairness(
            read_study(**{name: getattr(asked, name) for name in names}),
            asked.out,
            data_dir=asked.data_dir,
            device=asked.device,
            resume=asked.resume,
            overwrite=asked.overwrite,
            checkpoint_every=asked.checkpoint_every,
            watch=Lines(_say),
        )
    except ParetogradError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what was done is in {asked.out}. The same command with --resume goes on\n")
        return 130
    _say("")
    _say((results.folder / "table.md").read_text(encoding="utf-8"))
    _say(f"figures and page: paretograd report {results.folder}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m paretograd.experiments.fairness", description=__doc__)
    made.add_argument("--data-dir", type=Path, help="folder with adult.data and adult.test, plain, .gz or .xz")
    made.add_argument("--methods", help="rules separated by commas; all of the study if not given")
    made.add_argument("--seeds", help="seeds separated by commas: 24,42,64,100")
    made.add_argument("--steps", type=int, help="at most this many: 40000")
    made.add_argument("--gaps", choices=("sums", "means"), help="of the benchmark, or of group means")
    made.add_argument("--scaling", choices=("all", "train"), help="rows that features are standardised over")
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    made.add_argument("--tf32", action=argparse.BooleanOptionalAction, help="let a GPU round products to TF32: yes")
    made.add_argument("--out", type=Path, default=Path("runs") / "fairness", help="folder to write to")
    made.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    made.add_argument("--overwrite", action="store_true", help="remove the study in the folder and start anew")
    made.add_argument("--checkpoint-every", type=float, default=10.0, metavar="SECONDS")
    return made


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
