"""A study as a program of its own: for a machine that has torch, numpy and scipy, and no extra."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paretograd.errors import ParetogradError
from paretograd.experiments.progress import Lines


class Finished(Protocol):
    """What a study returns."""

    @property
    def folder(self) -> Path:
        """Where it lies."""


def add_common_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Options that every study which trains has."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, help="let a GPU round products to TF32: yes")
    parser.add_argument("--out", type=Path, default=Path("runs") / out, help="folder to write to")
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="remove the study in the folder and start anew")
    parser.add_argument("--checkpoint-every", type=float, default=10.0, metavar="SECONDS")


def run_program(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    read_study: Callable[..., Any],
    names: Sequence[str],
    run: Callable[..., Finished],
) -> int:
    """Run a study; returns the exit code: 0, 2 for a mistake of the caller, 130 after an interrupt.

    Args:
        parser: of the arguments.
        arguments: None for those of this process.
        read_study: makes the study from options.
        names: of these options.
        run: runs it.
    """
    asked = parser.parse_args(arguments)
    common = ("data_dir", "device", "resume", "overwrite", "checkpoint_every")
    try:
        study = read_study(**{name: getattr(asked, name) for name in names})
        results = run(study, asked.out, **{name: getattr(asked, name) for name in common}, watch=Lines(say))
    except ParetogradError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what was done is in {asked.out}. The same command with --resume goes on\n")
        return 130
    say("")
    say((results.folder / "table.md").read_text(encoding="utf-8"))
    say(f"figures and page: paretograd report {results.folder}")
    return 0


def say(text: str) -> None:
    """One line, at once, even into a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
