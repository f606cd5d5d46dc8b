"""Descents with rules that see more than Gramians: the rows, the losses, or the losses alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.trajectories import same

import paretograd as pg
from paretograd.descent import Aligned, Armijo, Monotone, Smooth, Stop

Array = NDArray[np.float64]
Rule = pg.Aggregator | pg.Weighting

RULES: dict[str, Callable[[], Rule]] = {
    "graddrop": lambda: pg.GradDrop(0.1, seed=3),
    "trimmed-mean": pg.TrimmedMean,
    "moco": pg.MoCo,
    "excess-mtl": pg.ExcessMTL,
    "db-mtl": pg.DBMTL,
    "m-config": pg.MConFIG,
    "gradnorm": pg.GradNorm,
    "mixed": lambda: pg.Mixed([pg.GradNorm(), pg.UPGrad(), pg.RGW(seed=5)], schedule=pg.Random(seed=1)),
    "weighted-sum": lambda: pg.WeightedSum([1.0, 2.0, 0.5]),
    "gls": pg.GLS,
    "p-norm": pg.PNorm,
    "tchebycheff": pg.Tchebycheff,
    "stch": lambda: pg.STCH(mu=0.2),
    "pbi": lambda: pg.PBI([0.2, 0.3, 0.5]),
    "dwa": lambda: pg.DWA(temperature=0.1),
    "rlw": lambda: pg.RLW(seed=2),
    "famo": lambda: pg.FAMO(lr=0.2),
}
#: Rules whose direction is no combination of the gradients.
FREE = {"graddrop", "trimmed-mean", "moco", "db-mtl", "m-config"}
rules = pytest.mark.parametrize("name", RULES)

PROBLEM = pg.problem("quadratic", m=3)
LR, STEPS, SEEDS = 0.03, 25, (1, 5, 9)


def begin(name: str, **options: object) -> pg.Descent:
    return pg.Descent(PROBLEM, RULES[name](), LR, STEPS, **{"seeds": SEEDS, **options})  # type: ignore[arg-type]


def by_hand(rule: Rule, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield points and directions of the same iteration, step by step."""
    w = PROBLEM.starts((seed,))[0].double()
    before = None
    for _ in range(STEPS):
        losses, J = PROBLEM.jacobian(w)
        if isinstance(rule, pg.FAMO) and before is not None:
            rule.update(losses)
        if isinstance(rule, pg.DWA) and before is not None:
            rule.next_epoch()
        if isinstance(rule, pg.Weighting):
            d = rule.weights(losses) @ J
        else:
            rule.observe(losses)
            d = rule(J)
        yield w.numpy().copy(), d.numpy()
        before = losses
        w = w - LR * d


@rules
def test_every_run_has_a_rule_of_its_own(name: str) -> None:
    """It takes the steps of a plain loop, up to the order of sums, and leaves the given rule as it was."""
    rule = RULES[name]()
    run = pg.descend(PROBLEM, rule, LR, STEPS, seeds=SEEDS)
    assert run.lengths.tolist() == [STEPS] * len(SEEDS)
    for number, seed in enumerate(SEEDS):
        for t, (w, d) in enumerate(by_hand(RULES[name](), seed)):
            # Momenta that are divided by the root of their squares enlarge the rounding of small ones.
            close = {"rtol": 1e-7, "atol": 1e-9} if name == "m-config" else {"rtol": 1e-9, "atol": 1e-11}
            np.testing.assert_allclose(run.points[t, number], w, **close)  # type: ignore[arg-type]
            _, J = PROBLEM.jacobian(torch.from_numpy(run.points[t, number]))
            slopes = J.numpy() @ d
            np.testing.assert_allclose(run.slopes[t, number], slopes, **close)  # type: ignore[arg-type]
            assert run.norms[t, number] == pytest.approx(np.linalg.norm(d), rel=1e-7)
    assert np.isnan(run.weights).all() if name in FREE else np.isfinite(run.weights).all()
    again = pg.descend(PROBLEM, rule, LR, STEPS, seeds=SEEDS)
    assert same(run, again)


@rules
def test_a_run_in_a_batch_is_the_run_alone(name: str) -> None:
    together = pg.descend(PROBLEM, RULES[name](), LR, STEPS, seeds=SEEDS, stop_gamma=0.3)
    assert len(set(together.lengths.tolist())) > 1 or set(together.reasons) == {Stop.STEPS}
    for number, seed in enumerate(SEEDS):
        assert same(together.run(number), pg.descend(PROBLEM, RULES[name](), LR, STEPS, seeds=(seed,), stop_gamma=0.3))


@rules
def test_a_resumed_descent_is_bit_identical(name: str) -> None:
    whole, first, second = begin(name), begin(name), begin(name)
    whole.advance(STEPS)
    first.advance(10)
    file = io.BytesIO()
    np.savez(file, **first.state_dict())
    file.seek(0)
    with np.load(file) as state:
        second.load_state_dict(dict(state))
    second.advance(STEPS)
    assert same(second.trajectory(), whole.trajectory())


def test_the_state_of_another_rule_changes_nothing() -> None:
    descent = begin("moco")
    descent.advance(3)
    state = begin("moco", seeds=(1,)).state_dict()
    with pytest.raises(pg.ParetogradError):
        descent.load_state_dict(state)
    broken = descent.state_dict()
    twin = begin("moco")
    twin.advance(3)
    with pytest.raises(pg.ParetogradError):
        descent.load_state_dict(broken | {"aggregator": '{"0": {}}'})
    descent.advance(STEPS)
    twin.advance(STEPS)
    assert same(descent.trajectory(), twin.trajectory())


