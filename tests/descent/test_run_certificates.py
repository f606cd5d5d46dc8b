"""The theorems on whole runs: they hold where they speak, say so where they do not, and notice a wrong constant."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import paretograd as pg
from paretograd.aggregators.registry import SCHEDULES
from paretograd.cli.app import app
from paretograd.descent import Aligned, Armijo, DescentWarning, Monotone, Smooth, StepSize, Stop
from paretograd.reports.roster import build

PROBLEMS = {
    "vlmop2": lambda: pg.problem("vlmop2"),
    "quadratic, m = 2": lambda: pg.problem("quadratic", m=2),
    "quadratic, m = 3": lambda: pg.problem("quadratic", m=3, n=6, angle=150.0),
    "quadratic, m = 5": lambda: pg.problem("quadratic", m=5),
}


def rules() -> list[str]:
    """Every registered rule and schedule that a theorem covers, starred and plain."""
    listed = [f"{name}{star}" for name in pg.names() for star in ("", "*")]
    listed += [*SCHEDULES, "mas-rr(3)"]
    return [name for name in listed if build(name).guarantee.theorem is not None]


def runs(problem: pg.Problem, rule: str, lr: float | StepSize, steps: int = 80) -> pg.Trajectory:
    """Three runs, which end before slopes are differences of rounding errors."""
    return pg.descend(problem, build(rule), lr, steps, seeds=(0, 1, 2), stop_gamma=1e-4)


def rules_for_gamma() -> list[str]:
    """Those whose theorem bounds gamma, and so gives a step size: all but ConFIG, of which |d| alone is bounded."""
    promises = {name: build(name).guarantee for name in rules()}
    return [name for name, promise in promises.items() if promise.beyond_hull or promise.rescaled]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("rule", rules_for_gamma())
def test_theorem_1_and_corollary_1_with_the_step_of_the_guarantee(rule: str, name: str) -> None:
    """eta = c/L, or 1/(L |w|_1) for a rule of Theorem 1: covered, and below the bound with the promised constant."""
    problem = PROBLEMS[name]()
    run = runs(problem, rule, Smooth())
    found = pg.certify_run(run, problem=problem)
    assert found.ok, str(found)
    assert found.covered("thm:PS-fd")
    assert found.covered("thm:PS-cvx"), str(found)
    if run.guarantee.non_conflicting and run.guarantee.in_cone:
        assert found.covered("thm:cvg_nonconflict"), str(found)
    for number in range(run.runs):
        bound = found.curve(number)
        assert (np.minimum.accumulate(run.gamma[: len(bound), number]) <= bound).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_condition_a_without_a_bound_on_gamma(name: str) -> None:
    """ConFIG satisfies (A) with c = 1 for the sum: Theorem 1 holds with Gamma = |d| and the step 1/L."""
    problem = PROBLEMS[name]()
    assert problem.smoothness is not None
    found = pg.certify_run(runs(problem, "config", 1.0 / (problem.m * problem.smoothness)), problem=problem)
    assert found.ok, str(found)
    promised = [check for check in found.checks if check.quantity == "sum Gamma_t^2"]
    assert promised
    assert all(check.holds for check in promised)
    assert not found.covered("thm:PS-cvx")


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("rule", rules())
def test_theorem_1_with_the_adaptive_step(rule: str, name: str) -> None:
    """eta_t = c_t Gamma_t / (L |d_t|): eq. PS-sd holds with the measured c_t."""
    problem = PROBLEMS[name]()
    found = pg.certify_run(runs(problem, rule, Aligned()), problem=problem)
    assert found.ok, str(found)
    measured = [check for check in found.checks if check.quantity == "sum gamma_t^2"]
    assert all(check.covered for check in measured), str(found)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("rule", ["mgda", "upgrad", "dualproj*", "nash-mtl", "mas-rand", "rgw", "pcgrad", "config"])
@pytest.mark.parametrize("lr", [0.001, 0.3, Monotone(), Armijo()], ids=repr)
def test_no_theorem_that_covers_a_run_fails_on_it(lr: float | StepSize, rule: str, name: str) -> None:
    problem = PROBLEMS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DescentWarning)
        found = pg.certify_run(runs(problem, rule, lr), problem=problem)
    assert found.ok, str(found)


@pytest.mark.parametrize("rule", ["mgda", "upgrad*", "nash-mtl*", "nash-mtl", "mas-rr(3)"])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_theorem_3_on_convex_problems(rule: str, m: int) -> None:
    """With the monotone step of its remark all hypotheses hold; the bound does for every w, at the tightest one, too.

    The runs of rules other than MGDA end where rounding makes a slope negative; what they did until then counts.
    """
    problem = pg.problem("quadratic", m=m)
    run = runs(problem, rule, Monotone())
    found = pg.certify_run(run, problem=problem)
    assert found.ok, str(found)
    third = [check for check in found.checks if check.label == "thm:PScvx-fun"]
    for check, length in zip(third, run.lengths, strict=True):
        if length:  # the projections of DualProj in a pool have no monotone step
            assert check.covered, str(check)
            assert check.slack > 0.0
            assert check.measured <= check.bound


def test_theorem_3_with_a_constant_step_is_the_paper_s() -> None:
    """lambda is the mean of the weights, and the bound |w_0 - w|^2 / (2 eta T)."""
    problem = pg.problem("quadratic", m=3)
    L = problem.smoothness
    run = runs(problem, "mgda", 1.0 / L)  # type: ignore[operator]
    check = pg.certify_run(run, problem=problem).runs[0][-1]
    assert check.covered
    T = int(run.lengths[0])
    lam = run.run(0).weights[:, 0].mean(axis=0)
    assert problem.pareto_set is not None
    for w in problem.pareto_set(50):
        gap = float(lam @ (run.finals[0] - problem(w).numpy()))
        bound = float(((run.points[0, 0] - w.numpy()) ** 2).sum()) * L / (2.0 * T)  # type: ignore[operator]
        assert gap <= bound
        assert bound - gap >= check.slack - 1e-9


def test_an_uncovered_rule_does_not_converge() -> None:
    """RGW has no fixed point: with a constant step |d| never falls, and the sums outgrow what Theorem 1 allows.

    At 1/(m L) MGDA, the mean and UPGrad* spend less than a tenth of the bound; RGW more than ten times.
    """
    problem = pg.problem("quadratic")
    L = 2.0 * problem.smoothness  # type: ignore[operator]
    spent = {}
    for rule in ("mgda", "mean", "upgrad*", "rgw"):
        run = pg.descend(problem, build(rule), 1.0 / L, 2000, seeds=(0, 1, 2))
        bound = 2.0 * L * run.losses[0].sum(axis=-1)
        spent[rule] = np.nansum(run.norms**2, axis=0) / bound
        if rule == "rgw":
            assert run.reasons == (Stop.STEPS,) * 3
            assert np.median(run.gamma[-500:]) > 0.01
        else:
            assert np.nanmin(run.gamma, axis=0).max() < 1e-6
    assert max(spent[rule].max() for rule in ("mgda", "mean", "upgrad*")) < 0.1
    assert spent["rgw"].min() > 10.0
    found = pg.certify_run(run, problem=problem)
    assert found.ok  # no theorem speaks about it
    assert {check.verdict for check in found.checks if check.label != "thm:PS-fd"} == {"not covered"}
    broken = next(check for check in found.checks if check.quantity == "sum Gamma_t^2")
    assert not broken.holds
    assert broken.missing is not None
    assert np.isnan(found.curve()).all()


def test_a_smoothness_constant_that_is_too_small_is_found_out() -> None:
    problem = pg.problem("quadratic", m=3)
    run = runs(problem, "mgda", 0.5)
    assert pg.certify_run(run).ok
    wrong = pg.certify_run(run, smoothness=0.1)
    assert not wrong.ok
    assert wrong.tightest()[0].verdict == "FAILS"
    assert "FAILS" in str(wrong)


def test_losses_that_were_tampered_with_are_found_out() -> None:
    run = runs(pg.problem("vlmop2"), "upgrad", 0.1)
    losses = run.losses.copy()
    losses[40:] += 1e-6
    found = pg.certify_run(replace(run, losses=losses))
    assert not found.ok
    assert found.tightest()[0].note == "tightest at step 39"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_allowed_for(dtype: torch.dtype) -> None:
    """Thousands of steps near rounding, in either precision: nothing fails, and the allowance stays near epsilon."""
    problem = pg.problem("vlmop2")
    run = pg.descend(problem, pg.UPGrad(), 0.2, 3000, seeds=(0, 1, 2), dtype=dtype)
    found = pg.certify_run(run)
    assert found.ok, str(found)
    assert all(check.rounding < 1e3 * torch.finfo(dtype).eps for check in found.tightest()[:1])


def test_what_is_not_covered_says_why() -> None:
    outside = pg.Problem(
        name="slope",
        label="Slope",
        objectives=lambda points: torch.stack([points.sum(-1), 2.0 * points.sum(-1)], -1),
        m=2,
        lower=-torch.ones(2),
        upper=torch.ones(2),
        least=(-2.0, -4.0),
        smoothness=1.0,
    )
    with pytest.warns(DescentWarning):
        run = pg.descend(outside, pg.Mean(), 0.25, 9, starts=[[0.0, 0.0]])
    assert "left the box at step 3" in str(pg.certify_run(run))
    unknown = runs(pg.problem("dtlz2", n=12), "mgda", 0.01, 20)
    assert "no smoothness constant is known" in str(pg.certify_run(replace(unknown, smoothness=None)))
    fast = pg.descend(pg.problem("quadratic"), pg.MGDA(), 3.0, 20)
    promised = pg.certify_run(fast).runs[0][2]
    assert not promised.covered
    assert "eta < 2 c Gamma" in str(promised.missing)
    none = pg.certify_run(pg.descend(pg.problem("vlmop2"), pg.MGDA(), 0.1, 0))
    assert none.ok
    assert not any(check.covered for check in none.checks)
    assert "the run has steps" in str(none)


def below_the_hull(x: torch.Tensor) -> torch.Tensor:
    """Theorem 4 covers it, but its multipliers sum to anything between 0 and 1."""
    return (torch.nn.functional.softplus(-x) - math.log(2.0)).mean()


def test_condition_a_without_a_length_is_told_from_no_condition() -> None:
    """A rule of Theorem 4 whose weights may sum to less than one: (A) holds, but |d| may be below gamma."""
    problem, rule = pg.problem("quadratic", m=3), pg.Subproblem(below_the_hull)
    assert rule.guarantee.theorem == "thm:PSreg"
    assert (rule.guarantee.alignment, rule.guarantee.beyond_hull) == (1.0, False)
    with pytest.raises(
        pg.ParameterError, match=r"condition \(A\) with c = 1, but not \|d\| >= gamma.*Aligned\(\)"
    ) as caught:
        pg.descend(problem, rule, Smooth(), 5)
    assert "no condition" not in str(caught.value)
    run = pg.descend(problem, rule, 0.05, 40, seeds=(0,))
    pg.descend(problem, rule, Aligned(), 5, seeds=(0,))
    phi = [0.5 / 3.0] * 3  # -grad s(0)
    _, _, first, second, *_ = pg.certify_run(run, F=phi).runs[0]
    assert first.label == "thm:PS-fd"
    assert first.verdict == "holds"  # a bound on |d|
    assert second.label == "thm:PS-cvx"
    assert second.missing is not None
    assert str(second.missing) == "the rule promises Gamma >= gamma: NO (its weights may sum to less than one)"
    assert [str(check) for check in pg.certify_run(run).checks] == [str(c) for c in pg.certify_run(run, F=phi).checks]
    text = str(pg.certify_run(run, F="sum"))  # which is not its F
    assert "its constant is for F = 0.1667 f_0 + 0.1667 f_1 + 0.1667 f_2" in text


def test_another_surrogate() -> None:
    """The measured checks hold for any F >= 0; a promise counts for its own F, one for the mean also for the sum."""
    problem = pg.problem("quadratic", m=3)
    run = runs(problem, "mean", 0.2)
    for F in ("sum", "mean", [0.2, 0.3, 0.5], torch.tensor([1.0, 0.0, 0.0])):
        assert pg.certify_run(run, F=F).ok  # type: ignore[arg-type]
    assert pg.certify_run(run).covered("thm:PS-cvx")
    assert pg.certify_run(run, F="sum").covered("thm:PS-cvx")
    assert not pg.certify_run(run, F=[0.2, 0.3, 0.5]).covered("thm:PS-cvx")
    tighter = pg.certify_run(run, surrogate_smoothness=0.9 * problem.smoothness)  # type: ignore[operator]
    assert tighter.runs[0][1].bound < pg.certify_run(run).runs[0][1].bound
    with pytest.raises(pg.ParameterError, match="'sum', 'mean'"):
        pg.certify_run(run, F="max")  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError):
        pg.certify_run(run, F=[1.0, 2.0])
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(pg.ParameterError):
            pg.certify_run(run, smoothness=wrong)
    with pytest.raises(pg.ParameterError, match="takes the Trajectory"):
        pg.certify_run(run.gamma)  # type: ignore[arg-type]


def test_a_check_prints_as_a_sentence() -> None:
    found = pg.certify_run(runs(pg.problem("vlmop2"), "mgda", Smooth()))
    text = str(found)
    assert text.startswith("MGDA on VLMOP2, lr = Smooth(), the tightest of 3 runs")
    assert "Theorem 1 (sufficient alignment): holds. sum gamma_t^2 <= 2 L F(w_0) / c^2: " in text
    assert (
        "Theorem 3 (monotone descent, convex objectives): not covered. every f_k is convex: NO (not declared)" in text
    )


def test_the_command_prints_the_table() -> None:
    result = CliRunner().invoke(app, ["theory", "--problem", "quadratic", "--only", "mgda,rgw", "--steps", "80"])
    assert result.exit_code == 0, result.output
    for word in ("theorem", "hypotheses", "bound", "measured", "slack", "Corollary 1", "RGW", "none of them failed"):
        assert word in result.output
    result = CliRunner().invoke(app, ["theory", "--problem", "zdt1"])
    assert result.exit_code == 2
    assert "no smoothness constant" in result.output
