"""What a study is: methods, a problem, seeds and when to stop, as plain data that a file can hold."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import parse_aggregators
from paretograd.checks import whole_number
from paretograd.descent import DescentWarning
from paretograd.descent.run import Descent
from paretograd.errors import InputError, ParameterError, ParetogradError
from paretograd.experiments.names import file_names
from paretograd.experiments.step_rules import step_size
from paretograd.problems.base import Problem
from paretograd.problems.registry import problem

#: Gamma that the table counts iterations to where the study does not stop at one.
TARGET = 0.01
#: Seed of rules that draw random numbers, unless the rule is written with one.
_RULE_SEED = 0
#: The largest that torch, numpy and files of results all take.
_LARGEST_SEED = 2**63 - 1
_DTYPES = ("float32", "float64")


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
        """The rule, new, with its draws at their beginning."""
        rules = parse_aggregators(self.rule, seed=_RULE_SEED)
        if len(rules) != 1:
            raise ParameterError(f"a method has one rule; {self.rule!r} names {len(rules)}")
        return rules[0]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Several methods on one problem, each from the same starts.

    Attributes:
        problem: its name.
        methods: what is compared.
        seeds: one start for each, by `Problem.start`.
        steps: at most this many.
        parameters: of the problem, such as ``{"n": 4}``.
        figure_seed: the run that figures and final losses show; None takes the first seed.
        stop_gamma: a run stops where its gamma is below this; 0 for no such rule.
        stop_norm: a run stops where its direction is shorter than this; 0 for no such rule.
        dtype: of points, losses and gradients, ``float32`` or ``float64``.
    """

    problem: str
    methods: tuple[Method, ...]
    seeds: tuple[int, ...] = (0,)
    steps: int = 10_000
    parameters: Mapping[str, Any] = field(default_factory=dict)
    figure_seed: int | None = None
    stop_gamma: float = 0.01
    stop_norm: float = 0.01
    dtype: str = "float64"

    def __post_init__(self) -> None:
        whole_number("study", "steps", self.steps)
        if not self.methods:
            raise ParameterError("a study has at least one method, such as Method('mgda')")
        seeds = checked_seeds(self.seeds)
        if self.figure_seed is not None and self.figure_seed not in seeds:
            raise ParameterError(
                f"the figure's seed {self.figure_seed} is none of the seeds {', '.join(map(str, seeds))}"
            )
        if self.dtype not in _DTYPES:
            raise ParameterError(f"dtype={self.dtype!r}: use {' or '.join(_DTYPES)}")

    @property
    def shown_seed(self) -> int:
        """The seed that figures and final losses show."""
        return self.seeds[0] if self.figure_seed is None else self.figure_seed

    @property
    def target(self) -> float:
        """Gamma that the table counts iterations to."""
        return self.stop_gamma or TARGET

    @property
    def lr(self) -> str:
        """The step size that most methods have."""
        return Counter(method.lr for method in self.methods).most_common(1)[0][0]

    def make_problem(self) -> Problem:
        """The problem itself."""
        return problem(self.problem, **self.parameters)

    def labels(self) -> tuple[str, ...]:
        """What tables and figures call the methods: the paper's names, with what tells two of one name apart."""
        return labels_of(self.methods, self.lr)

    def files(self) -> tuple[str, ...]:
        """What the files of the methods are called, without a suffix."""
        return file_names(self.labels())

    def descent(self, method: Method) -> Descent:
        """The loop of one method, at its start."""
        return Descent(
            self.make_problem(),
            method.aggregator(),
            step_size(method.lr),
            self.steps,
            seeds=self.seeds,
            stop_gamma=self.stop_gamma,
            stop_norm=self.stop_norm,
            dtype=getattr(torch, self.dtype),
        )

    def rehearse(self) -> None:
        """Take one step with every method, so that what cannot work fails before anything is written."""
        self.make_problem()
        for label, method in zip(self.labels(), self.methods, strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DescentWarning)
                    self.descent(method).advance(1)
            except ParetogradError as error:
                raise ParameterError(f"{label} cannot run on {self.problem}: {error}") from None

    def plain(self) -> dict[str, Any]:
        """The study as JSON has it."""
        return asdict(self) | {
            "parameters": dict(self.parameters),
            "methods": [asdict(method) for method in self.methods],
            "seeds": list(self.seeds),
        }

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Study:
        """What `plain` returned."""
        try:
            methods = tuple(Method(**method) for method in found["methods"])
            return cls(**dict(found) | {"methods": methods, "seeds": tuple(found["seeds"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not the configuration of a study on a test problem: {error}") from None


def checked_seeds(given: object) -> list[int]:
    """Whole numbers, at least one, and none twice; torch takes a negative one for one of the largest, too."""
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
    """The paper's names, with what tells two of one name apart, and step sizes that are not the usual one."""
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