@rules
def test_trajectories_and_certificates(name: str, tmp_path: Path) -> None:
    """Nothing fails that a theorem covers, and a direction that is no combination has no certificate."""
    rule = RULES[name]()
    run = pg.descend(PROBLEM, rule, LR, STEPS, seeds=SEEDS)
    loaded = pg.Trajectory.load(run.save(tmp_path / "run.npz"))
    assert same(run, loaded)
    assert loaded.guarantee.F == run.guarantee.F
    want = run.slopes < -1e-9 * run.norms[..., None] * run.gradient_norms
    assert np.array_equal(run.conflicts, want)
    assert np.isfinite(run.alignment).all()
    for found in (pg.certify_run(run, problem=PROBLEM), pg.certify_run(loaded)):
        assert found.ok, str(found)
        if name in FREE:
            assert not found.covered("thm:cvg_nonconflict")
            assert not found.covered("thm:PScvx-fun")
    if name in FREE:
        with pytest.raises(pg.ParameterError, match="no combination of the gradients"):
            run.certificate(PROBLEM, 3)
    else:
        certificate = run.certificate(PROBLEM, 3, 1)
        assert certificate.norm == pytest.approx(run.norms[3, 1])
        if name in {"gls", "stch", "p-norm", "tchebycheff"}:
            assert certificate.keeps_promise
            assert run.alignment == pytest.approx(1.0)


def test_conflicts_are_seen() -> None:
    """A trimmed mean of two equal gradients and an opposite one is the gradient of the two."""
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def objectives(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ one, x @ one, -(x @ one)], dim=-1) + 5.0

    box = torch.full((2,), 10.0)
    problem = pg.Problem(
        name="lines", label="Lines", objectives=objectives, m=3, lower=-box, upper=box, least=(0.0,) * 3
    )
    run = pg.descend(problem, pg.TrimmedMean(), 0.1, 4, starts=[[1.0, 1.0]])
    assert run.conflicts.tolist() == [[[False, False, True]]] * 4
    assert run.reasons == (Stop.STEPS,)


@pytest.mark.parametrize("lr", [Armijo(), Aligned(), Monotone()], ids=repr)
@rules
def test_step_sizes(name: str, lr: pg.descent.StepSize) -> None:
    """Those that ask every loss to decrease stop at a conflict, with weights or without."""
    run, first = (pg.descend(PROBLEM, RULES[name](), each, 5, seeds=(1,)) for each in (lr, 1e-3))
    conflict = bool((first.slopes[0] < 0.0).any())
    assert (run.lengths[0] > 0) == (isinstance(lr, Aligned) or not conflict)
    if not isinstance(lr, Aligned):
        assert (np.diff(run.losses[: run.lengths[0] + 1, 0], axis=0) <= 1e-12).all()


def test_smooth_says_why_it_has_no_step() -> None:
    with pytest.raises(pg.ParameterError, match=r"STCH\(\).*nonlinear function of the losses"):
        pg.descend(PROBLEM, pg.STCH(), Smooth(), 5)
    with pytest.raises(pg.ParameterError, match=r"MoCo\(\).*does not guarantee condition"):
        pg.descend(PROBLEM, pg.MoCo(), Smooth(), 5)


def test_rules_without_a_descent() -> None:
    for rule in (pg.MoDo(), pg.SDMGrad(), pg.Mixed([pg.MGDA(), pg.MoDo()], schedule=pg.RoundRobin(1))):
        with pytest.raises(pg.ParameterError, match=r"independent batches.*deterministic"):
            pg.descend(PROBLEM, rule, LR, 5)
    for learned in (pg.UncertaintyWeighting(m=3), pg.IMTLL(m=3)):
        with pytest.raises(pg.ParameterError, match="learns its weights with an optimizer"):
            pg.descend(PROBLEM, learned, LR, 5)
        run = pg.descend(PROBLEM, learned.requires_grad_(False), LR, 5)
        assert np.ptp(run.weights) == 0.0
    with pytest.raises(pg.ParameterError, match="needs the gradients themselves"):
        pg.descend(PROBLEM, pg.TrimmedMean().normalized(), LR, 5)
    with pytest.raises(pg.ParameterError, match=r"scalarizer\('stch'\)"):
        pg.descend(PROBLEM, "stch", LR, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [pg.GLS, pg.GradNorm, pg.DBMTL, pg.FAMO])
def test_losses_outside_of_a_domain(make: Callable[[], Rule]) -> None:
    """The error is the rule's. The runs and their rules are where they were."""

    def objectives(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([4.0 * x[..., 0] + 5.0, (x[..., 0] + 3.0) ** 2 + 1.0], dim=-1)

    box = torch.full((1,), 10.0)
    problem = pg.Problem(
        name="line", label="Line", objectives=objectives, m=2, lower=-box, upper=box, least=(-35.0, 1.0)
    )
    descent = pg.Descent(problem, make(), 0.05, 100, starts=[[3.0], [-1.0]])
    with pytest.raises(pg.ParetogradError, match=r"positive losses|losses that are above"):
        descent.advance(100)
    before = descent.state_dict()
    with pytest.raises(pg.ParetogradError, match=r"positive losses|losses that are above"):
        descent.advance(1)
    after = descent.state_dict()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)


@rules
def test_float32_and_another_default_device(name: str) -> None:
    run = pg.descend(PROBLEM, RULES[name](), LR, 5, seeds=SEEDS, dtype=torch.float32)
    assert run.lengths.tolist() == [5] * len(SEEDS)
    with torch.device("meta"):
        assert same(pg.descend(PROBLEM, RULES[name](), LR, 5, seeds=SEEDS, dtype=torch.float32), run)
