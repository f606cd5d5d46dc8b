"""What is trained: rules, seeds, steps and the two choices of the benchmark, as plain data that a file can hold."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.notation import split_list
from paretograd.checks import as_number
from paretograd.errors import ParameterError, ParetogradError
from paretograd.experiments.fairness.paper import BEYOND, FIGURE_SEED, LR, SEEDS, STEPS, STOP, TABLE, UNSTABLE
from paretograd.experiments.fairness.training import Setting
from paretograd.experiments.names import file_names
from paretograd.experiments.plain import from_plain, others, read_seeds, to_plain, written
from paretograd.experiments.study import Method, checked_seeds, labels_of
from paretograd.problems.checks import whole_number
from paretograd.problems.fairness.adult import Scaling
from paretograd.problems.fairness.objectives import Gaps

#: Gradients of three objectives for a rehearsal, in conflict.
_TRIAL = ((2.0, -1.0, 0.5), (-1.0, 1.0, 0.1), (0.5, 0.1, 3.0))
#: What the command has an option for.
_OPTIONS = ("methods", "seeds", "steps", "gaps", "scaling")


@dataclass(frozen=True, kw_only=True)
class FairnessStudy:
    """Several rules that train the same classifier on Adult; the defaults are the paper's protocol.

    Attributes:
        methods: rules as a person writes them: ``upgrad*``, ``mas-rr(1000)``, ``capped-mgda(cap=0.5)``.
        seeds: of the classifier's initialisation, one run for each.
        steps: at most this many.
        lr: their size.
        stop: a run is done where gamma or the length of the direction is below it; 0 for no such rule.
        gaps: ``sums`` as the benchmark has them, or ``means``: equalized odds, smoothed.
        scaling: standardise by ``all`` rows as the benchmark does, or by the ``train`` rows.
        tf32: whether matrix products on a GPU may round to TF32; of no meaning on a CPU.
        width: of the hidden layers.
    """

    methods: tuple[str, ...] = (*TABLE, *UNSTABLE, *BEYOND)
    seeds: tuple[int, ...] = SEEDS
    steps: int = STEPS
    lr: float = LR
    stop: float = STOP
    gaps: Gaps = "sums"
    scaling: Scaling = "all"
    tf32: bool = True
    width: int = 256

    def __post_init__(self) -> None:
        if not self.methods:
            raise ParameterError("a study has at least one method, such as mgda")
        checked_seeds(self.seeds)
        whole_number("study", "steps", self.steps)
        whole_number("study", "width", self.width)
        for name, least in (("lr", math.ulp(0.0)), ("stop", 0.0)):
            value = as_number(getattr(self, name), name)
            if not least <= value < math.inf:
                raise ParameterError(f"{name}={value:g}: a finite number, {'above' if least else 'at least'} 0")
        for name, choices in (("gaps", get_args(Gaps)), ("scaling", get_args(Scaling))):
            if getattr(self, name) not in choices:
                raise ParameterError(f"{name}={getattr(self, name)!r}: use {' or '.join(choices)}")

    @property
    def shown_seed(self) -> int:
        """The seed that figures show: the paper's, or the first."""
        return FIGURE_SEED if FIGURE_SEED in self.seeds else self.seeds[0]

    def aggregator(self, rule: str) -> Aggregator:
        """A rule, new, with its draws at their beginning."""
        return Method(rule).aggregator()

    def labels(self) -> tuple[str, ...]:
        """What tables and figures call the methods."""
        return labels_of([Method(rule, "") for rule in self.methods], "")

    def files(self) -> tuple[str, ...]:
        """What the files of the methods are called, without a suffix."""
        return file_names(self.labels())

    def setting(self) -> Setting:
        """What stays the same over a training."""
        return Setting(self.seeds, self.lr, self.steps, self.stop, self.gaps, self.tf32, self.width)

    def rehearse(self) -> None:
        """Let every rule weigh three gradients, so that what cannot work fails before anything is written."""
        for label, rule in zip(self.labels(), self.methods, strict=True):
            try:
                self.aggregator(rule).weights(torch.tensor(_TRIAL, dtype=torch.float64, device="cpu"))
            except ParetogradError as error:
                raise ParameterError(f"{label} cannot weigh three objectives: {error}") from None

    def plain(self) -> dict[str, Any]:
        """The study as JSON has it."""
        return to_plain(self, "fairness")

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> FairnessStudy:
        """What `plain` returned."""
        return from_plain(cls, found, "fairness", {"methods": str, "seeds": lambda seed: seed})

    def changes(self) -> dict[str, str]:
        """What differs from the paper's protocol, but for the list of methods: name to value."""
        names = [name for name in others(self, FairnessStudy()) if name not in ("methods", "tf32")]
        return {name: written(getattr(self, name)) for name in names}

    def command(self) -> str:
        """What makes this study: a command, or a call where it has no option for something."""
        other = others(self, FairnessStudy())
        if set(other) - {*_OPTIONS, "tf32"}:
            return f"paretograd.experiments.fairness.run_fairness({self!r}, FOLDER)"
        words = ["paretograd", "reproduce", "fairness"]
        for name in _OPTIONS:
            if name in other:
                words += [f"--{name}", written(getattr(self, name))]
        return shlex.join([*words, "--no-tf32"] if "tf32" in other else words)


def read_study(
    methods: str | None = None, seeds: str | None = None, steps: int | None = None, **more: Any
) -> FairnessStudy:
    """A study from what a person writes on a command line; None is the paper's protocol.

    Args:
        methods: rules separated by commas.
        seeds: numbers separated by commas.
        steps: at most this many.
        **more: other attributes of `FairnessStudy`.
    """
    given: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
    if methods is not None:
        given["methods"] = tuple(split_list(methods))
    if seeds is not None:
        given["seeds"] = read_seeds(seeds, "24,42")
    if steps is not None:
        given["steps"] = steps
    return FairnessStudy(**given)
