"""Rules on gradients whose norms span hundreds of decades, judged in exact arithmetic.

Slopes are computed from the rows and the weights as fractions. Rounding of the Gramian counts relative to the terms of
the sum, ``sum_k |w_k| |g_k|``: a slope is known to about 1e-15 of it, times the gradient's norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.families import FAMILIES
from support.promises import check_promises

import paretograd as pg
from paretograd.guarantees import MEAN

Array = NDArray[np.float64]

#: A few hundred units of rounding.
TOLERANCE = Fraction(1, 10**13)

RULES: dict[str, Callable[[], pg.Aggregator]] = {
    "capped-mgda(eps=.5)": lambda: pg.CappedMGDA(eps=0.5),
    "capped-mgda(eps=.9)": lambda: pg.CappedMGDA(eps=0.9),
    "clipped-mgda": pg.ClippedMGDA,
    "spectral-mgda": pg.SpectralMGDA,
    "spectral-mgda(.7,.3)": lambda: pg.SpectralMGDA([0.7, 0.3]),
    "chi-square-mgda": pg.ChiSquareMGDA,
    "chi-square-mgda(.01)": lambda: pg.ChiSquareMGDA(0.01),
    "chi-square-mgda(2)": lambda: pg.ChiSquareMGDA(2.0),
    "entropic-mgda": pg.EntropicMGDA,
    "power-mean(.5)": lambda: pg.PowerMean(0.5),
    "power-mean(-1)": lambda: pg.PowerMean(-1.0),
    "power-mean(-20)": lambda: pg.PowerMean(-20.0),
    "nash-mtl": pg.NashMTL,
    "fairgrad(.5)": lambda: pg.FairGrad(0.5),
    "fairgrad": pg.FairGrad,
    "fairgrad(10)": lambda: pg.FairGrad(10.0),
    "pivrg": pg.PIVRG,
}
rules = pytest.mark.parametrize("name", RULES)


def root(value: Fraction) -> Fraction:
    """The square root to sixty bits and more."""
    shift = max(0, value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 80
    return Fraction(math.isqrt(value.numerator * 4**shift // value.denominator), 2**shift)


def exact(values: Array) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def check_exactly(rule: pg.Aggregator, J: Array) -> None:
    """Assert status, sets, conflicts and condition (A), the last two to rounding of the terms of the sum."""
    promise, m = rule.guarantee, len(J)
    solution = rule.solve(pg.gramian(torch.from_numpy(J)))
    w = solution.weights.numpy()
    assert np.isfinite(w).all()
    assert solution.status.ok, solution
    if not w.any():
        assert solution.status is pg.Status.STATIONARY
        return
    if promise.in_cone:
        assert w.min() >= 0.0
    if promise.in_hull:
        assert abs(w.sum() - 1.0) <= 1e-13
    rows, weights = [exact(row) for row in J], exact(w)
    norms = [root(sum(x * x for x in row)) for row in rows]
    terms = sum(abs(a) * norm for a, norm in zip(weights, norms, strict=True))
    d = [sum(a * x for a, x in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]
    slopes = [sum(x * y for x, y in zip(row, d, strict=True)) for row in rows]
    if promise.non_conflicting:
        for slope, norm in zip(slopes, norms, strict=True):
            assert slope >= -TOLERANCE * norm * terms
    if promise.alignment is not None:
        assert promise.F == MEAN
        mean, longest = sum(slopes) / m, max(norms)
        assert mean - Fraction(promise.alignment) * sum(x * x for x in d) >= -TOLERANCE * terms * (longest + terms)


def spread(seed: int, decades: float) -> Array:
    """Gaussian, dependent, integer or near-parallel rows with norms log-uniform over so many decades either way."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 7))
    n = int(rng.integers(1, 2 * m + 1))
    J = rng.standard_normal((m, n))
    if seed % 4 == 1:
        r = int(rng.integers(1, min(m, n) + 1))
        J = rng.standard_normal((m, r)) @ rng.standard_normal((r, n))
    elif seed % 4 == 2:
        J = rng.integers(-3, 4, (m, n)).astype(np.float64)
    elif seed % 4 == 3:
        J[-1] = rng.choice([-1.0, 1.0]) * J[0] * (1.0 + 1e-5 * rng.standard_normal(n))
    lengths = np.linalg.norm(J, axis=1, keepdims=True)
    return J / np.where(lengths > 0.0, lengths, 1.0) * 10.0 ** rng.uniform(-decades, decades, (m, 1))


@rules
@pytest.mark.parametrize("decades", [15.0, 149.0])
def test_promises_hold_exactly(name: str, decades: float) -> None:
    for seed in range(24):
        check_exactly(RULES[name](), spread(seed, decades))


@rules
@pytest.mark.parametrize("exponents", [(-140, 0, 145), (0, 145, -140), (-150, -150, 100), (-60, -20, 140)])
def test_three_rows(name: str, exponents: tuple[int, int, int]) -> None:
    """On a line, in a plane and in space, some of them stationary."""
    scale = 10.0 ** np.array(exponents, dtype=np.float64)[:, None]
    for J in ([[1.0], [-2.0], [3.0]], [[1.0, 0.0], [1.0, 1.0], [-2.0, 1.0]], [[1.0, 1.0], [-1.0, -1.0], [1.0, 0.0]]):
        check_exactly(RULES[name](), np.array(J) * scale)


