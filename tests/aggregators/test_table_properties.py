"""Rules with a memory, or that need more than a Gramian: every "yes" of the table of rules, on histories.

`test_properties` checks what a rule without memory promises for a Jacobian. Here the rule has taken steps before, sees
the losses and other batches, and has learned numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from support.families import FAMILIES
from support.promises import NEGLIGIBLE
from support.scalarizations import ROWS as FUNCTIONS
from support.scalarizations import slopes
from support.table import ROWS as TESTED
from torch import Tensor

import paretograd as pg
from paretograd.guarantees import STEP
from paretograd.reports.rules.rows import ROWS, RowSpec
from paretograd.reports.rules.steps import Step, direction, make_rule
from paretograd.scalarizations.base import Weighting

#: A dozen float64 operations on numbers of about one. Weights from QPs and pseudo-inverses lose some digits of these.
ROUNDING = 1e-9

NAMES = ("gaussian", "conflicting", "duplicate_rows", "rank_deficient_acute", "zero_rows", "opposite_rows")

_SIMPLE = {repr(row.make()) for row in TESTED}
#: Rules with a memory, and those that the shared table does not have.
FURTHER = [spec for spec in ROWS if spec.state or repr(spec.make()) not in _SIMPLE]


def promising(*flags: str) -> pytest.MarkDecorator:
    kept = [spec for spec in FURTHER if any(getattr(spec.make().guarantee, flag) for flag in flags)]
    return pytest.mark.parametrize("spec", kept, ids=lambda spec: spec.rule)


def history(name: str, m: int, n: int, seed: int) -> list[Step]:
    """Zero to three steps and a last one, all of a family, with losses from 0.1 to 3."""
    rng = np.random.default_rng([m, n, seed])

    def jacobian() -> Tensor:
        return FAMILIES[name].make(m, n, int(rng.integers(1000)))

    def step() -> Step:
        losses = torch.from_numpy(rng.uniform(0.1, 3.0, m))
        return Step(jacobian(), losses, (jacobian(), jacobian()), torch.from_numpy(rng.standard_normal(m)))

    return [step() for _ in range(rng.integers(4) + 1)]


def scenes(spec: RowSpec, names: tuple[str, ...] = NAMES) -> Iterator[list[Step]]:
    for name in names:
        for m, n in ((3, 4), (5, 8)):
            for seed in range(2):
                yield history(name, m, n, seed)


def taken(spec: RowSpec, steps: list[Step]) -> Tensor:
    return direction(make_rule(spec.rule, len(steps[-1].losses)), steps)


def is_rounding(J: Tensor, d: Tensor) -> bool:
    """A Gramian resolves lengths to the square root of 2e-16: a shorter direction is rounding, and so is its angle."""
    return bool(d.norm() <= NEGLIGIBLE * J.norm(dim=1).max())


def distance(J: Tensor, d: Tensor, whole: bool) -> float:
    """Return the distance of d from the cone of the gradients, or from their hull, relative to the gradients."""
    A: NDArray[np.float64] = (J / max(float(J.norm(dim=1).max()), 1e-300)).numpy().T
    b = (d / max(float(J.norm(dim=1).max()), 1e-300)).numpy()
    if whole:  # the equation sum w = 1, with a weight that does not hide the others
        A, b = np.vstack([A, np.ones(len(J))]), np.append(b, 1.0)
    return float(nnls(A, b)[1]) / max(1.0, float(np.linalg.norm(b)))


@promising("in_cone")
def test_in_the_cone(spec: RowSpec) -> None:
    for steps in scenes(spec):
        assert distance(steps[-1].jacobian, taken(spec, steps), whole=False) <= ROUNDING


@promising("in_hull")
def test_in_the_hull(spec: RowSpec) -> None:
    for steps in scenes(spec):
        d = taken(spec, steps)
        if d.any():  # the zero direction is the answer at stationary points
            assert distance(steps[-1].jacobian, d, whole=True) <= ROUNDING


@promising("non_conflicting")
def test_no_conflict(spec: RowSpec) -> None:
    for steps in scenes(spec):
        J, d = steps[-1].jacobian, taken(spec, steps)
        if is_rounding(J, d):
            continue
        assert (J @ d >= -ROUNDING * J.norm(dim=1) * d.norm()).all()


@promising("beyond_hull", "long")
def test_at_least_as_long_as_gamma(spec: RowSpec) -> None:
    for steps in scenes(spec):
        J = steps[-1].jacobian
        gamma = float(pg.stationarity(pg.gramian(J)))
        assert taken(spec, steps).norm() >= gamma * (1.0 - ROUNDING) - NEGLIGIBLE * J.norm(dim=1).max()


#: The independent F of each scalarization, in 80 digits, by the name of the rule.
OWN_F = {
    "weighted-sum": "sum",
    "p-norm": "2-norm",
    **{name: name for name in ("gls", "log-sum", "tchebycheff", "stch", "pbi", "cosmos", "uncertainty", "imtl-l")},
}


@promising("alignment")
def test_condition_a(spec: RowSpec) -> None:
    for steps in scenes(spec):
        steps = [Step(step.jacobian, step.losses, step.batches) for step in steps]
        J, d, promise = steps[-1].jacobian, taken(spec, steps), spec.make().guarantee
        if promise.F == STEP:
            function = FUNCTIONS[OWN_F[spec.rule]].F
            assert function is not None
            phi = torch.tensor(slopes(function, steps[-1].losses.tolist()), dtype=torch.float64)
        else:
            phi = torch.from_numpy(promise.F.phi(len(J)))
        assert promise.alignment is not None
        if is_rounding(J, d):
            continue
        slack = ROUNDING * phi.abs().sum() * J.norm(dim=1).max() * d.norm()
        assert d @ (phi @ J) >= promise.alignment * (d @ d) - slack


def compared(spec: RowSpec, change: Callable[[Step], Step], equal: Callable[[Tensor, Tensor], bool]) -> None:
    for steps in scenes(spec, NAMES[:4]):
        d, changed = taken(spec, steps), taken(spec, list(map(change, steps)))
        assert equal(d, changed), (steps, d, changed)


def near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= ROUNDING * max(a.norm(), b.norm()))


@pytest.mark.parametrize("power", [-50, -17, 1, 50])
@pytest.mark.parametrize(
    "spec", [spec for spec in FURTHER if spec.make().guarantee.degree is not None], ids=lambda spec: spec.rule
)
def test_degree(spec: RowSpec, power: int) -> None:
    """All losses times a power of two, from the first step on."""
    t, degree = 2.0**power, spec.make().guarantee.degree
    assert degree is not None
    compared(spec, lambda step: step.times(torch.full_like(step.losses, t)), lambda d, e: near(t**degree * d, e))


@promising("equivariant")
def test_the_order_does_not_matter(spec: RowSpec) -> None:
    def turned(step: Step) -> Step:
        m = len(step.losses)
        return step.ordered([(2 * k + 1) % m for k in range(m)])  # m is odd

    compared(spec, turned, near)


@promising("scale_invariant")
def test_scales_of_losses_do_not_matter(spec: RowSpec) -> None:
    def rescaled(step: Step) -> Step:
        return step.times(torch.exp2(torch.arange(-4.0, 100.0, 3.0, dtype=torch.float64)[: len(step.losses)]))

    compared(spec, rescaled, lambda d, e: near(d / d.norm(), e / e.norm()))


@promising("continuous_inside")
def test_continuity(spec: RowSpec) -> None:
    """A(J + t E) approaches A(J) as t vanishes; the losses move, too."""
    everywhere = spec.make().guarantee.continuous
    rng = np.random.default_rng(1)
    for steps in scenes(spec):
        last = steps[-1]
        if not everywhere and float(pg.stationarity(pg.gramian(last.jacobian))) < 0.01 * last.jacobian.norm():
            continue
        E, e = (
            torch.from_numpy(rng.integers(-1, 2, tuple(shape)).astype(float))
            for shape in (last.jacobian.shape, last.losses.shape)
        )

        def moved(t: float, last: Step = last, E: Tensor = E, e: Tensor = e) -> Step:
            batches = tuple(J + t * E for J in last.batches)
            return Step(last.jacobian + t * E, last.losses + t * e, batches, last.learned)

        d = taken(spec, steps)
        far, close = ((taken(spec, [*steps[:-1], moved(2.0**-power)]) - d).norm() for power in (6, 24))
        assert close <= max(far / 2.0, 1e-4 * d.norm(), 1e-12), (steps, E)


def test_every_rule_of_the_table_is_tested() -> None:
    """A rule without memory is in the shared table, whose properties `test_properties` checks, or here."""
    for spec in ROWS:
        assert spec in FURTHER or repr(spec.make()) in _SIMPLE
    assert {spec.rule for spec in FURTHER if isinstance(spec.make(), Weighting)} == {
        *OWN_F,
        "dwa",
        "rlw(seed=0)",
        "famo",
    }
    assert all(spec in FURTHER for spec in ROWS if spec.needs not in ("nothing", "Gramian"))
