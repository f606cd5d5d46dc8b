"""Options and runs of the study: the paper's counter-examples as the first step of a descent.

The paper states facts about three gradients g_k. A study needs objectives: f_k(x) = |x + g_k|^2 / 2, whose gradient at
the origin is g_k. The runs start there, so their first step is the counter-example itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paretograd.checks import as_number, whole_number
from paretograd.descent.run import Descent
from paretograd.errors import ParameterError, ParetogradError
from paretograd.experiments.study import METHODS_OPTION, BaseStudy, Method, Option, checked_rules, labels_of, settle
from paretograd.problems.base import Problem

#: The two rules that fail, and rules with a theorem.
METHODS = ("pcgrad", "imtl-g", "pcgrad+", "upgrad", "mgda")
#: The paper's "small positive constant".
Z = 0.1
Row = tuple[float, float, float]


class Example(NamedTuple):
    """A Jacobian of the paper: number, what happens, and one gradient for each row."""

    number: int
    title: str
    rows: tuple[Row, Row, Row]

    @property
    def problem(self) -> Problem:
        """The objectives f_k(x) = |x + g_k|^2 / 2. Each is 1-smooth, and its least value is 0."""
        J = torch.tensor(self.rows, dtype=torch.float64, device="cpu")

        def jacobian(points: Tensor) -> tuple[Tensor, Tensor]:
            rows = points.unsqueeze(-2) + J.to(points)
            return 0.5 * torch.linalg.vecdot(rows, rows), rows

        return Problem(
            name=f"counterexample-{self.number}",
            label=f"Counter-example {self.number}",
            objectives=lambda points: jacobian(points)[0],
            m=3,
            lower=torch.full((3,), -math.inf, device="cpu"),
            upper=torch.full((3,), math.inf, device="cpu"),
            least=(0.0, 0.0, 0.0),
            smoothness=1.0,
            convex=True,
            closed_jacobian=jacobian,
            formula="f_k(x) = |x + g_k|^2 / 2",
        )


def examples(z: float = Z) -> tuple[Example, Example, Example]:
    """Return the paper's Jacobians. ``z`` is the third coordinate of the gradients in the first one."""
    root, left, right = math.sqrt(3.0), (8.660254, -5.0, 0.0), (-8.660254, -5.0, 0.0)
    small = ((0.8660254, -0.5, 0.0), (-0.8660254, -0.5, 0.0))
    third = (0.0, -0.99498744, 0.1)
    return (
        Example(1, "PCGrad conflicts with one gradient", ((1.0, root, z), (-2.0, 0.0, z), (1.0, -root, z))),
        Example(2, "IMTL-G conflicts with all gradients", (left, right, third)),
        Example(3, "IMTL-G leaves the cone: two rows of example 2 divided by 10", (*small, third)),
    )


class Case(NamedTuple):
    """A rule on an example: one run."""

    rule: str
    method: str
    example: Example

    @property
    def label(self) -> str:
        """``PCGrad, example 1``."""
        return f"{self.method}, example {self.example.number}"


@dataclass(frozen=True, kw_only=True)
class CounterexampleStudy(BaseStudy):
    """Several rules on the paper's counter-examples.

    Attributes:
        methods: rules as a person writes them: ``pcgrad``, ``upgrad*``.
        z: third coordinate of the gradients of the first example.
        steps: at most this many.
        lr: their size.
        stop_gamma: a run stops where its gamma is below this.
    """

    experiment = "counterexamples"
    function = "counterexamples.run_counterexamples"

    methods: tuple[str, ...] = field(default=METHODS, metadata=METHODS_OPTION.metadata)
    z: float = field(
        default=Z, metadata=Option(f"Third coordinate in PCGrad's example: {Z:g} if not given.", type=float).metadata
    )
    steps: int = 500
    lr: float = 0.01
    stop_gamma: float = 0.01

    def __post_init__(self) -> None:
        settle(self, {"methods": checked_rules(self.methods), "steps": whole_number("study", "steps", self.steps)})
        settle(self, {name: as_number(getattr(self, name), name) for name in ("z", "lr", "stop_gamma")})
        for name in ("z", "lr"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name}={getattr(self, name):g}: a finite number, above 0")

    def cases(self) -> tuple[Case, ...]:
        """Return the runs, example after example."""
        names = labels_of([Method(rule, "") for rule in self.methods], "")
        pairs = list(zip(self.methods, names, strict=True))
        return tuple(Case(rule, name, example) for example in examples(self.z) for rule, name in pairs)

    def labels(self) -> tuple[str, ...]:
        """Return the labels of the runs."""
        return tuple(case.label for case in self.cases())

    def descent(self, case: Case) -> Descent:
        """Return a run before its first step. The number of its example serves as its seed."""
        return Descent(
            case.example.problem,
            Method(case.rule).aggregator(),
            self.lr,
            self.steps,
            seeds=(case.example.number,),
            starts=torch.zeros(1, 3, dtype=torch.float64, device="cpu"),
            stop_gamma=self.stop_gamma,
        )

    def rehearse(self) -> None:
        """Take one step with every rule, so that mistakes show before anything is written."""
        for case in self.cases():
            try:
                self.descent(case).advance(1)
            except ParetogradError as error:
                raise ParameterError(f"{case.label}: the rule cannot run: {error}") from None
