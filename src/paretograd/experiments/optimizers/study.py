"""Options of the study: which problems, rules, optimizers and modes are compared, and for how long each run trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paretograd.checks import as_number
from paretograd.errors import ParameterError, ParetogradError
from paretograd.experiments.optimizers import digits
from paretograd.experiments.optimizers.physics import PHYSICS
from paretograd.experiments.study import (
    METHODS_OPTION,
    SEEDS_OPTION,
    BaseStudy,
    Job,
    Method,
    Option,
    checked_rules,
    checked_seeds,
    labels_of,
    read_list,
    settle,
)


class Problem(NamedTuple):
    """A problem as tables show it: its title, and the names of its losses."""

    title: str
    losses: tuple[str, ...]


MULTI_MNIST = "multi-mnist"
PROBLEMS = {
    name: Problem(found.title, tuple(part.name for part in found.conditions)) for name, found in PHYSICS.items()
}
PROBLEMS[MULTI_MNIST] = Problem(digits.TITLE, digits.LOSSES)
#: The data of a batch: new ones for every step, or the same for all steps of a run.
BATCHES = {"fresh": "fresh batches", "full": "full batches"}
#: How a rule and an optimizer are combined.
MODES = {"plain": "plain", "metric": "in the metric", "projected": "projected"}
METHODS = ("mean", "upgrad", "config", "mgda")
SEEDS = (0, 1, 2, 3, 4)
#: The seed of the runs that choose the learning rate.
TUNING_SEED = 100
#: Seconds of CPU time of a run.
BUDGET = 9.0


class Optimizer(NamedTuple):
    """An optimizer: its name in tables, how it is made, and the learning rates to choose from."""

    title: str
    make: Callable[[list[Tensor], float], torch.optim.Optimizer]
    rates: tuple[float, ...]


_ADAM_RATES = (0.001, 0.004, 0.016, 0.064)
OPTIMIZERS = {
    "sgd": Optimizer("SGD", lambda params, lr: torch.optim.SGD(params, lr, momentum=0.9), (1e-4, 1e-3, 1e-2, 1e-1)),
    "adam": Optimizer("Adam", torch.optim.Adam, _ADAM_RATES),
    "adamw": Optimizer("AdamW", torch.optim.AdamW, _ADAM_RATES),
}


class Case(NamedTuple):
    """A setting that is trained with several learning rates and seeds.

    Attributes:
        problem, batches, rule, optimizer, mode: as on the command line.
        rule_label: the paper's name of the rule.
    """

    problem: str
    batches: str
    rule: str
    optimizer: str
    mode: str
    rule_label: str

    @property
    def task(self) -> str:
        """``Burgers, fresh batches``."""
        return f"{PROBLEMS[self.problem].title}, {BATCHES[self.batches]}"

    @property
    def method(self) -> str:
        """``UPGrad, Adam, projected``."""
        return f"{self.rule_label}, {OPTIMIZERS[self.optimizer].title}, {MODES[self.mode]}"

    @property
    def label(self) -> str:
        """``Burgers, fresh batches: UPGrad, Adam, projected``."""
        return f"{self.task}: {self.method}"

    @property
    def plain(self) -> Case:
        """The setting that this one is compared with."""
        return self._replace(mode="plain")

    @property
    def repeats(self) -> bool:
        """Return True if this is the plain mode: the mean ignores the Gramian, and the metric of SGD is Euclidean."""
        return self.mode == "metric" and (self.optimizer == "sgd" or self.rule_label == "Mean")

    @property
    def too_large(self) -> bool:
        """Return True for a full batch of the pairs of digits, of which there are billions."""
        return self.problem == MULTI_MNIST and self.batches == "full"


def _choice(name: str, known: Iterable[str]) -> Option:
    return Option(f"Only these, separated by commas: {','.join(known)}.", name.upper(), read=read_list)


_PROBLEMS_OPTION = Option(
    f"Separated by commas: {','.join(PROBLEMS)}. If not given, those that need no data.", "PROBLEMS", read=read_list
)


@dataclass(frozen=True, kw_only=True)
class OptimizerStudy(BaseStudy):
    """Rules combined with optimizers, in equal CPU time.

    Attributes:
        problems: by name; by default those that need no data.
        batches: ``fresh`` draws new data for every step, ``full`` keeps the same, four times as many.
            ``multi-mnist`` has fresh ones only.
        methods: rules as a person writes them: ``upgrad``, ``capped-mgda(cap=0.5)``.
        optimizers: by name.
        modes: ``plain`` passes the rule's direction to the optimizer, ``metric`` computes the rule's weights in the
            optimizer's metric, ``projected`` also projects the update.
        seeds: of the reported runs.
        budget: seconds of CPU time of each run.
    """

    experiment = "optimizers"
    function = "optimizers.run_optimizers"

    problems: tuple[str, ...] = field(default=tuple(PHYSICS), metadata=_PROBLEMS_OPTION.metadata)
    batches: tuple[str, ...] = field(default=tuple(BATCHES), metadata=_choice("batches", BATCHES).metadata)
    methods: tuple[str, ...] = field(default=METHODS, metadata=METHODS_OPTION.metadata)
    optimizers: tuple[str, ...] = field(default=tuple(OPTIMIZERS), metadata=_choice("optimizers", OPTIMIZERS).metadata)
    modes: tuple[str, ...] = field(default=tuple(MODES), metadata=_choice("modes", MODES).metadata)
    seeds: tuple[int, ...] = field(default=SEEDS, metadata=SEEDS_OPTION.metadata)
    budget: float = field(
        default=BUDGET,
        metadata=Option(f"CPU time of a run: {BUDGET:g} if not given.", "SECONDS", type=float, read=float).metadata,
    )

    def __post_init__(self) -> None:
        for name, known in (
            ("problems", PROBLEMS),
            ("batches", BATCHES),
            ("optimizers", OPTIMIZERS),
            ("modes", MODES),
        ):
            given = getattr(self, name)
            chosen = () if isinstance(given, str) else tuple(given)
            if not chosen or not set(chosen) <= set(known) or len(set(chosen)) < len(chosen):
                raise ParameterError(f"{name}={given!r}: use some of {', '.join(known)}, each once")
            settle(self, {name: chosen})
        if set(self.problems) == {MULTI_MNIST} and "fresh" not in self.batches:
            raise ParameterError(
                f"{MULTI_MNIST} has fresh batches only; batches={','.join(self.batches)} leaves no run"
            )
        settle(self, {"methods": checked_rules(self.methods), "seeds": tuple(checked_seeds(self.seeds))})
        if TUNING_SEED in self.seeds:
            raise ParameterError(f"seed {TUNING_SEED} chooses the learning rates; report other seeds")
        settle(self, {"budget": float(as_number(self.budget, "budget"))})
        if not 0.0 < self.budget < math.inf:
            raise ParameterError(f"budget={self.budget:g}: seconds, finite and above 0")

    def cases(self) -> tuple[Case, ...]:
        """Return the settings, less modes that coincide with the plain one and batches that are too large."""
        rules = list(zip(self.methods, labels_of([Method(rule) for rule in self.methods], Method.lr), strict=True))
        every = (
            Case(problem, batches, rule, optimizer, mode, label)
            for problem in self.problems
            for batches in self.batches
            for rule, label in rules
            for optimizer in self.optimizers
            for mode in self.modes
        )
        return tuple(case for case in every if not case.repeats and not case.too_large)

    @property
    def runs_of_a_case(self) -> int:
        """Number of runs of each setting: those that choose the learning rate, and the reported ones."""
        return len(OPTIMIZERS["sgd"].rates) + len(self.seeds)

    def labels(self) -> tuple[str, ...]:
        """Return the labels of the settings."""
        return tuple(case.label for case in self.cases())

    def jobs(self) -> tuple[Job, ...]:
        """Return one job, with a result for each setting: settings are trained side by side."""
        files = self.files()
        return (Job(f"{len(files)} settings", "settings", files),)

    def rehearse(self) -> None:
        """Let every rule combine as many gradients as the problems have losses; called before anything is written."""
        for case in self.cases():
            m = len(PROBLEMS[case.problem].losses)
            try:
                Method(case.rule).aggregator()(torch.eye(m, dtype=torch.float64, device="cpu"))
            except ParetogradError as error:
                raise ParameterError(f"{case.label}: the rule cannot run: {error}") from None
