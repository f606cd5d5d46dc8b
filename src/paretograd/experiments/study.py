"""The shared parts of studies: options, methods, seeds, labels, `BaseStudy`, and the `Kind` that the commands use.

A study is a dataclass. A field with an `Option` in its metadata is also an option of the command line. It is declared
there and nowhere else: parsing, help, the command that a table carries and ``config.json`` all follow from the field.
A `Kind` puts the dataclass together with the functions that run and show the study; `paretograd.cli.studies` lists the
kinds.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import parse_aggregators, split_list
from paretograd.checks import whole_number
from paretograd.errors import InputError, ParameterError

#: Seed of random rules, unless the rule is written with one.
_RULE_SEED = 0
#: Largest seed that torch, numpy and result files accept.
_LARGEST_SEED = 2**63 - 1
#: Longest file name, without suffix.
_LONGEST = 60


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


METHODS_OPTION = Option("Only these, separated by commas: 'mgda,upgrad*'.", "RULES", read=read_list)
SEEDS_OPTION = Option("Separated by commas; the study's own if not given.", "SEEDS", read=read_seeds)
TF32_OPTION = Option("Let a GPU round products to TF32; it does if not given.", type=bool, switch=True)
#: Options of every study that trains models: data and device, which are not part of the study.
TRAINING = {
    "data_dir": Option(
        "Holds the files of Adult, CIFAR-10 or MNIST, packed or not. If not given: $PARETOGRAD_DATA, a download.",
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


@dataclass(frozen=True)
class Method:
    """A rule and its step size.

    Attributes:
        rule: as a person writes it: ``upgrad*``, ``mas-rr(100)``, ``capped-mgda(cap=0.2)``.
        lr: a number, or a step-size rule by name: ``0.001``, ``smooth``, ``armijo(start=0.5)``.
    """

    rule: str
    lr: str = "0.001"

    def aggregator(self) -> Aggregator:
        """Return a new instance of the rule, with its initial random state."""
        rules = parse_aggregators(self.rule, seed=_RULE_SEED)
        if len(rules) != 1:
            raise ParameterError(f"a method has one rule; {self.rule!r} names {len(rules)}")
        return rules[0]


def checked_seeds(given: object) -> list[int]:
    """Validate seeds: distinct non-negative whole numbers, at least one. (torch would wrap negative ones around.)"""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ParameterError(f"seeds={given!r}: give whole numbers in a tuple, such as (0, 1)")
    seeds = [whole_number("study", "seed", seed, least=0) for seed in given]
    large = [seed for seed in seeds if seed > _LARGEST_SEED]
    if large:
        raise ParameterError(f"study: seed={large[0]} is too large; the largest is {_LARGEST_SEED}")
    twice = [str(seed) for seed, count in Counter(seeds).items() if count > 1]
    if not seeds:
        raise ParameterError("a study has at least one seed")
    if twice:
        raise ParameterError(f"seed {', '.join(twice)} is given twice; every seed is one run")
    return seeds


def labels_of(methods: Sequence[Method], usual_lr: str) -> tuple[str, ...]:
    """Return the paper's names, with parameters if two names coincide, and with unusual step sizes."""
    plain = [method.aggregator().label for method in methods]
    labels = [
        label + _inside(method.rule) * (plain.count(label) > 1) + f" (lr {method.lr})" * (method.lr != usual_lr)
        for label, method in zip(plain, methods, strict=True)
    ]
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise ParameterError(f"{', '.join(twice)} is in the list twice; name every method once")
    return tuple(labels)


def _inside(rule: str) -> str:
    """`` (cap=0.2)`` of ``capped-mgda(cap=0.2)*``."""
    _, opened, rest = rule.partition("(")
    return f" ({rest.rpartition(')')[0]})" if opened else ""


def checked_rules(given: object) -> tuple[str, ...]:
    """Validate rules: at least one, all of them text."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ParameterError(f"methods={given!r}: give rules in a tuple, such as ('mgda',)")
    rules = tuple(given)
    if not rules:
        raise ParameterError("a study has at least one method, such as mgda")
    wrong = [rule for rule in rules if not isinstance(rule, str)]
    if wrong:
        raise ParameterError(f"methods={wrong[0]!r}: rules as text, such as 'mgda' or 'mas-rr(1000)'")
    return tuple(map(str, rules))


def file_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names that are safe in shells and file systems: ``nash-mtl-star`` for ``Nash-MTL*``."""
    names: list[str] = []
    for label in labels:
        words = label.lower().replace("*", "-star").replace("+", "-plus")
        base = re.sub(r"[^a-z0-9.]+", "-", words).strip("-.")[:_LONGEST] or "method"
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Job:
    """A part of a study that has one row in the progress display and one checkpoint.

    Attributes:
        label: in the display.
        file: name of the checkpoint, without suffix.
        results: names of the files that it writes, without suffix.
    """

    label: str
    file: str
    results: tuple[str, ...]


