"""Studies that train, as plain data: what a file holds, what a person writes, and what differs from the paper's."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from paretograd.aggregators.notation import split_list
from paretograd.errors import InputError

Kind = TypeVar("Kind")


def settle(study: Any, values: Mapping[str, Any]) -> None:
    """Give a frozen study plain values for those that a caller gave: numbers of numpy and ranges are in no file."""
    for name, value in values.items():
        object.__setattr__(study, name, value)


def to_plain(study: Any, experiment: str) -> dict[str, Any]:
    """A study as JSON has it, under the name of its experiment; ``own_data`` only where there are such data."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(study).items()}
    if not study.own_data:
        del values["own_data"]
    return {"experiment": experiment} | values


def from_plain(
    kind: type[Kind], found: Mapping[str, Any], experiment: str, lists: Mapping[str, Callable[[Any], Any]]
) -> Kind:
    """What `to_plain` returned.

    Args:
        kind: class of the study.
        found: its plain values.
        experiment: their name.
        lists: for each attribute that is a tuple, what makes one of its entries.
    """
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if found.get("experiment") != experiment or {*found, "own_data"} - {"experiment"} != names:
        raise InputError(f"this is not the configuration of a {experiment} study")
    try:
        tuples = {name: tuple(make(entry) for entry in found[name]) for name, make in lists.items()}
        return kind(**{name: found[name] for name in names & set(found)} | tuples)
    except TypeError as error:
        raise InputError(f"this is not the configuration of a {experiment} study: {error}") from None


def others(study: Any, base: Any) -> list[str]:
    """Attributes in which two studies differ."""
    return [entry.name for entry in fields(study) if getattr(study, entry.name) != getattr(base, entry.name)]


def command_line(study: Any, experiment: str, names: Sequence[str], flags: Sequence[str] = ()) -> str:
    """The command that makes a study, with an option for each of these attributes."""
    options = [word for name in names if name != "tf32" for word in (f"--{name}", written(getattr(study, name)))]
    last = ["--no-tf32"] if "tf32" in names else []
    return shlex.join(["paretograd", "reproduce", experiment, *flags, *options, *last])


def call(study: Any, function: str) -> str:
    """The call that makes a study for which there is no command."""
    return f"paretograd.experiments.{function}({study!r}, FOLDER{', data=DATA' if study.own_data else ''})"


def written(value: object) -> str:
    """A value as an option of the command has it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_seeds(text: str, such_as: str) -> tuple[int, ...]:
    """Seeds from numbers separated by commas."""
    try:
        return tuple(int(part) for part in split_list(text))
    except ValueError:
        raise InputError(f"--seeds {text!r}: write numbers separated by commas, such as {such_as}") from None
