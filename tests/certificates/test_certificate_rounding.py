"""Certificates where weights cancel: nothing is claimed that rounding made up. The truth is rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from support.families import FAMILIES
from support.rational import combine, exact, inner, min_norm_square
from support.table import ROWS, Row
from torch import Tensor

import paretograd as pg
from paretograd.certificates.step import Verdict
from paretograd.geometry.cones import FLOAT64, Rounding

Array = np.ndarray
FLOAT32 = float(np.finfo(np.float32).eps)


def cancelling(seed: int, float32: bool) -> tuple[Array, Array, Array]:
    """Rows as they should be, the same rounded, and weights that nearly annihilate some of them."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    a, b, c, d = rng.standard_normal((4, n)) * 10.0 ** rng.integers(-3, 4, size=(4, 1))
    factor = rng.choice([0.3, 0.7, 3.0, 1.0])
    rows, null = [
        (np.stack([a, -factor * a, b]), np.array([factor, 1.0, 0.0])),
        (np.stack([a - b, b - c, c - a, d]), np.array([1.0, 1.0, 1.0, 0.0])),
        (np.stack([a, b, -a - b, d]), np.array([1.0, 1.0, 1.0, 0.0])),
        (np.stack([a, a * (1.0 + 1e-9), b]), np.array([1.0, -1.0, 0.0])),
    ][seed % 4]
    rounded = rows.astype(np.float32).astype(np.float64) if float32 else rows
    size = 10.0 ** rng.integers(-2, 10)
    weights = size * null + rng.uniform(0.0, 1.0, len(rows)) * 10.0 ** rng.integers(-3, 2)
    return rows, rounded, weights


class Truth:
    """What is so, of a direction that the given rows and weights make."""

    def __init__(self, rows: Array, weights: Array, phi: Array) -> None:
        self.rows = [exact(row) for row in rows.tolist()]
        self.weights = exact(weights.tolist())
        d = combine(self.weights, self.rows)
        self.slopes = [inner(d, row) for row in self.rows]
        self.square = inner(d, d)
        self.squares = [inner(row, row) for row in self.rows]
        self.along = inner(exact(phi.tolist()), self.slopes)

    def conflicts(self, k: int, cosine: float) -> bool:
        """Whether ``<d, g_k> < -cosine |d| |g_k|``."""
        slope = self.slopes[k]
        return slope < 0 and slope**2 > Fraction(cosine) ** 2 * self.square * self.squares[k]


def check(found: pg.StepCertificate, truth: Truth, rounding: Rounding) -> None:
    """Every claim of a certificate is true."""
    for slope, error, right in zip(found.slopes, found.slope_errors, truth.slopes, strict=True):
        assert abs(Fraction(slope) - right) <= Fraction(error)
    low, high = found.norm_bracket
    assert Fraction(low) ** 2 <= truth.square <= Fraction(high) ** 2
    for k in found.conflicts:
        assert truth.conflicts(k, 0.0)
    resolution = max(1e-10, 64.0 * rounding.eps, rounding.resolution)
    if found.non_conflicting:
        assert not any(truth.conflicts(k, resolution) for k in range(len(truth.slopes)))
    if "thm:PS-fd" in found.results or "thm:PS-cvx" in found.results:
        assert truth.along > 0 or truth.square == 0
    if "thm:cvg_nonconflict" in found.results:
        assert found.non_conflicting
        assert found.in_hull
    if "thm:PScvx-fun" in found.results:
        assert min(truth.slopes) > 0
    if math.isfinite(found.alignment):
        c = truth.along / truth.square
        assert truth.square > 0
        assert abs(Fraction(found.alignment) - c) <= abs(c) * 3 + Fraction(resolution) * 10
    negative = sum(-w * Fraction(math.sqrt(s)) for w, s in zip(truth.weights, truth.squares, strict=True) if w < 0)
    if found.in_cone:
        assert negative**2 <= Fraction(2e-10 + 128.0 * rounding.eps) ** 2 * truth.square
    gamma_low, gamma_high = found.gamma_bracket
    assert Fraction(gamma_low) ** 2 <= min_norm_square(truth.rows) <= Fraction(gamma_high) ** 2


