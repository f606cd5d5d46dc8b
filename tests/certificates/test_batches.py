"""Intervals for the expected losses: their coverage by simulation, what they estimate, and wrong input.

A simulation draws the gradients of K micro-batches with known means, lets a rule make a direction from their mean, and
counts how often an interval misses the true number. With a coverage of exactly 95%, the number of misses in N draws is
binomial, and exceeds `most_misses` once in ten thousand cases. All seeds are fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor, nn

import paretograd as pg

LEVEL, DRAWS = 0.95, 400
Array = NDArray[np.float64]


def most_misses(draws: int) -> int:
    return int(binom.ppf(1.0 - 1e-4, draws, 1.0 - LEVEL))


class Source(NamedTuple):
    """Gradients of micro-batches: their means, shape ``(m, n)``, and how their noise is drawn."""

    mean: Array
    noise: str = "normal"
    shared: float = 0.0  # correlation of the noise of different losses
    decay: float = 0.0  # the noise in direction i is proportional to i^-decay

    def draw(self, rng: np.random.Generator, K: int) -> Array:
        """K gradients per loss, ``(K, m, n)``. The noise has about norm one."""
        m, n = self.mean.shape
        scale = np.arange(1.0, n + 1.0) ** -self.decay
        scale /= np.linalg.norm(scale)
        own, common = rng.standard_normal((K, m, n)), rng.standard_normal((K, 1, n))
        noise = (np.sqrt(1.0 - self.shared) * own + np.sqrt(self.shared) * common) * scale
        if self.noise == "heavy":  # Student's t with three degrees of freedom: no third moment
            noise /= np.sqrt(rng.chisquare(3.0, (K, 1, 1)) / 3.0)
        return self.mean + noise


def random_mean(m: int, n: int, length: float, seed: int = 0) -> Array:
    return length / np.sqrt(n) * np.random.default_rng(seed).standard_normal((m, n))


def stationary_mean(m: int, n: int) -> Array:
    mean = random_mean(m, n, 1.0)
    mean[-1] = -mean[:-1].sum(axis=0)
    return mean


def conflicting_mean(n: int) -> Array:
    """The mean of these gradients opposes the second."""
    v = random_mean(1, n, 1.0)
    return np.concatenate([3.0 * v, -v])


SOURCES = {
    "strong signal": Source(random_mean(3, 40, 3.0)),
    "few parameters": Source(random_mean(2, 3, 1.0)),
    "noise dominates": Source(random_mean(3, 500, 0.1), shared=0.5),
    "only noise": Source(np.zeros((2, 500))),
    "stationary": Source(stationary_mean(3, 40), decay=1.0),
    "conflict": Source(conflicting_mean(40), shared=0.99, decay=0.5),
    "one loss, one parameter": Source(np.ones((1, 1))),
    "heavy tails": Source(random_mean(3, 40, 1.0), "heavy", 0.5, 1.0),
    "heavy tails, few parameters": Source(random_mean(3, 5, 2.0), "heavy", 0.5),
}


def gramian_of(gradients: Array | Tensor) -> Tensor:
    """Inner products of the gradients of K micro-batches, ``(K, m, K, m)``."""
    rows = torch.as_tensor(gradients)
    K, m, _ = rows.shape
    return pg.gramian(rows.flatten(0, 1)).view(K, m, K, m)


class Misses(NamedTuple):
    slopes: NDArray[np.int_]
    gamma: int
    naive: NDArray[np.int_]


def simulate(draw: object, mean: Array, K: int, rule: pg.Aggregator, draws: int = DRAWS) -> Misses:
    """Count the intervals that miss, and those of a t-test on the batch's own slopes."""
    rng = np.random.default_rng(K)
    gamma = float(pg.stationarity(pg.gramian(torch.from_numpy(mean))))
    slopes, naive, missed = np.zeros(len(mean), int), np.zeros(len(mean), int), 0
    for _ in range(draws):
        gradients = draw(rng, K)  # type: ignore[operator]
        H = gramian_of(gradients)
        w = rule.weights(H.mean(dim=(0, 2)))
        found = pg.certify(H, w).expected
        assert found is not None
        d = w.numpy() @ gradients.mean(axis=0)
        low, high = np.array(found.slope_intervals).T
        slopes += ~((low <= mean @ d) & (mean @ d <= high))
        missed += not found.gamma_interval[0] <= gamma <= found.gamma_interval[1]
        each = gradients @ d
        t = 2.3646 if K == 8 else 3.1824  # 97.5% of Student's t
        naive += np.abs(each.mean(axis=0) - mean @ d) > t * each.std(axis=0, ddof=1) / np.sqrt(K)
    return Misses(slopes, missed, naive)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("K", "rule"), [(4, pg.UPGrad()), (8, pg.MGDA()), (8, pg.Mean())], ids=["4", "8", "8-mean"])
