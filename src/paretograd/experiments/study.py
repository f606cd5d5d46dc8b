"""What studies of every kind share: methods, seeds and labels, and the study as plain data that a file can hold."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import parse_aggregators
from paretograd.checks import whole_number
from paretograd.errors import InputError, ParameterError

#: Seed of rules that draw random numbers, unless the rule is written with one.
_RULE_SEED = 0
#: The largest that torch, numpy and files of results all take.
_LARGEST_SEED = 2**63 - 1
Kind = TypeVar("Kind")


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
        """A new instance of the rule, with its random state at the start."""
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
    """The paper's names, with parameters if two would be the same, and with step sizes other than the usual one."""
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


def settle(study: Any, values: Mapping[str, Any]) -> None:
    """Set plain values on a frozen study: a file cannot hold numpy's numbers or ranges."""
    for name, value in values.items():
        object.__setattr__(study, name, value)


def to_plain(study: Any, experiment: str) -> dict[str, Any]:
    """A study as JSON-serialisable values, with the name of its experiment; ``own_data`` only if there are any."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(study).items()}
    if not study.own_data:
        del values["own_data"]
    return {"experiment": experiment} | values


def from_plain(
    kind: type[Kind], found: Mapping[str, Any], experiment: str, lists: Mapping[str, Callable[[Any], Any]]
) -> Kind:
    """The study from what `to_plain` returned.

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
    """A value as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Checksum that identifies user-supplied data: SHA-256 of types, shapes and bytes."""
    digest = hashlib.sha256()
    for values in tensors:
        digest.update(f"{values.dtype} {tuple(values.shape)} ".encode())
        digest.update(values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
