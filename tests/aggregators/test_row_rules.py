"""Rules that need the rows, the losses or several batches: against slow loops of their papers' formulas."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import paretograd as pg
from paretograd.aggregators.registry import FURTHER

Array = NDArray[np.float64]

#: Steps of a comparison.
STEPS = 7
#: Both sides compute in float64. Seven steps of sums of a few numbers lose a few digits of sixteen.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def jacobians(m: int = 3, n: int = 5, steps: int = STEPS) -> list[Array]:
    rng = np.random.default_rng(m * 100 + n)
    return [rng.standard_normal((m, n)) * 10.0 ** rng.uniform(-1, 1, (m, 1)) for _ in range(steps)]


def losses(m: int = 3, steps: int = STEPS) -> list[Array]:
    return list(np.random.default_rng(m).uniform(0.1, 3.0, (steps, m)))


def nearest_on_simplex(v: Array) -> Array:
    """Return the projection onto the simplex, by bisection of the threshold."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(v - middle, 0.0).sum() > 1.0 else (low, middle)
    return np.maximum(v - high, 0.0)


# ---- the papers' formulas, slowly ------------------------------------------------------------------------------------


def moco(beta: float = 0.5, gamma: float = 0.1, rho: float = 0.0) -> Iterator[Array]:
    y, w = np.zeros((3, 5)), np.full(3, 1 / 3)
    for J in jacobians():
        y = y - beta * (y - J)
        w = nearest_on_simplex(w - gamma * (y @ y.T @ w + rho * w))
        yield w @ y


def excess_mtl(lr: float = 1.0) -> Iterator[Array]:
    squares, w, first = np.zeros((3, 5)), np.full(3, 1 / 3), None
    for J in jacobians():
        squares = squares + J**2
        excess = np.array([g @ np.diag(1 / np.sqrt(s)) @ g for g, s in zip(J, squares, strict=True)])
        first = excess if first is None else first
        w = w * np.exp(lr * excess / first)
        w = w / w.sum()
        yield w @ J


def db_mtl(beta: float = 0.9, eps: float = 1e-8) -> Iterator[Array]:
    y = np.zeros((3, 5))
    for J, f in zip(jacobians(), losses(), strict=True):
        y = np.array([beta * y[k] + (1 - beta) * J[k] / (f[k] + eps) for k in range(3)])
        lengths = np.linalg.norm(y, axis=1)
        yield sum(lengths.max() / lengths[k] * y[k] for k in range(3))