def test_a_weight_far_below_rounding_keeps_its_value() -> None:
    """The sum of the others is one to rounding, and the long gradient cancels them with a weight of 5.6e-26."""
    J = np.array([[-1.2121645330993309e-15], [2.5651182086496952e-12], [2.447186525804668e-06], [-22832557668268.863]])
    solution = pg.CappedMGDA(eps=0.5).solve(pg.gramian(torch.from_numpy(J)))
    assert solution.status is pg.Status.STATIONARY
    assert abs(solution.weights.numpy() @ J) <= 1e-15 * (solution.weights.numpy() @ np.abs(J))
    check_exactly(pg.CappedMGDA(eps=0.5), J)


def test_opposite_gradients_that_no_cap_holds_back() -> None:
    """Weight moves to a pair that cancels, by 1e9 times the norm of what it leaves."""
    J = np.array([[8.8e-48, 8.8e-48], [0.0, 0.0], [4.1e-57, -2.7e-57], [-1.2e-36, -1.2e-36]])
    solution = pg.CappedMGDA(cap=0.5).solve(pg.gramian(torch.from_numpy(J)))
    assert solution.status is pg.Status.STATIONARY
    check_exactly(pg.CappedMGDA(cap=0.5), J)


@pytest.mark.parametrize("spectrum", [None, [4.0, 2.0, 1.0], [0.7, 0.3]])
def test_squares_of_ratios_do_not_overflow(spectrum: list[float] | None) -> None:
    """Next to a zero gradient, and within a face of the permutahedron that holds long gradients only."""
    check_exactly(pg.SpectralMGDA(spectrum), np.array([[2e145], [7e-131], [0.0]]))
    check_exactly(pg.SpectralMGDA(spectrum), np.array([[8e-108], [0.0], [8e123], [-8e100]]))
    J = np.array([[6e-125, 1.8e-128], [2.3e59, 1.7e56], [-8.3e63, 3.3e61], [-3.5e88, 2.3e85]])
    check_exactly(pg.SpectralMGDA(spectrum), J)


@pytest.mark.parametrize("radius", [0.01, 0.5, 2.0])
def test_chi_square_ball_at_any_scale(radius: float) -> None:
    """A pair that is opposite to 1e-7, and lengths whose squares leave float64 next to each other."""
    rng = np.random.default_rng(5)
    J = rng.standard_normal((4, 8))
    J[3] = -1.27 * J[0] * (1.0 + 1e-7 * rng.standard_normal(8))
    J *= 10.0 ** np.array([[-41.0], [-131.0], [84.0], [-41.0]])
    for scale in (1.0, 1e60, 1e-20):
        check_exactly(pg.ChiSquareMGDA(radius), scale * J)
    tiny = np.array([[1e-153, 0.0], [0.0, 2e-153], [-1e-153, 1e-153], [1.0, 1.0]])
    check_exactly(pg.ChiSquareMGDA(radius), tiny)


def test_chi_square_ball_that_touches_the_simplex() -> None:
    """With m = 3 and radius 1/2 only (1/2, 1/2, 0) has no weight on the longest row: there mu goes to infinity."""
    J = np.array([[-6e7, 0.0, 0.0], [-6e-4, -4e-4, -7e-4], [1e-5, -5e-6, 6e-6]])
    w = pg.ChiSquareMGDA(0.5).weights(pg.gramian(torch.from_numpy(J))).numpy()
    terms = w * np.linalg.norm(J, axis=1)
    assert terms[0] <= 1e-3 * terms[1]  # up to the cube root of the norms' ratio, 1e-11
    check_exactly(pg.ChiSquareMGDA(0.5), J)


FAR = [
    [4.593780391645474, -2.9142983387156908, -7.43426258914942],
    [4.5143052239773434, -8.810196916998919, -2.3120854953403503],
    [6.19545919205186, 5.44376348732561, -0.5406471532658441],
    [4.204332725307485, -3.491819366592245, -7.375000765451742],
    [-13.40008837566843, -4.740510517148168, -1.5297385590929733],
]


@pytest.mark.parametrize("p", [0.9, 0.5, -1.0])
def test_the_power_equation_does_not_depend_on_the_scale(p: float) -> None:
    """Down to norms of 1e-94 and up to 1e93. Logarithms of norms, up to 217, round to 3e-14."""
    J = torch.tensor(FAR, dtype=torch.float64)
    base, steps = pg.PowerMean(p)(J), pg.PowerMean(p).solve(pg.gramian(J)).steps
    for power in (-311, -50, 50, 311):
        solution = pg.PowerMean(p).solve(pg.gramian(2.0**power * J))
        assert solution.status is pg.Status.OPTIMAL
        assert abs(solution.steps - steps) <= 2
        assert (pg.PowerMean(p)(2.0**power * J) / 2.0**power - base).norm() <= 1e-11 * base.norm()


def test_slopes_that_are_rounding_are_not_negative() -> None:
    """At p = 0.9 the least slope is 1e-17 of the terms: it is raised to the rounding of a slope."""
    check_promises(pg.PowerMean(0.9), FAMILIES["nearly_stationary"].make(3, 6, 302))


@pytest.mark.parametrize(
    "rule", [pg.NashMTL(), pg.FairGrad(), pg.PIVRG(), pg.PowerMean(0.5)], ids=lambda rule: rule.name
)
def test_dependent_gradients_next_to_a_stationary_point(rule: pg.Aggregator) -> None:
    """Rounding along the null vectors of the cosines must not enter the slopes."""
    rng = np.random.default_rng(4)
    for gap in (1e-3, 1e-5, 3e-7):
        J = rng.standard_normal((6, 4))
        J[-1] = -rng.uniform(0.2, 2.0, 5) @ J[:-1]
        J[:, -1] = gap
        check_exactly(rule, J)
