"""Certificates: what they find on known steps, and that they trust nobody."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from support.families import FAMILIES
from support.strategies import Case, cases

import paretograd as pg
from paretograd.certificates.step import check_step
from paretograd.geometry import cones


@given(case=cases())
def test_the_bracket_holds_gamma(case: Case) -> None:
    """min_k (Gw)_k / |J.T w| <= gamma <= |J.T w| for any w on the simplex; tight for MGDA's own."""
    J = case.jacobian
    G = pg.gramian(J)
    gamma, unit = pg.stationarity(G).item(), J.norm(dim=1).min().item()
    uniform = torch.full((case.m,), 1.0 / case.m, dtype=torch.float64)
    low, high = cones.gamma_bracket(G.numpy(), uniform.numpy())
    assert low <= gamma + 1e-7 * unit
    assert gamma <= high + 1e-7 * unit
    exact = pg.certify(G, pg.MGDA().weights(G))
    assert exact.gamma == pytest.approx(gamma, rel=1e-12, abs=1e-7 * unit)
    # The slope of a long gradient is a sum of terms up to |d||g_k|, which limits the lower end.
    slack = 1e-15 * case.m * J.norm(dim=1).max().item()
    low, high = exact.gamma_bracket
    # The ends allow for rounding of the slopes and of |d|; nothing else widens the bracket.
    allowed = 2.0 * (high - gamma) + (max(exact.slope_errors) / high if high > 0.0 else 0.0)
    assert high - low - allowed <= 1e-9 * gamma + 1e-7 * unit + slack


