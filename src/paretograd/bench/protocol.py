"""The protocol of a task as data: what is trained, and how hyper-parameters are chosen."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from paretograd.bench.networks import OPTIMIZERS
from paretograd.bench.roster import RULES, draw, make, single
from paretograd.bench.task import Task
from paretograd.bench.training import Trial
from paretograd.checks import whole_number
from paretograd.errors import InputError, ParameterError
from paretograd.experiments.study import file_names

#: Stands for the rules that see one loss alone, one for each loss.
SINGLE = "single"
#: Seed of the networks that choose hyper-parameters; the reported networks have the seeds 1, 2, ...
TUNING_SEED = 0


@dataclass(frozen=True)
class Setting:
    """A rule with an optimizer: what has hyper-parameters of its own.

    Attributes:
        rule: its name.
        optimizer: its name.
    """

    rule: str
    optimizer: str

    @property
    def label(self) -> str:
        """In the progress display."""
        return f"{self.rule}, {self.optimizer}"

    @property
    def file(self) -> str:
        """Name of its files, without suffix."""
        return file_names([f"{self.rule} {self.optimizer}"])[0]


@dataclass(frozen=True)
class Protocol:
    """How a task is run. All settings of a task have the same budget.

    Attributes:
        task: its name, ``module:Class``, or a file.
        small: take the variant for two CPU cores.
        made: train on invented rows, to try the benchmark without the data.
        trials: number of pairs of a learning rate and a value of the rule's dial, of which validation rows choose one.
        seeds: number of networks that are trained with the chosen pair.
        steps: number of training steps; None for those of the task.
    """

    task: str
    small: bool = False
    made: bool = False
    trials: int = 10
    seeds: int = 5
    steps: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seeds", 1), ("steps", 1)):
            value = getattr(self, name)
            if value is not None:
                whole_number("protocol", name, value, least)

    def plain(self) -> dict[str, Any]:
        """Return the protocol as JSON-serialisable values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Protocol:
        """Rebuild a protocol from the result of `plain`."""
        if set(found) != {entry.name for entry in fields(cls)}:
            raise InputError("this is not the protocol of a benchmark")
        return cls(**found)

    def search(self, setting: Setting, task: Task) -> list[Trial]:
        """Return the trials of a setting: a random search, the same in every call.

        The learning rates are stratified: one in each of as many intervals of equal ratio. They are the same for all
        rules. The values of the dial are stratified likewise, in an order of their own.
        """
        if setting.optimizer not in task.rates:
            raise ParameterError(f"{task.name} has no learning rates for {setting.optimizer!r}")
        low, high = task.rates[setting.optimizer]
        rates = low * (high / low) ** _strata(self.trials, _generator(setting.optimizer))
        rng = _generator(setting.rule, setting.optimizer)
        dials, m = _strata(self.trials, rng), len(task.objectives)
        rules = [draw(setting.rule, float(u), m, rng) for u in dials]
        return [Trial(rule, float(f"{rate:.4g}"), TUNING_SEED) for rule, rate in zip(rules, rates, strict=True)]

    def finals(self, chosen: Trial) -> list[Trial]:
        """Return the trials with the chosen hyper-parameters, one for each reported network."""
        return [chosen._replace(seed=seed) for seed in range(TUNING_SEED + 1, TUNING_SEED + 1 + self.seeds)]


def settings_of(rules: Sequence[str], optimizers: Sequence[str], task: Task) -> list[Setting]:
    """Return the settings of a task for these rules; ``single`` stands for one rule for each loss.

    Args:
        rules: names; empty for all, with the reference of the task.
        optimizers: names; empty for all.
        task: what is trained.
    """
    asked = list(rules) or [*([SINGLE] if task.single else []), *RULES]
    m = len(task.objectives)
    every = [name for rule in asked for name in ([single(k) for k in range(m)] if rule == SINGLE else [rule])]
    unknown = [name for name in optimizers if name not in OPTIMIZERS]
    if unknown:
        raise ParameterError(f"no optimizer of the benchmark is called {unknown[0]!r}; use {' or '.join(OPTIMIZERS)}")
    for name in dict.fromkeys(every):
        if name not in RULES:
            make(name, m, 0)  # names that are not known raise an error
    return [Setting(rule, optimizer) for rule in dict.fromkeys(every) for optimizer in (optimizers or OPTIMIZERS)]


def _strata(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random number in each of ``count`` intervals of equal length of [0, 1], in random order."""
    return (rng.permutation(count) + rng.random(count)) / count


def _generator(*words: str) -> np.random.Generator:
    return np.random.default_rng([TUNING_SEED, zlib.crc32(" ".join(words).encode())])
