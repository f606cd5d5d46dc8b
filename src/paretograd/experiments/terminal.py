"""A study as a stand-alone program, for machines that have torch, numpy and scipy, but no extra.

It writes what ``paretograd reproduce`` writes, except figures and page. ``paretograd report FOLDER`` draws them later,
on a machine that has the extras.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paretograd.errors import ParetogradError
from paretograd.experiments.progress import Lines
from paretograd.experiments.study import WORK, Kind, Option, flag


def run_program(kind: Kind, arguments: Sequence[str] | None) -> int:
    """Run a study; returns the exit code: 0, 2 for invalid input, 130 after an interrupt.

    Args:
        kind: of the study.
        arguments: None for those of this process.
    """
    given = vars(_parser(kind).parse_args(arguments))
    work = {name: given[name] for name in ("resume", "overwrite", "checkpoint_every")}
    try:
        results = kind.run(kind.make(given), given["out"], **work, **kind.to_run(given), watch=Lines(_say))
    except ParetogradError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what was done is in {given['out']}. The same command with --resume goes on\n")
        return 130
    _say("")
    _say((results.folder / "table.md").read_text(encoding="utf-8"))
    _say(f"figures and page: paretograd report {results.folder}")
    return 0


def _parser(kind: Kind) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m paretograd.experiments.{kind.name}", description=f"{kind.title}.")
    for name, declared in {**kind.options, **WORK}.items():
        made.add_argument(flag(name), help=declared.help, **_argument(declared))
    made.set_defaults(out=Path("runs") / kind.name, resume=False, overwrite=False, checkpoint_every=10.0)
    return made


def _argument(declared: Option) -> dict[str, Any]:
    if declared.type is bool:
        return {"action": argparse.BooleanOptionalAction if declared.switch else "store_true", "default": None}
    return {"type": declared.type, "metavar": declared.metavar}


def _say(text: str) -> None:
    """Write one line and flush it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