@pytest.mark.parametrize("seed", range(120))
def test_no_claim_is_false_where_weights_cancel(seed: int) -> None:
    rows, _, weights = cancelling(seed, float32=False)
    J, w = torch.from_numpy(rows), torch.from_numpy(weights)
    check(pg.certify(pg.gramian(J), w), Truth(rows, weights, np.ones(len(rows))), FLOAT64)


@pytest.mark.parametrize("seed", range(120))
def test_rows_in_float32_are_known_to_their_own_rounding(seed: int) -> None:
    """The truth has the rows before they were rounded: a certificate that knows their dtype covers them, too."""
    rows, rounded, weights = cancelling(1000 + seed, float32=True)
    G, w = pg.gramian(torch.from_numpy(rounded).float()), torch.from_numpy(weights)
    found = pg.certify(G, w, dtype=torch.float32)
    check(found, Truth(rows, weights, np.ones(len(rows))), Rounding(rows=FLOAT32))


@pytest.mark.parametrize("seed", range(60))
def test_regular_weights_are_known(seed: int) -> None:
    """Without cancellation nothing is hidden, and all claims are true."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 5))
    rows, weights = rng.standard_normal((m, m + 2)), rng.uniform(0.1, 1.0, m)
    found = pg.certify(pg.gramian(torch.from_numpy(rows)), torch.from_numpy(weights))
    truth = Truth(rows, weights, np.ones(m))
    check(found, truth, FLOAT64)
    assert found.unknown == ()
    assert found.conflicts == tuple(k for k in range(m) if truth.slopes[k] < 0)
    assert math.isfinite(found.alignment)
    assert ("thm:PS-fd" in found.results) == (truth.along > 0)
    assert found.norm_bracket[1] <= found.norm_bracket[0] * (1.0 + 1e-9)


def test_huge_weights_that_cancel_are_not_certified() -> None:
    """Rows a, -0.3 a rounded to float32, and b: the slopes of such weights are rounding of the Gramian."""
    a, b = np.array([0.49128, 1.42756, 0.98950]), np.array([-1.71455, -1.91641, -1.80069])
    J = torch.from_numpy(np.stack([a, -0.3 * a, b])).float()
    w = torch.tensor([1e8, 1e8 / 0.3, 1.0], dtype=torch.float64)
    found = pg.certify(pg.gramian(J), w, pg.UPGrad(), dtype=torch.float32)
    assert found.unknown == (0, 1, 2)
    assert not found.non_conflicting
    assert found.conflicts == ()
    assert found.results == ()
    assert math.isnan(found.alignment)
    assert found.norm_bracket[0] <= (w @ J.double()).norm() <= found.norm_bracket[1]
    assert found.keeps_promise is None
    text = str(found)
    assert "not known, at most" in text
    assert "conflicts                 not known: 0, 1, 2" in text
    assert "promise not known         non-conflicting, (A) with c = 1" in text


def test_a_step_of_backward_knows_what_its_gradients_resolve() -> None:
    """Three gaps that cancel: whatever the weights, |d| of .grad lies in the certificate's bracket."""
    torch.manual_seed(81)
    net = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    x, y = torch.randn(256, 10), torch.randn(256, 4)
    a, b, c, d = (net(x) - y).square().mean(0)
    for size in (1.0, 1e8):
        net.zero_grad()
        step = pg.backward([a - b, b - c, c - a, d], pg.Mean([size, size, size, 1.0]), retain_graph=True)
        length = torch.cat([p.grad.flatten() for p in net.parameters()]).norm().item()  # type: ignore[union-attr]
        low, high = step.certificate.norm_bracket
        assert low <= length <= high
        assert step.certificate.keeps_promise is True  # d is the gradient of F, whatever its length
        assert (step.certificate.unknown != ()) == (size == 1e8)


def test_no_conflicts_where_d_is_zero() -> None:
    J = torch.tensor([[1.0, 2.0], [-3.0, -6.0], [0.1, 0.7]], dtype=torch.float64)
    G = pg.gramian(J)
    for weights in ([0.0, 0.0, 0.0], [3.0, 1.0, 0.0], [3e9, 1e9, 0.0]):
        found = pg.certify(G, torch.tensor(weights, dtype=torch.float64))
        assert found.conflicts == ()
    zero = pg.certify(G, torch.zeros(3, dtype=torch.float64))
    assert zero.non_conflicting
    assert zero.norm_bracket == (0.0, 0.0)


