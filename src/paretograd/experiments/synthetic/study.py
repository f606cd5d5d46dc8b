"""Studies on test problems as plain data, those of the paper, and the commands that make them."""

from __future__ import annotations

import difflib
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from inspect import signature
from typing import Any

import torch

from paretograd.aggregators.registry import read_rule
from paretograd.checks import whole_number
from paretograd.descent import Aligned, Armijo, Constant, DescentWarning, Monotone, Smooth, StepSize
from paretograd.descent.run import Descent
from paretograd.errors import InputError, ParameterError, ParetogradError, UnknownNameError
from paretograd.experiments.study import Method, Option, checked_seeds, file_names, labels_of
from paretograd.problems.base import Problem
from paretograd.problems.registry import problem

#: Gamma that the table counts iterations to, if the study has no such stop rule.
TARGET = 0.01
_DTYPES = ("float32", "float64")
#: Rules by name. `Constant` is a number.
RULES: dict[str, type[StepSize]] = {"smooth": Smooth, "aligned": Aligned, "monotone": Monotone, "armijo": Armijo}
SEEDS = (24, 42, 48, 100, 123)
#: No method needs more than 18,538 steps.
STEPS = 50_000
LR = "0.001"
#: The authors ran the starred Nash-MTL with five times the step size of the other methods.
AUTHORS_LR = {"nash-mtl*": "0.005"}
_METHODS = ("mgda", "upgrad", "upgrad*", "dualproj", "dualproj*", "nash-mtl", "nash-mtl*")
_POOL = ("mgda", "nash-mtl*", "upgrad*", "dualproj*")
_MIXED = ("mas-rand", "mas-rr(10)", "mas-rr(100)", "mas-rr(500)")


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
    steps: int = field(default=10_000, metadata=Option("Take at most this many steps.", type=int, least=1).metadata)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    figure_seed: int | None = field(
        default=None, metadata=Option("The seed that figures show; the first if not given.", type=int).metadata
    )
    stop_gamma: float = field(
        default=0.01, metadata=Option("Stop a run at a smaller gamma; 0: never.", type=float, least=0.0).metadata
    )
    stop_norm: float = field(
        default=0.01, metadata=Option("Stop a run at a shorter direction; 0: never.", type=float, least=0.0).metadata
    )
    dtype: str = field(default="float64", metadata=Option("Precision: float64 or float32.").metadata)

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
        """Labels of the methods in tables and figures: the paper's names, with parameters if two would be the same."""
        return labels_of(self.methods, self.lr)

    def files(self) -> tuple[str, ...]:
        """File names of the methods, without suffix."""
        return file_names(self.labels())

    def descent(self, method: Method) -> Descent:
        """The descent of one method, before its first step."""
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
        """Take one step with every method, so that mistakes show before anything is written."""
        self.make_problem()
        for label, method in zip(self.labels(), self.methods, strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DescentWarning)
                    self.descent(method).advance(1)
            except ParetogradError as error:
                raise ParameterError(f"{label} cannot run on {self.problem}: {error}") from None

    def plain(self) -> dict[str, Any]:
        """The study as JSON-serialisable values."""
        return asdict(self) | {
            "parameters": dict(self.parameters),
            "methods": [asdict(method) for method in self.methods],
            "seeds": list(self.seeds),
        }

    def command(self) -> str:
        """``paretograd reproduce ...`` for the paper's studies, else ``paretograd run ...`` with all options."""
        found = _in_paper(self)
        if found:
            name, authors_lr = found
            return f"paretograd reproduce {name}" + " --authors-lr" * authors_lr
        defaults = {entry.name: entry.default for entry in fields(Study)}
        words = ["paretograd", "run", self.problem]
        for key, value in self.parameters.items():
            words += ["--param", f"{key}={value}"]
        words += ["--aggregators", ",".join(method.rule for method in self.methods)]
        words += ["--seeds", ",".join(map(str, self.seeds)) + "," * (len(self.seeds) == 1)]
        words += ["--lr", self.lr, "--steps", str(self.steps)]
        for method in self.methods:
            if method.lr != self.lr:
                words += ["--lr-for", f"{method.rule}={method.lr}"]
        for key in ("figure_seed", "stop_gamma", "stop_norm", "dtype"):
            value = getattr(self, key)
            if value != defaults[key]:
                words += [f"--{key.replace('_', '-')}", f"{value}"]
        return shlex.join(words)

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Study:
        """The study from what `plain` returned."""
        try:
            methods = tuple(Method(**method) for method in found["methods"])
            return cls(**dict(found) | {"methods": methods, "seeds": tuple(found["seeds"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not the configuration of a study on a test problem: {error}") from None


def step_size(text: str) -> StepSize:
    """Parse a step size: a number, or the name of a rule."""
    try:
        return Constant(float(text))
    except ParameterError:
        raise
    except ValueError:
        pass
    written = read_rule(text)
    if written.name not in RULES or written.starred:
        near = difflib.get_close_matches(written.name, RULES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"no step size is called {text!r}.{hint} Give a number, or one of {', '.join(RULES)}")
    rule = RULES[written.name]
    try:
        return rule(*written.values, **dict(written.keywords))
    except TypeError as error:
        taken = ", ".join(signature(rule).parameters)
        raise ParameterError(f"{text}: {error}. {written.name} takes {taken}") from None


@dataclass(frozen=True)
class Paper:
    """A study of the paper.

    Attributes:
        title: one line for headings.
        figure: its label in the paper.
        study: what to run.
        published: the paper's iterations until gamma < 0.01 from the shown seed, by the methods' labels.
    """

    title: str
    figure: str
    study: Study
    published: Mapping[str, int] = field(default_factory=dict)


def _study(problem: str, n: int, rules: tuple[str, ...], figure_seed: int) -> Study:
    return Study(
        problem=problem,
        parameters={"n": n},
        methods=tuple(Method(rule, LR) for rule in rules),
        seeds=SEEDS,
        figure_seed=figure_seed,
        steps=STEPS,
        stop_gamma=0.01,
        stop_norm=0.01,
        dtype="float32",
    )


PAPER: dict[str, Paper] = {
    "vlmop2": Paper(
        "Non-conflicting aggregators on VLMOP2",
        "vlmop2_100",
        _study("vlmop2", 4, _METHODS, 100),
        {"MGDA": 7417, "UPGrad": 4043, "DualProj": 4975, "Nash-MTL": 1053},
    ),
    "omnitest": Paper("Non-conflicting aggregators on Omnitest", "", _study("omnitest", 3, _METHODS, 48)),
    "mas": Paper(
        "Mixed aggregator scheduling on Omnitest", "omnitest_mixed_48", _study("omnitest", 3, _POOL + _MIXED, 48)
    ),
}


def paper_study(name: str, authors_lr: bool = False) -> Study:
    """A study of the paper by name.

    Args:
        name: ``vlmop2``, ``omnitest`` or ``mas``.
        authors_lr: run Nash-MTL* with lr 0.005, as the authors did, instead of the 0.001 of the other methods.
    """
    found = PAPER.get(name.strip().lower())
    if found is None:
        raise UnknownNameError(f"no study of the paper is called {name!r}; there are {', '.join(PAPER)}")
    if not authors_lr:
        return found.study
    return replace(
        found.study,
        methods=tuple(Method(method.rule, AUTHORS_LR.get(method.rule, method.lr)) for method in found.study.methods),
    )


def title_of(study: Study) -> str:
    """Title of a study: the paper's, or problem and number of methods."""
    found = _in_paper(study)
    return PAPER[found[0]].title if found else f"{len(study.methods)} methods on {study.make_problem().label}"


def published_for(study: Study) -> Mapping[str, int] | None:
    """The paper's iterations by label; None for a study that is not the paper's."""
    found = _in_paper(study)
    return PAPER[found[0]].published if found else None


def _in_paper(study: Study) -> tuple[str, bool] | None:
    """Name of the equal study of the paper, and whether it has the authors' step sizes; None if there is none."""
    for name in PAPER:
        for authors_lr in (False, True):
            if study == paper_study(name, authors_lr):
                return name, authors_lr
    return None
