"""What degenerate and wrong input gets."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from support.table import ROWS, Row

import paretograd as pg

rows = pytest.mark.parametrize("row", [r for r in ROWS if not r.id.endswith("*")], ids=lambda r: r.id)


@rows
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_gradients_name_the_objective(row: Row, value: float) -> None:
    m = row.objectives
    J = torch.randn(m, 5, generator=torch.Generator().manual_seed(0))
    J[1, 2] = value
    before = row.make().state_dict()
    rule = row.make()
    with pytest.raises(pg.NonFiniteGradientError, match="objective 1 ") as caught:
        rule(J)
    assert caught.value.objectives == [1]
    assert isinstance(caught.value, ValueError)
    with pytest.raises(pg.NonFiniteGradientError) as caught:
        rule.weights(J @ J.T)
    assert caught.value.objectives == [1]
    after = rule.state_dict()  # a failed call changes nothing
    assert before == after


@rows
def test_norms_over_thirty_decades(row: Row) -> None:
    """Norms from 1e-15 to 1e15 in one matrix, in float32: finite, and no conflict where that is promised."""
    m = row.objectives
    generator = torch.Generator().manual_seed(3)
    J = torch.randn(m, 40, generator=generator) * torch.logspace(-15, 15, m)[:, None]
    d = row.make()(J)
    assert torch.isfinite(d).all()
    w = row.make().weights(pg.gramian(J))
    assert torch.isfinite(w).all()
    if row.make().guarantee.non_conflicting:
        exact = (w.double() @ J.double(), J.double())
        cosines = exact[1] @ exact[0] / exact[0].norm() / exact[1].norm(dim=1)
        assert cosines.min() >= -1e-10


@rows
@pytest.mark.parametrize("scale", [1e-15, 1e-7, 1e7, 1e15])
def test_all_gradients_tiny_or_huge(row: Row, scale: float) -> None:
    J = scale * torch.randn(row.objectives, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    base = row.make()(J / scale)
    degree = row.make().guarantee.degree
    if degree is None:
        pytest.skip("the rule does not promise it")
    assert torch.allclose(row.make()(J) / scale**degree, base, rtol=1e-9, atol=1e-12 * float(base.abs().max()))


@rows
@pytest.mark.parametrize("scale", [1e-139, 1e-141, 1e-148, 1e-152, 1e-160, 1e-300])
def test_squares_that_underflow(row: Row, scale: float) -> None:
    """A Jacobian is scaled before it is squared; a Gramian keeps its digits as long as float64 does."""
    J = torch.randn(row.objectives, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    promise = row.make().guarantee
    degree = promise.degree
    if degree is None or promise.recalls_lengths:  # a step that is scaled by itself would spoil what the rule recalls
        pytest.skip("the rule does not promise it")
    base, factor = row.make()(J), scale**degree
    close = {"rtol": 1e-9, "atol": 1e-11 * float(base.abs().max())}
    assert torch.allclose(row.make()(scale * J) / factor, base, **close)
    batch = torch.stack([J, scale * J, torch.zeros_like(J)])
    both = row.make()(batch)
    assert torch.isfinite(both).all()
    if not row.make().state_dict():  # each member of a batch draws anew
        assert torch.allclose(both[0], base, **close)
        assert torch.allclose(both[1] / factor, base, **close)
    if scale >= 1e-152:
        assert torch.allclose(row.make().weights(pg.gramian(scale * J)) @ (scale * J) / factor, base, **close)


def test_squares_that_underflow_show_no_conflict() -> None:
    J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    G = pg.gramian(1e-148 * J)
    assert pg.certify(G, pg.UPGrad().weights(G)).non_conflicting
    assert float(pg.stationarity(G)) == pytest.approx(1e-148 * float(pg.stationarity(pg.gramian(J))), rel=1e-9, abs=0.0)


def test_a_rule_without_a_degree_takes_small_gradients_as_they_are() -> None:
    rule, J = pg.Subproblem(pg.subproblem.Entropic(1.0)), torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(rule(1e-150 * J) / 1e-150, J.mean(dim=0))
    assert not rule(1e-300 * J).any()


@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.MGDA(), pg.Mean()], ids=repr)
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([[1.0, 2.0]], pg.DTypeError, "torch.Tensor; got list"),
        (torch.ones(2, 2, dtype=torch.int64), pg.DTypeError, "floating-point dtype; got torch.int64"),
        (torch.ones(3), pg.ShapeError, r"got \(3,\)"),
        (torch.ones(0, 4), pg.ShapeError, r"got \(0, 4\)"),
        (torch.ones(4, 0), pg.ShapeError, r"got \(4, 0\)"),
    ],
)
def test_wrong_jacobians(rule: pg.Aggregator, given: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rule(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (torch.ones(2, 3), pg.ShapeError, r"\(..., m, m\) with m >= 1; got \(2, 3\)"),
        (torch.ones(0, 0), pg.ShapeError, r"got \(0, 0\)"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), pg.NotAGramianError, "symmetric"),
        (torch.tensor([[1e12, 0.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]), pg.NotAGramianError, "symmetric"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), pg.NotAGramianError, "not positive semidefinite"),
        (torch.tensor([[-1.0, 0.0], [0.0, 1.0]]), pg.NotAGramianError, r"G\[0, 0\] = -1"),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), pg.NotAGramianError, "diagonal entry is zero"),
    ],
)
def test_wrong_gramians(given: torch.Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pg.UPGrad().weights(given)
    with pytest.raises(error, match=words):
        pg.stationarity(given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pg.PowerMean(1.5), "p=1.5.*p <= 1"),
        (lambda: pg.PowerMean(math.nan), "p=nan: a real number"),
        (lambda: pg.CAGrad("wide"), "c='wide': a real number"),
        (lambda: pg.FairGrad(-1.0), "alpha=-1.*>= 0"),
        (lambda: pg.FairGrad(math.inf), "use MGDA"),
        (lambda: pg.CAGrad(-0.1), "c=-0.1"),
        (lambda: pg.CappedMGDA(), "either cap.*or eps"),
        (lambda: pg.CappedMGDA(cap=0.2, eps=0.5), "either cap.*or eps"),
        (lambda: pg.CappedMGDA(cap=0.0), "cap=0"),
        (lambda: pg.CappedMGDA(eps=1.5), r"eps=1.5.*\(0, 1\]"),
        (lambda: pg.ClippedMGDA(cap=-1.0), "cap=-1"),
        (lambda: pg.NashMTL(max_norm=0.0), "max_norm=0"),
        (lambda: pg.Mean([1.0, -1.0]), "weights holds finite numbers >= 0"),
        (lambda: pg.Mean([[1.0]]), "one number per objective"),  # type: ignore[list-item]
        (lambda: pg.UPGrad([0.0, 0.0]), "at least one of them above 0"),
        (lambda: pg.DualProj([math.nan]), "preference holds finite"),
        (lambda: pg.Mean(["a", 1.0]), r"got \['a', 1.0\]"),  # type: ignore[list-item]
        (lambda: pg.PCGrad(order="random"), "order='random'"),  # type: ignore[arg-type]
        (lambda: pg.PCGrad(reduction="max"), "reduction='max'"),  # type: ignore[arg-type]
        (lambda: pg.RGW(seed=1, generator=torch.Generator()), "not both"),
        (lambda: pg.RGW(seed=-1), "seed=-1: a whole number of at least 0"),
        (lambda: pg.PCGrad(order="shuffled", seed=1.5), "seed=1.5: a whole number"),  # type: ignore[arg-type]
        (lambda: pg.GradVac(generator=1), "generator=1: a torch.Generator"),  # type: ignore[arg-type]
        (lambda: pg.GradDrop("a"), "leak='a': give a number between 0 and 1"),  # type: ignore[arg-type]
        (lambda: pg.PIVRG([math.inf]), "finite numbers"),
        (lambda: pg.PIVRG(bound=1.0), "bound=1"),
        (lambda: pg.PIVRG(min_temperature=0.0), "min_temperature=0"),
    ],
)
def test_parameters_out_of_range(make: object, words: str) -> None:
    with pytest.raises(pg.ParameterError, match=words):
        make()  # type: ignore[operator]


def test_a_cap_that_is_too_small_names_the_smallest_feasible_one() -> None:
    G = torch.eye(4)
    with pytest.raises(pg.InfeasibleCapError, match=r"cap=0.2 leaves no weights .* m=4 .* 1/m = 0.25"):
        pg.CappedMGDA(cap=0.2).weights(G)
    assert issubclass(pg.InfeasibleCapError, ValueError)


@pytest.mark.parametrize("row", [r for r in ROWS if r.fits(3) and not r.id.endswith("*")], ids=lambda r: r.id)
def test_an_indefinite_matrix_is_refused_or_harmless(row: Row) -> None:
    """All cosines -0.9: every 2 x 2 block is a Gramian, the whole is not."""
    G = 1.9 * torch.eye(3) - 0.9
    with contextlib.suppress(pg.NotAGramianError):
        assert torch.isfinite(row.make().weights(G)).all()
    with pytest.raises(pg.NotAGramianError, match="not positive semidefinite"):
        pg.UPGrad().weights(G)


def test_rounding_to_bfloat16_does_not_make_a_gramian_wrong() -> None:
    """A singular Gramian rounded to 8 bits has negative eigenvalues; it is repaired, not refused."""
    for seed in range(20):
        J = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1.0
        for rule in (pg.UPGrad(), pg.DualProj(), pg.MGDA(), pg.NashMTL(), pg.CappedMGDA(cap=0.3), pg.CAGrad()):
            w = rule.weights((J @ J.T).bfloat16())
            assert torch.isfinite(w).all()


def test_a_vector_of_the_wrong_length_names_both_lengths() -> None:
    for rule in (pg.Mean([1.0, 1.0]), pg.UPGrad([1.0, 1.0]), pg.DualProj([1.0, 1.0]), pg.PIVRG([1.0, 1.0])):
        with pytest.raises(pg.ParameterError, match="2 numbers, but there are m = 3"):
            rule.weights(torch.eye(3))


@rows
def test_one_objective_gives_its_gradient(row: Row) -> None:
    if not row.fits(1):
        pytest.skip("the parameters need more objectives")
    g = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    d = row.make()(g)
    assert torch.allclose(d / d.norm(), g[0] / 5.0, atol=1e-15)


@rows
def test_all_zero_gradients_give_the_zero_direction(row: Row) -> None:
    J = torch.zeros(row.objectives, 4)
    assert not row.make()(J).any()
    assert torch.isfinite(row.make().weights(J @ J.T)).all()


def test_an_input_is_never_written_to() -> None:
    J = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G = J @ J.T
    kept_J, kept_G = J.clone(), G.clone()
    for row in ROWS:
        if row.fits(4):
            row.make()(J)
            row.make().weights(G)
    assert torch.equal(J, kept_J)
    assert torch.equal(G, kept_G)


def test_gradients_that_require_grad_are_detached() -> None:
    J = torch.randn(3, 5, requires_grad=True)
    assert not pg.UPGrad()(J).requires_grad
    assert not pg.UPGrad().weights(J @ J.T).requires_grad