def test_weights_are_measured_in_units_of_the_gradients() -> None:
    """A negative weight of 1e-11 is no rounding if its gradient is 1e30 times longer than the other."""
    J = torch.tensor([[1e-15, 0.0], [0.0, 1e15]], dtype=torch.float64)
    found = pg.certify(pg.gramian(J), torch.tensor([1.0, -1e-11], dtype=torch.float64))
    assert not found.in_cone
    assert not found.in_hull
    found = pg.certify(pg.gramian(J), torch.tensor([-1e-11, 1.0], dtype=torch.float64))
    assert found.in_cone  # d is the long gradient, to 1e-41
    assert found.in_hull
    zero = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    found = pg.certify(zero, torch.tensor([6.0, -5.0], dtype=torch.float64))
    assert found.in_cone
    assert not found.in_hull  # d = 6 g_0, and the weights sum to one all the same


@pytest.mark.parametrize("power", [4, 6, 8, 9, 11])
def test_the_bracket_is_rigorous_for_tiny_gammas(power: int) -> None:
    """Two nearly opposite gradients: gamma = |a| 10^-power, down to what no Gramian resolves."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((2, 3))
        rows = np.stack([a, -a * rng.uniform(0.5, 2.0) + 10.0**-power * b])
        G = pg.gramian(torch.from_numpy(rows))
        low, high = pg.certify(G, pg.MGDA().weights(G)).gamma_bracket
        truth = min_norm_square([exact(row) for row in rows.tolist()])
        assert Fraction(low) ** 2 <= truth <= Fraction(high) ** 2
        # Of w'Gw the Gramian's rounding, 4e-15, hides lengths below 6e-8 of the gradients'.
        assert high <= 10.0 * max(10.0**-power, 6e-8) * np.abs(rows).max()


@cache
def gramians() -> list[tuple[str, int, Tensor]]:
    """Of every family with 2, 3 and 6 objectives, made once in a process."""
    found = []
    for name, family in FAMILIES.items():
        for m in (2, 3, 6):
            low, high = family.columns(m)
            if family.min_m <= m <= (family.max_m or m):
                J = family.make(m, low if high is not None else max(low, m), 0)
                found.append((name, m, pg.gramian(J)))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_rule_is_said_to_break_its_promise(row: Row) -> None:
    """And on regular gradients every rule is said to keep it."""
    regular = ("gaussian", "similar_norm", "well_conditioned", "conflicting", "moderately_scaled", "orthogonal")
    for name, m, G in gramians():
        if not row.fits(m):
            continue
        rule = row.make()
        solution = rule.solve(G)
        if solution.status is pg.Status.INACCURATE:
            continue  # it says so itself
        found = pg.certify(G, solution.weights, rule)
        assert not [promise for promise in found.promises if promise.verdict is Verdict.BROKEN], (name, m)
        if name in regular and found.promises:
            assert found.keeps_promise, (name, m, str(found))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_claim_about_a_rule_is_false(name: str) -> None:
    """At stationary points, with zero and duplicate rows, and at norms over many decades."""
    family = FAMILIES[name]
    for m in (2, 3):
        if not family.min_m <= m <= (family.max_m or m):
            continue
        low, high = family.columns(m)
        J = family.make(m, low if high is not None else max(low, 2), 1)
        G = pg.gramian(J)
        for rule in (pg.Mean(), pg.MGDA(), pg.UPGrad(), pg.DualProj(), pg.NashMTL(), pg.CAGrad(), pg.PCGrad()):
            w = rule.weights(G)
            found = pg.certify(G, w, rule)
            check(found, Truth(J.numpy(), w.numpy(), found.F.phi(m)), FLOAT64)


def test_signs_that_cancel() -> None:
    """Five rows of signs, two of them opposite, which may have any weights."""
    rows = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, -1.0], [-1.0, 1.0, -1.0]])
    for seed in range(20):
        weights = np.array([1.0, 0.0, 0.0, 1.0, 0.0]) * 10.0**seed + np.random.default_rng(seed).uniform(size=5)
        found = pg.certify(pg.gramian(torch.from_numpy(rows)), torch.from_numpy(weights))
        check(found, Truth(rows, weights, np.ones(5)), FLOAT64)