def test_a_direction_that_conflicts_is_found_out() -> None:
    J = torch.tensor([[1.0, 0.0], [-2.0, 0.1]], dtype=torch.float64)
    certificate = pg.certify(pg.gramian(J), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert certificate.conflicts == (0,)
    assert not certificate.non_conflicting
    assert certificate.in_hull
    assert "thm:cvg_nonconflict" not in certificate.results
    assert certificate.slopes[0] == pytest.approx(-0.5)


def test_a_tiny_conflict_is_not_rounding() -> None:
    """A cosine of -1e-8 is a conflict; one of -1e-13 is rounding."""
    for cosine, found in ((-1e-8, (1,)), (-1e-13, ())):
        J = torch.tensor([[1.0, 0.0], [cosine, 1.0]], dtype=torch.float64)
        assert pg.certify(pg.gramian(J), torch.tensor([1.0, 0.0], dtype=torch.float64)).conflicts == found


def test_alignment_is_for_the_surrogate_that_was_asked_for() -> None:
    J = FAMILIES["conflicting"].make(3, 6, 0)
    G, w = pg.gramian(J), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    d = w @ J
    for F, phi in (("sum", torch.ones(3)), ("mean", torch.full((3,), 1 / 3, dtype=torch.float64)), (w, w)):
        expected = (phi.double() @ (J @ d) / (d @ d)).item()
        assert pg.certify(G, w, F=F).alignment == pytest.approx(expected, rel=1e-12)  # type: ignore[arg-type]
    assert pg.certify(G, w, F=w).alignment == pytest.approx(1.0, rel=1e-12)


def test_it_prints_as_a_short_table() -> None:
    J = FAMILIES["conflicting"].make(8, 20, 0)
    G = pg.gramian(J)
    text = str(pg.certify(G, pg.UPGrad().normalized().weights(G)))
    assert "Theorem 2 (non-conflicting directions)" in text
    assert "gamma" in text
    assert "..." in text  # eight slopes are cut to six
    assert len(text.splitlines()) <= 12
    assert max(map(len, text.splitlines())) <= 100


def test_it_prints_the_names_of_the_objectives() -> None:
    """By number without names; fields hold numbers either way."""
    J = torch.tensor([[1.0, 0.0, 0.0], [-2.0, 0.1, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    G, w = pg.gramian(J), torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    named = pg.certify(G, w, F=w, names=["seg", "depth", "normals"])
    numbered = pg.certify(G, w, F=w)
    assert (numbered.names, named.names) == (None, ("seg", "depth", "normals"))
    assert named.conflicts == numbered.conflicts == (0,)
    rows = dict(line.split("  ", 1) for line in str(named).splitlines())
    assert rows["slopes <d, g_k>"].strip() == "seg: -0.25, depth: 0.5025, normals: 0.5"
    assert rows["conflicts"].strip() == "seg"
    assert str(named).count("0.25 f_seg + 0.25 f_depth + 0.5 f_normals") == 1
    assert str(numbered).count("0.25 f_0 + 0.25 f_1 + 0.5 f_2") == 1


def test_it_prints_the_names_of_unknown_slopes() -> None:
    a = torch.tensor([0.49, 1.43, 0.99])
    J = torch.stack([a, -0.3 * a, torch.tensor([-1.71, -1.92, -1.80])])
    w = torch.tensor([1e8, 1e8 / 0.3, 1.0], dtype=torch.float64)
    text = str(pg.certify(pg.gramian(J), w, dtype=torch.float32, names=("x", "y", "z")))
    assert "x: not known, y: not known, z: not known" in text
    assert "not known: x, y, z" in text


@pytest.mark.parametrize("names", ["ab", ["a"], ["a", 1]])
def test_wrong_names(names: object) -> None:
    with pytest.raises(pg.ParameterError, match="a list of 2 strings"):
        pg.certify(torch.eye(2), torch.ones(2), names=names)  # type: ignore[arg-type]


def test_the_zero_direction_at_a_stationary_point_is_in_the_hull() -> None:
    J = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    G = pg.gramian(J)
    certificate = pg.certify(G, pg.NashMTL().weights(G))
    assert certificate.in_hull
    assert certificate.norm == 0.0
    assert math.isinf(certificate.alignment)


def test_a_poor_witness_gives_a_wide_bracket_not_a_wrong_one() -> None:
    J = FAMILIES["conflicting"].make(4, 9, 1)
    G = pg.gramian(J).numpy()
    w = pg.MGDA().weights(pg.gramian(J)).numpy()
    poor = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).numpy()
    low, high = check_step(G, w, poor).gamma_bracket
    gamma = pg.stationarity(pg.gramian(J)).item()
    assert low <= gamma <= high
    assert high == pytest.approx(J[0].norm().item())


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        (torch.ones(3), pg.ShapeError),
        ([0.5, 0.5], pg.DTypeError),
        (torch.tensor([math.nan, 1.0]), pg.ParameterError),
    ],
)
def test_wrong_weights(weights: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        pg.certify(torch.eye(2), weights)  # type: ignore[arg-type]


def test_wrong_surrogates_and_batches() -> None:
    with pytest.raises(pg.ParameterError, match="'sum', 'mean'"):
        pg.certify(torch.eye(2), torch.ones(2), F="max")  # type: ignore[arg-type]
    with pytest.raises(pg.ShapeError, match="one number per objective"):
        pg.certify(torch.eye(2), torch.ones(2), F=torch.ones(3))
    with pytest.raises(pg.ShapeError, match="one Gramian"):
        pg.certify(torch.eye(2).expand(3, 2, 2), torch.ones(2))


def test_every_promised_theorem_exists() -> None:
    for name in pg.names():
        rule = pg.get(name, **({"cap": 0.5} if name == "capped-mgda" else {}))
        for guarantee in (rule.guarantee, rule.normalized().guarantee):
            assert guarantee.theorem is None or guarantee.result is pg.RESULTS[guarantee.theorem]
            assert (guarantee.rate == "-") == (guarantee.theorem is None)


def test_one_definition_of_a_conflict() -> None:
    """A negative slope is a conflict if neither the error of d nor that of the slope explains it; d = 0 has none."""
    slopes, lengths = np.array([-1e-8, -1e-12, 0.0, 1.0]), np.ones(4)
    tol = cones.conflict_tolerance(2.0**-52)
    assert cones.conflicting(slopes, lengths, 1.0, tol=tol).tolist() == [True, False, False, False]
    assert not cones.conflicting(slopes, lengths, 1.0, tol=cones.FLOAT32_ROWS).any()
    assert not cones.conflicting(slopes, lengths, 1.0, tol=tol, errors=np.full(4, 1e-7)).any()
    assert not cones.conflicting(np.zeros(4), lengths, 0.0, tol=tol).any()
    # Long terms that cancel in a short d: the slope's own rounding is larger than d.
    weights = np.array([1e7, 1e7, 0.0, 0.0])
    assert not cones.conflicting(slopes, lengths, 1e-9, tol=tol, errors=cones.term_errors(lengths, weights)).any()
    # A batch of directions is judged one by one.
    both = cones.conflicting(np.stack([slopes, slopes]), lengths, np.array([1.0, 1e3]), tol=tol)
    assert both.tolist() == [[True, False, False, False], [False, False, False, False]]
