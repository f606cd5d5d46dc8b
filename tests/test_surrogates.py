"""F is data: step sizes, certificates, runs and files take its weights from the guarantee."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.families import FAMILIES
from support.promises import check_promises

import paretograd as pg
from paretograd import subproblem as sp
from paretograd.certificates.step import Verdict
from paretograd.descent import Aligned, Smooth
from paretograd.disk import from_json, read_arrays, to_json, write_arrays
from paretograd.guarantees import MEAN, SUM, Surrogate


def softplus(x: torch.Tensor) -> torch.Tensor:
    """An s whose multipliers sum to less than one, with F = sum_k f_k / 2m."""
    return (torch.nn.functional.softplus(-x) - math.log(2.0)).mean()


def test_phi_and_words() -> None:
    assert SUM.phi(3).tolist() == [1.0, 1.0, 1.0]
    assert MEAN.phi(4).tolist() == [0.25] * 4
    fixed = Surrogate((0.7, 0.2, 0.1))
    assert fixed.phi(3).tolist() == [0.7, 0.2, 0.1]
    assert [str(F) for F in (SUM, MEAN, fixed)] == ["sum_k f_k", "mean_k f_k", "0.7 f_0 + 0.2 f_1 + 0.1 f_2"]
    assert str(Surrogate((1.0,) * 9)).endswith("1 f_5 + ...")
    with pytest.raises(pg.ParameterError, match="for 3 objectives, but there are m = 2"):
        fixed.phi(2)
    halves = Surrogate(lambda m: np.full(m, 0.5), "half the sum")
    assert str(halves) == "half the sum"
    assert halves.at(2) == Surrogate((0.5, 0.5))
    assert SUM.at(2) is SUM


def test_a_fixed_weighting_steps_by_its_own_constant() -> None:
    """Mean([5, 5]) descends on F = 5 f_0 + 5 f_1, which is ten times as curved as the objectives."""
    problem = pg.problem("quadratic", m=2)
    run = pg.descend(problem, pg.Mean([5.0, 5.0]), lr=Smooth(), steps=200, seeds=(0, 1))
    assert problem.smoothness == 1.0
    assert np.nanmax(np.abs(run.step_sizes - 0.1)) <= 1e-15
    assert run.gamma[run.lengths, [0, 1]].max() <= 1e-6
    assert run.alignment[0] == pytest.approx(1.0, rel=1e-9)
    found = pg.certify_run(run)
    assert found.ok
    assert found.covered("thm:PS-cvx")
    aligned = pg.descend(problem, pg.Mean([5.0, 5.0]), lr=Aligned(), steps=20, seeds=(0,))
    assert aligned.step_sizes[:5] == pytest.approx(0.1, rel=1e-9)


def test_the_certificate_of_a_fixed_weighting() -> None:
    """d is the gradient of F: (A) holds with c = 1, whatever the gradients."""
    rule = pg.Mean([0.7, 0.2, 0.1])
    for name in ("conflicting", "badly_scaled", "opposite_rows"):
        G = pg.gramian(FAMILIES[name].make(3, 5, 0))
        found = pg.certify(G, rule.weights(G), rule)
        assert Surrogate((0.7, 0.2, 0.1)) == found.F
        assert found.alignment == pytest.approx(1.0, rel=1e-12)
        assert found.keeps_promise
    net, x = torch.nn.Linear(4, 3), torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    step = pg.backward(list(net(x).square().mean(0)), rule, list(net.parameters()))
    assert step.certificate.alignment == pytest.approx(1.0, rel=1e-6)
    problem = pg.problem("quadratic", m=3)
    run = pg.descend(problem, rule, 0.1, 5, seeds=(0,))
    assert run.certificate(problem, 2).alignment == pytest.approx(1.0, rel=1e-9)
    assert run.certificate(problem, 2).keeps_promise


def test_a_promise_that_is_broken() -> None:
    """Weights that are not the rule's: each promised property has its verdict."""
    J = torch.tensor([[1.0, 0.0], [-2.0, 0.1]], dtype=torch.float64)
    found = pg.certify(pg.gramian(J), torch.tensor([1.5, -0.1], dtype=torch.float64), pg.MGDA())
    assert found.keeps_promise is False
    assert {promise.text: promise.verdict for promise in found.promises} == {
        "non-conflicting": Verdict.BROKEN,
        "in the convex hull": Verdict.BROKEN,
        "(A) with c = 1": Verdict.BROKEN,
    }
    assert "promise broken            non-conflicting, in the convex hull, (A) with c = 1" in str(found)
    kept = pg.certify(pg.gramian(J), pg.UPGrad().weights(pg.gramian(J)), pg.UPGrad())
    assert kept.keeps_promise
    assert str(kept.promises[1]) == "weights >= 0 that sum to 1 or more: kept"
    assert max(map(len, str(kept).splitlines())) <= 100
    assert pg.certify(pg.gramian(J), torch.ones(2, dtype=torch.float64)).keeps_promise is None
    with pytest.raises(pg.ParameterError, match="pass F by keyword"):
        pg.certify(torch.eye(2), torch.ones(2), "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("m", [2, 3, 5])
def test_theorem_4_has_its_own_f(m: int) -> None:
    rule = pg.Subproblem(softplus)
    assert str(rule.guarantee.F) == "<-grad s(0), f>"
    assert rule.guarantee.F.phi(m) == pytest.approx(np.full(m, 0.5 / m), rel=1e-12)
    assert rule.normalized().guarantee.degree is None  # longer gradients saturate s
    for name in ("gaussian", "conflicting", "moderately_scaled"):
        check_promises(rule, FAMILIES[name].make(m, m + 2, 0))
    weighted = pg.Subproblem(sp.Linear(np.arange(1.0, m + 1.0)))
    assert Surrogate(tuple(np.arange(1.0, m + 1.0).tolist())) == weighted.guarantee.F
    thirds = pg.Subproblem(lambda x: -x.sum() / 3.0)  # the mean for m = 3 only
    assert thirds.guarantee.F != MEAN
    assert thirds.guarantee.F.phi(m) == pytest.approx(np.full(m, 1.0 / 3.0))


def test_a_run_keeps_the_numbers(tmp_path: Path) -> None:
    problem = pg.problem("quadratic", m=3)
    for rule in (pg.Mean([1.0, 2.0, 3.0]), pg.Subproblem(softplus), pg.Mean(), pg.UPGrad()):
        run = pg.descend(problem, rule, 0.01, 4, seeds=(0, 1))
        again = pg.Trajectory.load(run.save(tmp_path / "run.npz", overwrite=True))
        assert again.guarantee == run.guarantee
        assert again.guarantee.F.phi(3).tolist() == rule.guarantee.F.phi(3).tolist()
        assert np.array_equal(again.alignment, run.alignment, equal_nan=True)


def with_f(run: pg.Trajectory, F: object, folder: Path) -> Path:
    """A file of the run in which F is written in another way."""
    path = run.save(folder / "run.npz", overwrite=True)
    values = read_arrays(path)
    words = from_json(values["words"])
    words["guarantee"]["F"] = F
    return write_arrays(path, values | {"words": to_json(words)}, overwrite=True)


@pytest.mark.parametrize(
    ("words", "expected", "constant"),
    [
        ("sum_k f_k", SUM, 1.0),
        ("mean_k f_k", MEAN, 1.0),
        ("sum_k weights_k f_k", Surrogate((1.0, 2.0, 3.0)), 1.0),  # the weights are in the record
        ("<-grad s(0), f>", SUM, None),  # and here they are lost
    ],
)
def test_files_of_earlier_versions(words: str, expected: Surrogate, constant: float | None, tmp_path: Path) -> None:
    """They wrote F as text."""
    run = pg.descend(pg.problem("quadratic", m=3), pg.Mean([1.0, 2.0, 3.0]), 0.01, 4, seeds=(0, 1))
    promise = pg.Trajectory.load(with_f(run, words, tmp_path)).guarantee
    assert (promise.F, promise.alignment) == (expected, constant)
    assert (constant is None) == ("which the file does not hold" in promise.note)


def test_wrong_weights_in_a_file(tmp_path: Path) -> None:
    run = pg.descend(pg.problem("quadratic", m=3), pg.Mean([1.0, 2.0, 3.0]), 0.01, 4, seeds=(0,))
    for wrong in ([1.0, 2.0], ["a", "b", "c"], {"a": 1.0}, 3.0):
        with pytest.raises(pg.InputError):
            pg.Trajectory.load(with_f(run, wrong, tmp_path))


@pytest.mark.parametrize("preference", [[1.0, 2.0, 3.0], [0.2, 0.1, 0.1], [0.0, 1.0, 0.0], [5.0, 0.0, 0.1]])
@pytest.mark.parametrize("make", [pg.UPGrad, pg.DualProj])
def test_preferences_have_a_constant_for_the_sum(
    make: type[pg.UPGrad] | type[pg.DualProj], preference: list[float]
) -> None:
    """c = 1 / max(1, |u|_1) for UPGrad, 1 / max_k u_k for DualProj: it is promised, and holds."""
    rule = make(preference)
    constant = 1.0 / (max(1.0, sum(preference)) if make is pg.UPGrad else max(preference))
    assert rule.guarantee.constant_for(SUM) == constant
    for name in ("gaussian", "conflicting", "moderately_scaled", "badly_scaled_conflicting", "duplicate_rows"):
        for seed in range(10):
            check_promises(rule, FAMILIES[name].make(3, 4, seed))


def test_a_small_preference_needs_the_sum() -> None:
    """Where Theorem 2 serves a rule after rescaling, F is the sum, whatever its own F is."""
    problem, rule = pg.problem("quadratic", m=3), pg.Subproblem(sp.NonConflicting([0.1, 0.1, 0.2]))
    assert rule.guarantee.rescaled
    run = pg.descend(problem, rule, Smooth(), 200, seeds=(0, 1))
    weights = np.abs(run.weights[0]).sum(axis=1)
    assert run.step_sizes[0] == pytest.approx(1.0 / (3.0 * problem.smoothness * weights))  # type: ignore[operator]
    found = pg.certify_run(run)
    assert found.ok
    assert found.covered("thm:PS-cvx")


def test_blends_share_a_weighting() -> None:
    same = pg.Blend([pg.Mean([1.0, 2.0]), pg.Mean([1.0, 2.0])]).guarantee
    assert (same.F, same.alignment) == (Surrogate((1.0, 2.0)), 1.0)
    assert pg.Blend([pg.Mean([1.0, 2.0]), pg.Mean([2.0, 1.0])]).guarantee.alignment is None
    never = pg.Blend([pg.Subproblem(sp.WorstCase()), pg.UPGrad().normalized()]).guarantee
    assert (never.theorem, never.F, never.alignment) == ("thm:cvg_nonconflict", SUM, 1.0)
