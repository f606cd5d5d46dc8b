"""The studies of the paper's synthetic experiments, by the authors' protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paretograd.errors import UnknownNameError
from paretograd.experiments.study import Method, Study

SEEDS = (24, 42, 48, 100, 123)
#: No method needs more than 18,538 steps.
STEPS = 50_000
LR = "0.001"
#: The authors ran the starred Nash-MTL with five times the step size of the other methods.
AUTHORS_LR = {"nash-mtl*": "0.005"}

_METHODS = ("mgda", "upgrad", "upgrad*", "dualproj", "dualproj*", "nash-mtl", "nash-mtl*")
_POOL = ("mgda", "nash-mtl*", "upgrad*", "dualproj*")
_MIXED = ("mas-rand", "mas-rr(10)", "mas-rr(100)", "mas-rr(500)")


@dataclass(frozen=True)
class Paper:
    """A study of the paper.

    Attributes:
        title: one line for headings.
        figure: its label in the paper.
        study: what to run.
    """

    title: str
    figure: str
    study: Study


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
    "vlmop2": Paper("Non-conflicting aggregators on VLMOP2", "vlmop2_100", _study("vlmop2", 4, _METHODS, 100)),
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