def m_config(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Iterator[Array]:
    y, counts, last, squares = np.zeros((3, 5)), np.zeros(3), np.zeros(5), np.zeros(5)
    for t, J in enumerate(jacobians(), 1):
        i = (t - 1) % 3
        y[i] = b1 * y[i] + (1 - b1) * J[i]
        counts[i] += 1
        known = [y[k] / (1 - b1 ** counts[k]) for k in range(3) if counts[k]]
        units = np.array([g / np.linalg.norm(g) for g in known])
        u = np.linalg.pinv(units) @ np.ones(len(known))
        u = u / np.linalg.norm(u)
        u = sum(g @ u for g in known) * u
        gradient = ((1 - b1**t) * u - b1 * last) / (1 - b1)
        last = (1 - b1**t) * u
        squares = b2 * squares + (1 - b2) * gradient**2
        yield u / (np.sqrt(squares / (1 - b2**t)) + eps)


def gradnorm(alpha: float = 1.5, lr: float = 0.025) -> Iterator[Array]:
    """The gradient of the weights' loss comes from torch."""
    w = torch.ones(3, dtype=torch.float64)
    first = torch.from_numpy(losses()[0])
    for J, f in zip(jacobians(), losses(), strict=True):
        yield w.numpy() @ J
        w = w.clone().requires_grad_(True)
        lengths = w * torch.from_numpy(np.linalg.norm(J, axis=1))
        rates = torch.from_numpy(f) / first
        target = (lengths.mean() * (rates / rates.mean()) ** alpha).detach()
        (lengths - target).abs().sum().backward()
        assert w.grad is not None
        w = (w - lr * w.grad).detach().clamp(min=1e-6)
        w = w / w.mean()


def graddrop(seed: int = 0) -> Iterator[Array]:
    """One coordinate after the other, with the rule's own random numbers."""
    rng = np.random.default_rng(seed)
    for J in jacobians():
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        numbers = torch.rand(5, generator=generator, dtype=torch.float64).numpy()
        d = np.zeros(5)
        for i in range(5):
            purity = 0.5 * (1 + J[:, i].sum() / np.abs(J[:, i]).sum())
            d[i] = sum(g for g in J[:, i] if (g > 0 if purity > numbers[i] else g < 0))
        yield d


def trimmed_mean() -> Iterator[Array]:
    for J in jacobians():
        yield np.array([np.mean(sorted(column)[1:-1]) for column in J.T])


REFERENCES: dict[str, tuple[Callable[[], pg.Aggregator], Callable[[], Iterator[Array]]]] = {
    "moco": (pg.MoCo, moco),
    "moco(.2,.01,.1)": (lambda: pg.MoCo(0.2, 0.01, 0.1), lambda: moco(0.2, 0.01, 0.1)),
    "excess-mtl": (pg.ExcessMTL, excess_mtl),
    "excess-mtl(.1)": (lambda: pg.ExcessMTL(0.1), lambda: excess_mtl(0.1)),
    "db-mtl": (pg.DBMTL, db_mtl),
    "db-mtl(.5)": (lambda: pg.DBMTL(0.5), lambda: db_mtl(0.5)),
    "m-config": (pg.MConFIG, m_config),
    "m-config(.5,.9)": (lambda: pg.MConFIG((0.5, 0.9)), lambda: m_config(0.5, 0.9)),
    "gradnorm": (pg.GradNorm, gradnorm),
    "gradnorm(.5,.1)": (lambda: pg.GradNorm(0.5, 0.1), lambda: gradnorm(0.5, 0.1)),
    "graddrop": (lambda: pg.GradDrop(seed=0), graddrop),
    "trimmed-mean": (pg.TrimmedMean, trimmed_mean),
}

cases = pytest.mark.parametrize("name", REFERENCES)


def take(rule: pg.Aggregator, J: Array, f: Array) -> Array:
    if "losses" in rule.needs:
        rule.observe(torch.from_numpy(f))
    return rule(torch.from_numpy(J)).numpy()


@cases
def test_rules_follow_their_papers(name: str) -> None:
    make, reference = REFERENCES[name]
    rule = make()
    for J, f, want in zip(jacobians(), losses(), reference(), strict=True):
        np.testing.assert_allclose(take(rule, J, f), want, **CLOSE)


@cases
def test_state_survives_a_checkpoint(name: str) -> None:
    """A rule that is saved with a model, and loaded with weights_only, goes on as if nothing had happened."""
    make, _ = REFERENCES[name]
    rule, other = make(), make()
    before = list(zip(jacobians(), losses(), strict=True))
    for J, f in before[:3]:
        take(rule, J, f)
    file = io.BytesIO()
    torch.save(rule.as_module().state_dict(), file)
    file.seek(0)
    other.as_module().load_state_dict(torch.load(file, weights_only=True))
    for J, f in before[3:]:
        # The tensors are the same; products depend on their addresses in the last digits.
        np.testing.assert_allclose(take(other, J, f), take(rule, J, f), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@cases
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Rows of any dtype give a direction of that dtype, computed in at least float32."""
    make, _ = REFERENCES[name]
    one, other = make(), make()
    for J, f in zip(jacobians(), losses(), strict=True):
        rounded = torch.from_numpy(J).to(dtype)
        for rule in (one, other):
            if "losses" in rule.needs:
                rule.observe(torch.from_numpy(f))
        got, want = one(rounded), other(rounded.float() if "graddrop" in name else rounded.double())
        assert got.dtype is dtype
        eps = torch.finfo(dtype).eps
        # Moments of squares in float32 and a pseudo-inverse lose two more digits.
        assert (got.double() - want.double()).abs().max() <= 500 * max(eps, 1e-7) * want.double().abs().max()


@pytest.mark.parametrize("scale", [1e-15, 1e15])
@cases
def test_extreme_scales_and_zeros(name: str, scale: float) -> None:
    make, _ = REFERENCES[name]
    rule = make()
    for k, (J, f) in enumerate(zip(jacobians(), losses(), strict=True)):
        J = scale * J
        J[k % 3] = 0.0
        assert np.isfinite(take(rule, J, f)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("make", [pg.ExcessMTL, lambda: pg.MConFIG(eps=0.0)], ids=["excess-mtl", "m-config"])
def test_squares_may_leave_the_range_of_float32(make: Callable[[], pg.Aggregator], scale: float) -> None:
    """Averages of squares are stored as their roots, so these rules keep their degree wherever gradients have one."""
    rule, scaled = make(), make()
    assert rule.guarantee.degree is not None
    for J in jacobians():
        rows = torch.from_numpy(J)
        found = scaled((scale * rows).float()).double() / scale**rule.guarantee.degree
        torch.testing.assert_close(found, rule(rows), rtol=1e-4, atol=1e-5)


@cases
def test_bad_input_changes_nothing(name: str) -> None:
    make, _ = REFERENCES[name]
    rule = make()
    J, f = jacobians()[0], losses()[0]
    take(rule, J, f)
    before = copy.deepcopy(rule.state_dict())
    if "losses" in rule.needs:
        with pytest.raises(pg.ParameterError, match=r"observe\(losses\)"):
            rule(torch.from_numpy(J))
        with pytest.raises(pg.ParameterError, match=r"positive losses.*losses\[1\] = -1"):
            rule.observe([1.0, -1.0, 2.0])
        rule.observe(f)
    bad = torch.from_numpy(J.copy())
    bad[1, 2] = torch.nan
    with pytest.raises(pg.NonFiniteGradientError, match="objective 1"):
        rule(bad)
    if isinstance(rule, pg.RowAggregator):
        for call in (rule.weights, rule.solve):
            with pytest.raises(pg.ParameterError, match="needs the gradients themselves"):
                call(torch.eye(3))
        with pytest.raises(pg.ShapeError, match="one Jacobian of shape"):
            rule(torch.ones(2, 3, 5))
    assert repr(rule.state_dict()) == repr(before)


@pytest.mark.parametrize("make", [pg.DBMTL, pg.GradNorm])
def test_losses_may_be_scalars_with_a_graph(make: type[pg.DBMTL | pg.GradNorm]) -> None:
    x, J = torch.ones(2, requires_grad=True), torch.from_numpy(jacobians()[0][:2])
    found = []
    for given in ([x.sum(), 3.0 * x.sum()], torch.stack([x.sum(), 3.0 * x.sum()]), [2.0, 6.0]):
        rule = make()
        for _ in range(2):
            rule.observe(given)
            d = rule(J)
        found.append(d)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    with pytest.raises(pg.ParameterError, match="losses as numbers, one per objective; got 'ab'"):
        make().observe("ab")  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    for make in (pg.MoCo, pg.ExcessMTL, pg.MConFIG):
        rule = make()
        rule(torch.ones(3, 5))
        with pytest.raises(pg.ShapeError, match="Make a new rule for another model"):
            rule(torch.ones(3, 6))


def test_gradnorm_has_weights_for_each_part_of_a_step() -> None:
    """The Gramians of a batch, such as those of parameter groups, are one step, and each has its own weights."""
    J, f = torch.from_numpy(np.stack(jacobians()[:4])), losses()
    together, apart = pg.GradNorm(), [pg.GradNorm(), pg.GradNorm()]
    for step in range(4):
        pair = J[[step, 3 - step]]
        for rule in (together, *apart):
            rule.observe(f[step])
        wanted = torch.stack([rule.weights(G) for rule, G in zip(apart, pg.gramian(pair), strict=True)])
        torch.testing.assert_close(together.weights(pg.gramian(pair)), wanted, rtol=1e-12, atol=0.0)
    assert not torch.allclose(wanted[0], wanted[1])


def test_gradnorm_counts_no_step_that_fails() -> None:
    rule = pg.GradNorm()
    G = torch.eye(3, dtype=torch.float64)
    rule.observe([1.0, 2.0, 3.0])
    rule.weights(G)
    before = rule.state_dict()
    rule.observe([2.0, 1.0, 3.0])
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights(torch.stack([G, G * torch.nan]))
    rule.observe([1.0, 2.0])
    with pytest.raises(pg.ParameterError, match=r"numbers for m=3 objectives .* use a new rule"):
        rule.weights(torch.eye(2))
    assert rule.state_dict() == before
    with pytest.raises(pg.ParameterError, match="loads what its state_dict returned"):
        rule.load_state_dict({"weights": [1.0]})


def test_graddrop_keeps_what_all_agree_on_and_leaks() -> None:
    J = torch.tensor([[1.0, -2.0, 3.0], [2.0, -1.0, -3.0]], dtype=torch.float64)
    for seed in range(20):
        d = pg.GradDrop(seed=seed)(J)
        assert d[0] == 3.0
        assert d[1] == -3.0
        assert d[2] in (3.0, -3.0)
        torch.testing.assert_close(pg.GradDrop(1.0, seed=seed)(J), J.sum(dim=0))
        leaked = pg.GradDrop([0.0, 1.0], seed=seed)(J)[2]
        assert leaked in (0.0, -3.0)
    with pytest.raises(pg.ParameterError, match="leak has 3 numbers"):
        pg.GradDrop([0.1, 0.2, 0.3])(J)


def test_graddrop_keeps_the_expected_sign() -> None:
    """A coordinate is positive with the probability of its purity: 3 of 4 here; 4,000 draws are off by 0.02."""
    J = torch.tensor([[3.0], [-1.0]], dtype=torch.float64).expand(2, 4000)
    assert float((pg.GradDrop(seed=1)(J) > 0).double().mean()) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("leak", [0.0, 0.3])
def test_graddrop_is_the_sum_in_expectation(leak: float) -> None:
    """A coordinate is 3 or -1 before the leak, whose mean is 2; 10,000 draws are off by 0.02, a standard error."""
    J = torch.tensor([[3.0], [-1.0]], dtype=torch.float64).expand(2, 10_000)
    assert float(pg.GradDrop(leak, seed=2)(J).mean()) == pytest.approx(2.0, abs=0.08)


def test_trimmed_mean_ignores_one_attacker() -> None:
    J = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    attacked = J.clone()
    attacked[3] = 1e9
    d = pg.TrimmedMean()(attacked)
    honest = J[[0, 1, 2, 4]]
    assert (d <= honest.max(dim=0).values).all()
    assert (d >= honest.min(dim=0).values).all()
    with pytest.raises(pg.ParameterError, match="use at most 1"):
        pg.TrimmedMean(2)(J[:4])


# ---- independent batches ---------------------------------------------------------------------------------------------


def triples() -> list[tuple[Array, ...]]:
    return list(zip(jacobians(3, 5), jacobians(3, 5)[::-1], jacobians(3, 5)[2:] + jacobians(3, 5)[:2], strict=True))


def test_modo_follows_its_paper() -> None:
    rule, w = pg.MoDo(0.05, 0.2), np.full(3, 1 / 3)
    for one, two, three in triples():
        w = nearest_on_simplex(w - 0.05 * (one @ two.T @ w + 0.2 * w))
        got = rule([torch.from_numpy(J) for J in (one, two, three)])
        np.testing.assert_allclose(got, w @ three, **CLOSE)


def test_sdmgrad_follows_its_paper() -> None:
    p = np.array([0.25, 0.5, 0.25])
    for normalize in (False, True):
        rule = pg.SDMGrad(lam=0.4, lr=0.03, steps=5, normalize=normalize, preference=[1, 2, 1])
        _compare_sdmgrad(rule, p, normalize)


def _compare_sdmgrad(rule: pg.SDMGrad, p: Array, normalize: bool) -> None:
    w = np.full(3, 1 / 3)
    for one, two, three in triples():
        scale = np.mean([max(g @ h, 0.0) ** 0.5 for g, h in zip(one, two, strict=True)]) if normalize else 1.0
        for _ in range(5):
            w = nearest_on_simplex(w - 0.03 / scale**2 * (one @ (two.T @ w + 0.4 * two.T @ p)))
        got = rule(torch.from_numpy(np.stack([one, two, three])))
        np.testing.assert_allclose(got, (w + 0.4 * p) @ three / 1.4, **CLOSE)


@pytest.mark.parametrize("cross", [[[-2, 2], [3, -3]], [[1, 0, -1], [-1, 2, -1], [0, 3, 2]]])
def test_rounding_does_not_decide_between_objectives(cross: list[list[int]]) -> None:
    """The default steps enlarge rounding by far. It must not depend on the order of the objectives."""
    X = torch.tensor(cross, dtype=torch.float64)
    w = pg.SDMGrad().weights_from(X)
    for order in map(list, itertools.permutations(range(len(X)))):
        assert torch.equal(pg.SDMGrad().weights_from(X[order][:, order]), w[order])


def test_two_batches_use_the_second_for_the_direction() -> None:
    one, two, _ = map(torch.from_numpy, triples()[0])
    rule = pg.MoDo()
    weights = pg.MoDo().weights_from(one @ two.T)
    torch.testing.assert_close(rule([one, two]), weights @ two)
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("make", [pg.MoDo, pg.SDMGrad])
def test_a_gramian_is_refused(make: type[pg.CrossAggregator]) -> None:
    """`J1 @ J2.T` is no Gramian, and the interface says so."""
    rule = make()
    for call in (rule.weights, rule.solve, rule):
        with pytest.raises(pg.ParameterError, match="two or three independent batches"):
            call(torch.eye(3))
    for wrong, words in (([torch.eye(3)], "got 1"), (torch.ones(4, 3, 5), "got 4"), (None, "got a NoneType")):
        for refuse in (rule, lambda given: pg.backward(given, rule)):
            with pytest.raises(pg.ParameterError, match=f"two or three independent batches; {words}"):
                refuse(list(wrong) if isinstance(wrong, torch.Tensor) else wrong)
    with pytest.raises(pg.ShapeError):
        rule.weights_from(torch.ones(2, 3))
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights_from(torch.full((2, 2), torch.nan))
    assert rule.state_dict() == {"weights": None}
    rule.weights_from(torch.eye(3))
    with pytest.raises(pg.ShapeError, match="make a new rule"):
        rule.weights_from(torch.eye(4))
    other = make()
    other.as_module().load_state_dict(rule.as_module().state_dict())
    torch.testing.assert_close(other.weights_from(torch.ones(3, 3)), rule.weights_from(torch.ones(3, 3)))


def test_a_cross_gramian_is_unbiased() -> None:
    """The mean of J1 J2' over independent batches is the Gramian of the mean; that of J J' is larger."""
    rng = np.random.default_rng(0)
    J = rng.standard_normal((2, 4))
    noisy = J + rng.standard_normal((2, 20_000, 2, 4))
    cross = np.einsum("bik,bjk->ij", noisy[0], noisy[1]) / 20_000
    np.testing.assert_allclose(cross, J @ J.T, atol=0.1)  # 4 standard errors of a sum of four products
    assert (np.einsum("bik,bik->i", noisy[0], noisy[0]) / 20_000 - (J @ J.T).diagonal() > 3.8).all()


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert set(FURTHER) == set(pg.names(further=True)) - set(pg.names())
    for name, cls in FURTHER.items():
        rule = pg.get(name)
        assert type(rule) is cls
        assert cls.__name__ in pg.__all__
        assert rule.needs != {"gramian"}
        assert rule.guarantee.theorem is None
        assert rule.description.formula


def test_vectors_are_printed_and_depend_on_the_order() -> None:
    for vector in ([0.25, 0.75], torch.tensor([0.25, 0.75])):
        for rule, shown in (
            (pg.SDMGrad(preference=vector), "SDMGrad(preference=[0.25, 0.75])"),
            (pg.GradDrop(vector), "GradDrop(leak=[0.25, 0.75])"),
        ):
            assert repr(rule) == shown
            assert not rule.guarantee.equivariant
    assert pg.SDMGrad().guarantee.equivariant


def test_wrappers_hand_losses_on() -> None:
    J, f = torch.from_numpy(jacobians()[0]), losses()[0]
    for rule in (pg.GradNorm().normalized(), pg.Mixed([pg.GradNorm()]), pg.Blend([pg.GradNorm()])):
        assert "losses" in rule.needs
        rule.observe(f)
        assert rule(J).isfinite().all()
    with pytest.raises(pg.ParameterError, match="cannot be a part of another rule"):
        pg.Mixed([pg.TrimmedMean()])(J)