def test_coverage(name: str, K: int, rule: pg.Aggregator) -> None:
    """Slopes and gamma are covered, also with weights from the same batch."""
    source = SOURCES[name]
    found = simulate(source.draw, source.mean, K, rule)
    assert found.slopes.max() <= most_misses(DRAWS)
    assert found.gamma <= most_misses(DRAWS)


def test_the_batchs_own_slopes_are_not_covered() -> None:
    """A t-test on the batch's slopes nearly always misses if noise dominates, since d holds the same noise."""
    source = SOURCES["noise dominates"]
    assert simulate(source.draw, source.mean, 8, pg.UPGrad(), 100).naive.min() >= 95


@pytest.fixture(scope="module")
def sample_gradients() -> Array:
    """Gradients of two losses of a small network for each of 1,000 samples, half trained, ``(1000, 2, n)``."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(1000, 4, dtype=torch.float64)
    target = torch.sin(2.0 * x[:, 0]) + 0.5 * torch.randn(1000, dtype=torch.float64).exp()  # skewed noise
    label = (x[:, 1] * x[:, 2] + torch.randn(1000, dtype=torch.float64) > 0.0).double()

    def losses(params: dict[str, Tensor], x: Tensor, target: Tensor, label: Tensor) -> Tensor:
        y = torch.func.functional_call(net, params, (x,))
        return torch.stack([(y[0] - target).square(), nn.functional.softplus(y[1]) - label * y[1]])

    params = {name: value.detach() for name, value in net.named_parameters()}
    each = torch.func.vmap(torch.func.jacrev(losses), in_dims=(None, 0, 0, 0))
    for _ in range(30):
        rows = torch.cat([part.flatten(2) for part in each(params, x, target, label).values()], dim=2)
        d = pg.UPGrad()(rows.mean(dim=0))
        sizes = [value.numel() for value in params.values()]
        parts = zip(params.items(), d.split(sizes), strict=True)
        params = {name: value - 0.3 * part.view_as(value) for (name, value), part in parts}
    rows = torch.cat([part.flatten(2) for part in each(params, x, target, label).values()], dim=2)
    return rows.numpy()


@pytest.mark.parametrize(("K", "size"), [(4, 16), (8, 8), (8, 32)])
@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.MGDA()], ids=lambda rule: rule.name)
def test_coverage_for_a_network(sample_gradients: Array, rule: pg.Aggregator, K: int, size: int) -> None:
    """Micro-batches of 8 to 32 samples, drawn with replacement, so that all samples are the expectation."""

    def draw(rng: np.random.Generator, K: int) -> Array:
        chosen = rng.integers(len(sample_gradients), size=(K, size))
        return sample_gradients[chosen].mean(axis=1)

    found = simulate(draw, sample_gradients.mean(axis=0), K, rule)
    assert found.slopes.max() <= most_misses(DRAWS)
    assert found.gamma <= most_misses(DRAWS)


def test_slopes_are_unbiased_for_given_weights() -> None:
    """The mean error over 2,000 batches is zero to four standard errors; that of the batch's slopes is not."""
    source, K, w = SOURCES["noise dominates"], 4, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    rng, errors, own = np.random.default_rng(0), [], []
    for _ in range(2000):
        gradients = source.draw(rng, K)
        found = pg.certify(gramian_of(gradients), w)
        assert found.expected is not None
        truth = source.mean @ (w.numpy() @ gradients.mean(axis=0))
        errors.append(found.expected.slopes - truth)
        own.append(found.slopes - truth)
    for values, biased in ((np.array(errors), False), (np.array(own), True)):
        z = np.abs(values.mean(axis=0)) / (values.std(axis=0) / np.sqrt(len(values)))
        assert (z > 50.0).all() if biased else (z < 4.0).all()


