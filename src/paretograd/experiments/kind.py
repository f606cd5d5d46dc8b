"""What the command line knows of a study: its options, and the functions that run it and show its results.

A study is a dataclass. A field with an `Option` in its metadata is also an option of the command line. It is declared
there and nowhere else: parsing, help, the command that a table carries and ``config.json`` all follow from the field.
A `Kind` puts the dataclass together with the functions that run and show the study;
`paretograd.cli.studies` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from paretograd.aggregators.registry import split_list
from paretograd.errors import InputError


@dataclass(frozen=True)
class Option:
    """An option of the command line.

    Attributes:
        help: one sentence.
        metavar: placeholder of the value in the help; the type if not given.
        type: of the value as it is written: str, int, float, bool or Path.
        least: smallest number that is allowed.
        read: converts the text; None keeps the value as it is.
        switch: whether a bool has both ``--name`` and ``--no-name``.
    """

    help: str
    metavar: str | None = None
    type: type = str
    least: float | None = None
    read: Callable[[str], Any] | None = None
    switch: bool = False

    @property
    def metadata(self) -> dict[str, Option]:
        """For a field of a study's dataclass: ``field(default=5, metadata=Option("...").metadata)``."""
        return {"option": self}


def options_of(study: type) -> dict[str, Option]:
    """Return the options that the fields of a dataclass declare, in their order."""
    return {entry.name: entry.metadata["option"] for entry in fields(study) if "option" in entry.metadata}


def read_options(study: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a command line; options that were not given (None) are left out."""
    known = options_of(study)
    return {
        name: known[name].read(value) if name in known and known[name].read else value  # type: ignore[misc]
        for name, value in given.items()
        if value is not None
    }


def flag(name: str) -> str:
    """Return the flag of an option: ``--data-dir`` for ``data_dir``."""
    return f"--{name.replace('_', '-')}"


def read_list(text: str) -> tuple[str, ...]:
    """Parse entries separated by commas."""
    return tuple(split_list(text))


def read_seeds(text: str) -> tuple[int, ...]:
    """Parse whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in split_list(text))
    except ValueError:
        raise InputError(f"--seeds {text!r}: write numbers separated by commas, such as 24,42") from None


METHODS = Option("Only these, separated by commas: 'mgda,upgrad*'.", "RULES", read=read_list)
SEEDS = Option("Separated by commas; the study's own if not given.", "SEEDS", read=read_seeds)
TF32 = Option("Let a GPU round products to TF32; it does if not given.", type=bool, switch=True)
#: Options of every study that trains models: data and device, which are not part of the study.
TRAINING = {
    "data_dir": Option(
        "Holds the files of Adult or CIFAR-10, packed or not. If not given: $PARETOGRAD_DATA, a download.",
        "FOLDER",
        type=Path,
    ),
    "device": Option("auto takes a GPU if there is one.", "auto|cpu|cuda"),
}
#: Options of every run: output folder, resuming, and checkpoints.
WORK = {
    "out": Option("Where to write; runs/NAME if not given.", "FOLDER", type=Path),
    "resume": Option("Go on with what is in the folder; methods that are done are not run again.", type=bool),
    "overwrite": Option("Remove the study in the folder and start anew.", type=bool),
    "checkpoint_every": Option("Work between two checkpoints: what a kill can lose.", "SECONDS", type=float, least=0.0),
}


class Claim(NamedTuple):
    """A claim of the paper with the numbers of a study.

    Attributes:
        text: one sentence.
        holds: whether the numbers support it.
        complete: whether the text itself says so.
    """

    text: str
    holds: bool
    complete: bool = False

    @property
    def sentence(self) -> str:
        """``Holds: MGDA collapses, below 0.3: 0.232.``"""
        return self.text if self.complete else f"{'Holds' if self.holds else 'Does not hold'}: {self.text}"


@dataclass(frozen=True)
class Summary:
    """What is printed at the end of a study.

    Attributes:
        title: in bold.
        lines: the protocol, and the meaning of the numbers.
        tables: by their titles, rows of texts by their headings; a single table needs no title.
        legend: definitions of the terms in the tables.
        remarks: what a reader should know before using the numbers.
        claims: of the paper, settled by the results.
    """

    title: str
    lines: Sequence[str]
    tables: Mapping[str, Sequence[Mapping[str, str]]]
    legend: str
    remarks: Sequence[str]
    claims: Sequence[Claim] = ()

    @property
    def sentences(self) -> list[str]:
        """Text below the tables."""
        return [self.legend, *self.remarks, *(claim.sentence for claim in self.claims)]


@dataclass(frozen=True)
class Kind:
    """A kind of study. All results have a ``folder``, and all studies a ``command()`` that makes them.

    Attributes:
        name: on the command line.
        title: one line.
        source: where it is in the paper.
        options: of the command line, by name.
        run_options: names of those that `run` takes; the others make the study.
        read_study: makes the study from options.
        run: runs it; takes study and folder, ``resume``, ``overwrite``, ``checkpoint_every``, ``watch``, run options.
        read_results: reads a folder without running anything.
        summary: what is printed, for results and a terminal's width.
        numbers: where the numbers of the runs are, in words.
        draw: writes figures and page, and returns their paths; needs the extra ``report``.
    """

    name: str
    title: str
    source: str
    options: Mapping[str, Option]
    run_options: tuple[str, ...]
    read_study: Callable[..., Any]
    run: Callable[..., Any]
    read_results: Callable[[Path], Any]
    summary: Callable[[Any, int], Summary]
    numbers: Callable[[Any], str]
    draw: Callable[[Any], list[Path]]

    def make(self, given: Mapping[str, Any]) -> Any:
        """Make the study from these options."""
        return self.read_study(**{name: given[name] for name in self.options if name not in self.run_options})

    def to_run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for `run` that were given."""
        return {name: given[name] for name in self.run_options if given[name] is not None}