def jobs_of(labels: Sequence[str], files: Sequence[str]) -> tuple[Job, ...]:
    """Return one job for each label, with one result file."""
    return tuple(Job(label, file, (file,)) for label, file in zip(labels, files, strict=True))


class BaseStudy(ABC):
    """A study as a frozen dataclass, whose defaults are the paper's protocol.

    The command line, the configuration and the file names follow from the fields.
    """

    #: Name on the command line and in ``config.json``.
    experiment: ClassVar[str]
    #: The Python function that runs the study, below `paretograd.experiments`.
    function: ClassVar[str]

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the jobs."""

    @abstractmethod
    def rehearse(self) -> None:
        """Raise if some rule cannot run. Called before anything is written."""

    def files(self) -> tuple[str, ...]:
        """Return the names of the result files, without suffix."""
        return file_names(self.labels())

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, in order."""
        return jobs_of(self.labels(), self.files())

    @classmethod
    def from_options(cls, **given: Any) -> Self:
        """Make a study from the options of a command line; options that are None or missing keep their defaults."""
        return cls(**read_options(cls, given))

    def plain(self) -> dict[str, Any]:
        """Return the study as JSON-serialisable values, with ``own_data`` only if there are any."""
        found = asdict(self)  # type: ignore[call-overload]
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        if not values.get("own_data", True):
            del values["own_data"]
        return {"experiment": self.experiment} | values

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Self:
        """Rebuild a study from the result of `plain`."""
        wrong = f"this is not the configuration of a {cls.experiment} study"
        defaults = {entry.name: entry.default for entry in fields(cls)}  # type: ignore[arg-type]
        differing = (set(found) - {"experiment"}) ^ set(defaults)
        if found.get("experiment") != cls.experiment or differing - (set(defaults) & {"own_data"}):
            raise InputError(wrong)
        values = {name: found[name] for name in defaults if name in found}
        try:
            tuples = {name: tuple(value) for name, value in values.items() if isinstance(defaults[name], tuple)}
            return cls(**values | tuples)
        except (AttributeError, TypeError) as error:
            raise InputError(f"{wrong}: {error}") from None

    def differing(self, base: Self | None = None) -> list[str]:
        """Return the attributes in which the study differs from ``base``, by default the paper's protocol."""
        other = type(self)() if base is None else base
        names = [entry.name for entry in fields(self)]  # type: ignore[arg-type]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def command(self) -> str:
        """Return the command that runs this study, or a Python call if some setting has no option."""
        differing, known = self.differing(), options_of(type(self))
        if set(differing) - set(known):
            return self.call()
        return self.command_line([name for name in known if name in differing])

    def command_line(self, names: Sequence[str], flags: Sequence[str] = ()) -> str:
        """Return the command with an option for each of these attributes."""
        options = [word for name in names if name != "tf32" for word in (f"--{name}", written(getattr(self, name)))]
        last = ["--no-tf32"] if "tf32" in names else []
        return shlex.join(["paretograd", "reproduce", self.experiment, *flags, *options, *last])

    def call(self) -> str:
        """Return the Python call that runs this study."""
        data = ", data=DATA" if getattr(self, "own_data", None) else ""
        return f"paretograd.experiments.{self.function}({self!r}, FOLDER{data})"


def settle(study: BaseStudy, values: Mapping[str, Any]) -> None:
    """Set plain values on a frozen study: a file cannot hold numpy's numbers or ranges."""
    for name, value in values.items():
        object.__setattr__(study, name, value)


def written(value: object) -> str:
    """Return a value as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Checksum that identifies user-supplied data: SHA-256 of types, shapes and bytes."""
    digest = hashlib.sha256()
    for values in tensors:
        digest.update(f"{values.dtype} {tuple(values.shape)} ".encode())
        digest.update(values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
    """The printed result of a study.

    Attributes:
        title: in bold.
        lines: the protocol, and the meaning of the numbers.
        tables: by their titles, rows of texts by their headings; a single table needs no title.
        legend: definitions of the terms in the tables.
        remarks: what a reader should know before using the numbers.
        claims: of the paper, settled by the results.
        in_short: the result in words for newcomers, printed last.
    """

    title: str
    lines: Sequence[str]
    tables: Mapping[str, Sequence[Mapping[str, str]]]
    legend: str
    remarks: Sequence[str]
    claims: Sequence[Claim] = ()
    in_short: str = ""

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