def test_slopes_are_those_of_each_micro_batch_along_the_direction_of_the_others() -> None:
    K, w = 5, torch.tensor([0.2, 0.8, 0.5], dtype=torch.float64)
    gradients = torch.from_numpy(SOURCES["strong signal"].draw(np.random.default_rng(1), K))
    found = pg.certify(gramian_of(gradients), w).expected
    others = [w @ gradients[torch.arange(K) != i].mean(dim=0) for i in range(K)]
    each = torch.stack([gradients[i] @ others[i] for i in range(K)])
    assert found is not None
    assert found.slopes == pytest.approx(each.mean(dim=0).tolist(), rel=1e-12)


def test_the_batch_is_certified_as_before() -> None:
    """All other fields are those of the mean Gramian."""
    gradients = SOURCES["strong signal"].draw(np.random.default_rng(2), 6)
    H, rule = gramian_of(gradients), pg.UPGrad()
    G = H.mean(dim=(0, 2))
    of_parts, of_batch = pg.certify(H, rule.weights(G), rule), pg.certify(G, rule.weights(G), rule)
    assert of_batch.expected is None
    assert of_parts.expected is not None
    assert str(of_parts).startswith(str(of_batch))
    assert "0.95 intervals from 6 micro-batches" in str(of_parts)
    assert of_parts.slopes == pytest.approx(of_batch.slopes, rel=1e-12)


def test_conflicts_of_the_expected_losses() -> None:
    """The mean of (3, 0) and (-1, 0) raises the second loss: certain with little noise, unknown with much."""
    rng, w = np.random.default_rng(0), torch.tensor([0.5, 0.5], dtype=torch.float64)
    mean = np.array([[3.0, 0.0], [-1.0, 0.0]])
    for noise, conflicts, unknown in ((0.1, (1,), ()), (20.0, (), (0, 1))):
        found = pg.certify(gramian_of(mean + noise * rng.standard_normal((8, 2, 2))), w).expected
        assert found is not None
        assert (found.conflicts, found.unknown) == (conflicts, unknown)
        assert found.gamma_interval[0] == 0.0


def test_micro_batches_without_noise_leave_only_rounding() -> None:
    J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    w = pg.UPGrad().weights(pg.gramian(J))
    found = pg.certify(gramian_of(J.expand(4, 2, 2)), w)
    assert found.expected is not None
    for slope, (low, high) in zip(found.slopes, found.expected.slope_intervals, strict=True):
        assert low <= slope <= high
        assert high - low <= 1e-12
    assert found.expected.gamma_interval == pytest.approx((found.gamma, found.gamma), rel=1e-6)


def test_scales() -> None:
    """Intervals scale with the gradients: slopes by the square, gamma linearly."""
    gradients = SOURCES["strong signal"].draw(np.random.default_rng(3), 5)
    w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    plain, scaled = (pg.certify(gramian_of(c * gradients), w).expected for c in (1.0, 1e-9))
    assert plain is not None
    assert scaled is not None
    assert np.array(scaled.slope_intervals) == pytest.approx(1e-18 * np.array(plain.slope_intervals), rel=1e-9)
    assert scaled.gamma_interval == pytest.approx([1e-9 * end for end in plain.gamma_interval], rel=1e-9)


def test_a_higher_level_is_wider() -> None:
    H = gramian_of(SOURCES["strong signal"].draw(np.random.default_rng(4), 6))
    w = torch.full((3,), 1 / 3, dtype=torch.float64)
    narrow, wide = (pg.certify(H, w, level=level).expected for level in (0.5, 0.99))
    assert narrow is not None
    assert wide is not None
    for (a, b), (c, d) in zip(narrow.slope_intervals, wide.slope_intervals, strict=True):
        assert c < a < b < d
    assert wide.gamma_interval[1] > narrow.gamma_interval[1]


def test_wrong_input() -> None:
    H, w = gramian_of(SOURCES["strong signal"].draw(np.random.default_rng(5), 6)), torch.ones(3)
    with pytest.raises(pg.ShapeError, match="at least 4 micro-batches; got K = 3"):
        pg.certify(H[:3, :, :3], w)
    with pytest.raises(pg.ParameterError, match="probability"):
        pg.certify(H, w, level=95.0)
    with pytest.raises(pg.ShapeError, match=r"\(K, m, K, m\)"):
        pg.certify(H.permute(0, 2, 1, 3), w)
    with pytest.raises(pg.ShapeError, match="one number per objective"):
        pg.certify(H, torch.ones(18))
    H[4, 1, 2, 0] = H[2, 0, 4, 1] = float("nan")
    with pytest.raises(pg.NonFiniteGradientError) as found:
        pg.certify(H, w)
    assert found.value.objectives == [0, 1]
