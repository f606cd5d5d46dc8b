"""The theorems in the metric of a preconditioner: a test of every entry of `METRIC_RESULTS`.

Quadratics have known smoothness constants in every metric, so that the bounds are checked with the exact constants. A
statement that is not proved has its counter-example here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest
import torch
from scipy.optimize import nnls
from support.families import FAMILIES
from torch import Tensor

import paretograd as pg

#: Relative rounding of sums over a few hundred steps in float64.
ROUNDING = 1e-9
#: Rules in the hull that never conflict, and rules that may conflict and have (A) for the mean.
NON_CONFLICTING = [pg.MGDA(), pg.UPGrad().normalized(), pg.NashMTL().normalized(), pg.DualProj().normalized()]
ALIGNED = [pg.Mean(), pg.CAGrad(0.5), pg.CappedMGDA(cap=0.6), pg.PowerMean(-1.0)]

TESTED: set[str] = set()
Test = TypeVar("Test", bound=Callable[..., object])


def states(*labels: str) -> Callable[[Test], Test]:
    """Mark a test with the statements that it tests."""
    TESTED.update(f"metric:{label}" for label in labels)
    return lambda test: test


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def metric(n: int, seed: int, low: float = 0.1, high: float = 10.0) -> Tensor:
    """A positive definite P with eigenvalues from ``low`` to ``high``."""
    Q = torch.linalg.qr(random(n, n, seed=seed)).Q
    return (Q * torch.logspace(0, 1, n, base=high / low, dtype=torch.float64) * low) @ Q.T


def root(P: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(P)
    return (vectors * values.sqrt()) @ vectors.T


def below(P: Tensor, seed: int) -> Tensor:
    """A random P_t <= P, with eigenvalues of 0.1 to 1 relative to P."""
    return root(P) @ metric(len(P), seed, 0.1, 1.0) @ root(P)


def square(u: Tensor, P: Tensor) -> float:
    """``|u|^2 = u' P^-1 u``."""
    return float(u @ torch.linalg.solve(P, u))


def project(v: Tensor, J: Tensor, P: Tensor) -> Tensor:
    """The point of ``{u : J u >= 0}`` closest to v in the norm of P^-1, by non-negative least squares."""
    half = root(P)
    a = nnls((J @ half).T.numpy(), -torch.linalg.solve(half, v).numpy())[0]
    return v + P @ J.T @ torch.from_numpy(a)


@dataclass
class Quadratics:
    """``f_k = (w - c_k)' H_k (w - c_k) / 2 >= 0``."""

    H: Tensor
    c: Tensor

    @classmethod
    def draw(cls, m: int, n: int, seed: int) -> Quadratics:
        H = torch.stack([metric(n, 1000 * seed + k, 0.05, 1.0) for k in range(m)])
        return cls(H, random(m, n, seed=seed))

    def losses(self, w: Tensor) -> Tensor:
        return 0.5 * ((w - self.c) * self.jacobian(w)).sum(dim=1)

    def jacobian(self, w: Tensor) -> Tensor:
        return torch.einsum("kij,kj->ki", self.H, w - self.c)

    def smoothness(self, P: Tensor, phi: Tensor | None = None) -> float:
        """Of every f_k in the metric of P, or of ``sum_k phi_k f_k``."""
        H = self.H if phi is None else torch.einsum("k,kij->ij", phi, self.H)
        return float(torch.linalg.eigvalsh(root(P) @ H @ root(P)).max())


@dataclass
class Taken:
    """One step: point, losses, Jacobian, weights, and the squared length of the direction in its metric."""

    w: Tensor
    losses: Tensor
    J: Tensor
    P: Tensor
    weights: Tensor

    @property
    def d(self) -> Tensor:
        return self.J.T @ self.weights

    @property
    def length(self) -> float:
        return float(self.d @ self.P @ self.d)

    @property
    def gamma(self) -> float:
        return float(pg.stationarity(self.J @ self.P @ self.J.T))


def steps(
    problem: Quadratics,
    rule: pg.Aggregator,
    metrics: Iterator[Tensor] | Tensor,
    eta: float,
    count: int,
    beta: float = 0.0,
    projected: bool = False,
) -> Iterator[tuple[Taken, Tensor]]:
    """Descend with a rule in a metric; yield each step with its update. A momentum buffer holds preconditioned d."""
    w = 2.0 * random(problem.c.shape[1], seed=7)
    v = torch.zeros_like(w)
    for P in itertools.islice(itertools.repeat(metrics) if isinstance(metrics, Tensor) else metrics, count):
        J = problem.jacobian(w)
        taken = Taken(w, problem.losses(w), J, P, rule.weights(J @ P @ J.T))
        v = beta * v + P @ taken.d
        u = project(v, J, P) if projected else v
        yield taken, u
        w = w - eta * u


PROBLEMS = [(2, 3, 0), (3, 6, 1), (5, 4, 2)]


@pytest.mark.parametrize("name", ["gaussian", "conflicting", "moderately_scaled"])
def test_a_rule_in_a_metric_is_the_rule_in_other_coordinates(name: str) -> None:
    """With w = P^(1/2) y the gradients are J P^(1/2), and a step in y is the step P d in w: all proofs reduce to it."""
    for seed in range(5):
        J, P = FAMILIES[name].make(4, 7, seed), metric(7, seed)
        for rule in (*NON_CONFLICTING, *ALIGNED, pg.ConFIG(), pg.UPGrad()):
            inside = root(P) @ rule(J @ root(P))
            outside = P @ J.T @ rule.weights(J @ P @ J.T)
            assert torch.allclose(inside, outside, rtol=0.0, atol=1e-8 * float(inside.norm()))


@states("thm:PS-fd")
@pytest.mark.parametrize(("m", "n", "seed"), PROBLEMS)
def test_sufficient_alignment(m: int, n: int, seed: int) -> None:
    """Nash-MTL with Gamma = |d|_P / |w|_1 and F the sum: c = 1, and the step Gamma / (L |u|)."""
    problem, P = Quadratics.draw(m, n, seed), metric(n, seed)
    L = problem.smoothness(P, torch.ones(m, dtype=torch.float64))
    w, total, start = random(n, seed=7), 0.0, None
    for _ in range(200):
        J = problem.jacobian(w)
        G = J @ P @ J.T
        weights = pg.NashMTL().weights(G)
        Gamma = float((weights @ G @ weights).clamp(min=0.0).sqrt() / weights.sum())
        u = P @ J.T @ weights
        assert float(J.sum(dim=0) @ u) >= Gamma * square(u, P) ** 0.5 * (1 - ROUNDING)
        start = float(problem.losses(w).sum()) if start is None else start
        total += Gamma**2
        w = w - Gamma / (L * square(u, P) ** 0.5) * u
    assert start is not None
    assert 0.01 * start < total <= 2.0 * L * start * (1 + ROUNDING)


@states("thm:PS-fd", "moving")
def test_the_bound_is_attained() -> None:
    """F with the Hessian L P^-1 has its minimum one step away, so that Gamma_0^2 = 2 L F(w_0)."""
    n, L = 5, 3.0
    P = metric(n, 4)
    bowl = Quadratics(L * torch.linalg.inv(P)[None], random(1, n, seed=1))
    assert bowl.smoothness(P) == pytest.approx(L, rel=1e-12)
    run = [taken for taken, _ in steps(bowl, pg.MGDA(), P, 1.0 / L, 2)]
    assert run[0].length == pytest.approx(2.0 * L * float(run[0].losses[0]), rel=1e-10)
    assert run[1].length <= 1e-18 * run[0].length


@states("thm:PS-cvx")
@pytest.mark.parametrize(("m", "n", "seed"), PROBLEMS)
@pytest.mark.parametrize("rule", ALIGNED, ids=lambda rule: rule.name)
def test_condition_A_in_the_hull(rule: pg.Aggregator, m: int, n: int, seed: int) -> None:
    """min gamma_P <= sqrt(2 L F(w_0) / (c^2 T)) for every T, with the rule's own c and F, the mean."""
    problem, P, c = Quadratics.draw(m, n, seed), metric(n, seed), rule.guarantee.alignment
    assert c is not None
    L = problem.smoothness(P, torch.full((m,), 1.0 / m, dtype=torch.float64))
    run = [taken for taken, _ in steps(problem, rule, P, c / L, 100)]
    for T, lowest in enumerate(itertools.accumulate((taken.gamma for taken in run), min), start=1):
        assert lowest <= (2.0 * L * float(run[0].losses.mean()) / (c**2 * T)) ** 0.5 * (1 + ROUNDING)


def test_the_smoothness_of_another_metric_is_too_small() -> None:
    """With the Euclidean L, the step c / L in the metric diverges: F rises."""
    problem, P = Quadratics.draw(3, 6, 1), metric(6, 1, 1.0, 100.0)
    L = problem.smoothness(torch.eye(6, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64))
    run = [float(taken.losses.mean()) for taken, _ in steps(problem, pg.Mean(), P, 1.0 / L, 10)]
    assert run[-1] > 1e3 * run[0]


@states("thm:cvg_nonconflict")
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "moderately_scaled", "duplicate_rows"])
def test_non_conflicting_directions_are_aligned(name: str) -> None:
    """sum_k <u, g_k> >= |u|^2 for a direction in the hull without conflicts, in every metric."""
    for seed, rule in itertools.product(range(5), NON_CONFLICTING):
        J, P = FAMILIES[name].make(4, 7, seed), metric(7, seed)
        G = J @ P @ J.T
        w = rule.weights(G)
        size = float(G.diagonal().max())
        assert float((G @ w).min()) >= -1e-9 * size
        assert float((G @ w).sum()) >= float(w @ G @ w) - 1e-9 * size


@states("thm:cvg_nonconflict")
def test_the_constant_of_theorem_2_is_attained() -> None:
    """Gradients that are orthogonal in the metric, and all the weight on one: c = 1."""
    P = metric(3, 0)
    J = torch.linalg.inv(root(P))[:2]
    G, w = J @ P @ J.T, torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert float((G @ w).sum()) == pytest.approx(float(w @ G @ w), rel=1e-10)


@states("prop:PS_proj", "thm:PS_proj_cvg")
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "moderately_scaled"])
def test_projections_in_the_metric(name: str) -> None:
    """DualProj on J P J.T projects q = P J.T a in the norm of P^-1: v >= a, no conflicts, and (A) with c = 1."""
    for seed in range(8):
        J, P = FAMILIES[name].make(4, 7, seed), metric(7, seed)
        a = random(4, seed=seed).abs()
        a /= a.sum()
        v = pg.DualProj(preference=a.tolist()).weights(J @ P @ J.T)
        q, u = P @ J.T @ a, P @ J.T @ v
        size = square(q, P)
        assert square(u - project(q, J, P), P) <= 1e-16 * size
        assert float((v - a).min()) >= -1e-9
        assert float((J @ u / (J @ P * J).sum(dim=1).sqrt()).min()) >= -1e-9 * size**0.5
        assert float(u @ torch.linalg.solve(P, q)) == pytest.approx(square(u, P), abs=1e-9 * size)
        assert float(J.sum(dim=0) @ u) >= square(u, P) - 1e-9 * size


@states("thm:PScvx-fun", "moving-convex")
@pytest.mark.parametrize(("m", "n", "seed"), PROBLEMS)
@pytest.mark.parametrize("change", [1.0, 1.03, 0.97], ids=["fixed", "growing", "shrinking"])
def test_convex_objectives(change: float, m: int, n: int, seed: int) -> None:
    """Theorem 3 for MGDA, for the w with the least slack. Growing metrics need no extra term; shrinking ones do."""
    problem, first, T = Quadratics.draw(m, n, seed), metric(n, seed), 60
    eta = 1.0 / problem.smoothness(max(1.0, change**T) * first)
    run = [taken for taken, _ in steps(problem, pg.MGDA(), (change**t * first for t in itertools.count()), eta, T + 1)]
    losses = torch.stack([taken.losses for taken in run])
    assert (losses[1:] <= losses[:-1] * (1 + ROUNDING)).all()
    lam = torch.stack([taken.weights for taken in run[:-1]]).mean(dim=0)
    inverses = [torch.linalg.inv(taken.P) for taken in run[:-1]]
    changes = [(inverses[0], run[0].w)]
    if change < 1.0:
        changes += [(b - a, taken.w) for (a, b), taken in zip(itertools.pairwise(inverses), run[1:], strict=False)]
    # bound - gap is a quadratic in w; this is its minimiser.
    curved = sum(A for A, _ in changes) / (eta * T) + torch.einsum("k,kij->ij", lam, problem.H)
    pulled = sum(A @ w for A, w in changes) / (eta * T) + torch.einsum("k,kij,kj->i", lam, problem.H, problem.c)
    for w in (torch.linalg.solve(curved, pulled), problem.c[0], run[-1].w):
        bound = sum(float((w_t - w) @ A @ (w_t - w)) for A, w_t in changes) / (2.0 * eta * T)
        gap = float(lam @ (run[-1].losses - problem.losses(w)))
        assert gap <= bound + ROUNDING * float(losses[0].sum())


@states("not-convex-moving", "moving-convex")
def test_theorem_3_needs_the_change_of_the_metric() -> None:
    """P_t = 1/1000 after one step: the run all but stops, the bound with P_0 alone goes to zero."""
    eta, T = 1.0, 100
    scales = [0.5, *[1e-3] * (T - 1)]
    points = [1.0]
    for p in scales:
        points.append(points[-1] * (1.0 - eta * p))  # f' = w; L_t = p <= 1/eta
    gap = points[-1] ** 2 / 2.0
    assert gap == pytest.approx(0.1025, abs=1e-4)
    assert points[0] ** 2 / scales[0] / (2.0 * eta * T) == pytest.approx(0.01)
    extra = sum(w**2 * (1 / b - 1 / a) for (a, b), w in zip(itertools.pairwise(scales), points[1:], strict=False))
    assert gap <= (points[0] ** 2 / scales[0] + extra) / (2.0 * eta * T)


@states("thm:PSreg")
@pytest.mark.parametrize(
    "s", [pg.subproblem.CVaR(cap=0.5), pg.subproblem.WorstCase(), pg.subproblem.MinusPowerMean(0.5)]
)
def test_subproblems_in_the_metric(s: pg.subproblem.Scalarization) -> None:
    """u = P J.T w minimises s(J u) + |u|^2 / 2 in the norm of P^-1, is in the cone, and has (A) with c = |w|_1 / 2."""
    rule = pg.Subproblem(s)
    for seed in range(5):
        J, P = FAMILIES["conflicting"].make(3, 6, seed), metric(6, seed)
        w = rule.weights(J @ P @ J.T)
        u = P @ J.T @ w

        def value(u: Tensor, J: Tensor = J, P: Tensor = P) -> float:
            return s.value((J @ u).numpy()) + 0.5 * square(u, P)

        least, size = value(u), square(u, P)
        noise = random(200, 6, seed=seed) @ root(P)
        for scale, z in itertools.product((1.0, 0.1, 1e-3), noise):
            assert value(u + scale * size**0.5 * z) >= least - 1e-9 * size
        assert float(w.min()) >= 0.0
        starred, phi = u / w.sum(), torch.full((3,), 1 / 3, dtype=torch.float64)
        assert float(phi @ J @ starred) >= 0.5 * float(w.sum()) * square(starred, P) - 1e-9 * size


@states("moving")
@pytest.mark.parametrize(("m", "n", "seed"), PROBLEMS)
@pytest.mark.parametrize("rule", NON_CONFLICTING, ids=lambda rule: rule.name)
def test_a_metric_that_moves(rule: pg.Aggregator, m: int, n: int, seed: int) -> None:
    """Any P_t <= P: sum |d|_{P_t}^2 <= 2 L F(w_0), with the L of P; and gamma_{P_t} is at most |d|_{P_t}."""
    problem, P = Quadratics.draw(m, n, seed), metric(n, seed)
    L = problem.smoothness(P, torch.ones(m, dtype=torch.float64))
    metrics = (below(P, seed=100 + t) for t in itertools.count())
    run = [taken for taken, _ in steps(problem, rule, metrics, 1.0 / L, 100)]
    assert sum(taken.length for taken in run) <= 2.0 * L * float(run[0].losses.sum()) * (1 + ROUNDING)
    # Short directions are differences of long gradients, which the Gramian resolves to 1e-8 of their norms.
    assert all(taken.gamma <= taken.length**0.5 + 1e-7 * float((taken.J @ taken.P).norm()) for taken in run)


@states("not-unbounded")
def test_a_metric_without_a_bound_cycles() -> None:
    """Adam without averages makes steps of one length: gamma stays at 0.2 although each step is a descent direction."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.4, betas=(0.0, 0.0), eps=1e-300)
    gammas = []
    for _ in range(50):
        optimizer.zero_grad()
        (w**2 / 2).sum().backward()
        assert w.grad is not None
        gammas.append(float(w.grad.abs()))
        optimizer.step()
    assert min(gammas) == pytest.approx(0.2)
    assert gammas[-1] == pytest.approx(0.2)


@states("stale")
def test_a_metric_that_is_off_by_epsilon() -> None:
    """P' between (1 - e) P and (1 + e) P moves a cosine in the metric by at most e; a reflection does so."""
    for seed, epsilon in itertools.product(range(20), (0.01, 0.1, 0.5)):
        P, (g, d) = metric(5, seed), random(2, 5, seed=seed)
        other = root(P) @ (torch.eye(5, dtype=torch.float64) + epsilon * _symmetric(5, seed)) @ root(P)
        unit = float((g @ P @ g) * (d @ P @ d)) ** 0.5
        assert abs(float(g @ (other - P) @ d)) <= epsilon * unit * (1 + ROUNDING)
        # The reflection that exchanges the unit vectors along -g and d.
        a, b = root(P) @ g / (g @ P @ g).sqrt(), root(P) @ d / (d @ P @ d).sqrt()
        normal = (a + b) / (a + b).norm()
        S = torch.eye(5, dtype=torch.float64) - 2.0 * torch.outer(normal, normal)
        assert float(g @ root(P) @ (epsilon * S) @ root(P) @ d) == pytest.approx(-epsilon * unit)


def _symmetric(n: int, seed: int) -> Tensor:
    """A symmetric matrix with eigenvalues from -1 to 1."""
    Q = torch.linalg.qr(random(n, n, seed=seed + 50)).Q
    return (Q * torch.linspace(-1, 1, n, dtype=torch.float64)) @ Q.T


@states("not-euclidean")
def test_a_rule_that_ignores_the_metric_conflicts() -> None:
    J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    P = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
    assert (J @ pg.UPGrad()(J)).min() >= 0.0
    assert (J @ P @ pg.UPGrad()(J)).tolist() == pytest.approx([9.0, -1.75])
    assert (J @ P @ J.T @ pg.UPGrad().weights(J @ P @ J.T)).min() >= 0.0


@states("momentum")
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("rule", [pg.Mean(), pg.CAGrad(0.5), pg.UPGrad().normalized()], ids=lambda rule: rule.name)
def test_momentum_keeps_the_rate(rule: pg.Aggregator, moving: bool, beta: float) -> None:
    """sum_t b_t |d_t|^2 <= 2 F(w_0) / (c eta) with the step of the theorem; beta = 0 is Corollary 1."""
    T, c = 200, rule.guarantee.alignment
    assert c is not None
    for m, n, seed in PROBLEMS:
        problem, P = Quadratics.draw(m, n, seed), metric(n, seed)
        phi = torch.from_numpy(rule.guarantee.F.phi(m))
        L = problem.smoothness(P, phi)
        eta = c * (1.0 - beta) ** 2 / (L * (1.0 + beta))
        metrics = (below(P, seed=100 + t) for t in itertools.count()) if moving else P
        run = [taken for taken, _ in steps(problem, rule, metrics, eta, T, beta)]
        total = sum((1.0 - beta ** (T - t)) / (1.0 - beta) * taken.length for t, taken in enumerate(run))
        assert total <= 2.0 * float(phi @ run[0].losses) / (c * eta) * (1 + ROUNDING)


@states("not-momentum")
def test_momentum_of_non_conflicting_directions_conflicts() -> None:
    """Two bowls at (0, 1) and (0, -1): MGDA moves along x only, and momentum carries it beyond x = 0."""
    eye = torch.eye(2, dtype=torch.float64)
    bowls = Quadratics(eye.repeat(2, 1, 1), torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64))
    w, v, slopes = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64), []
    for _ in range(3):
        J = bowls.jacobian(w)
        d = pg.MGDA()(J)
        assert (J @ d).min() >= 0.0
        v = 0.9 * v + d
        slopes.append((J @ v).tolist())
        w = w - 0.5 * v
    assert slopes[:2] == [pytest.approx([1.0, 1.0]), pytest.approx([0.7, 0.7])]
    assert slopes[2] == pytest.approx([-0.212, -0.212])


@states("not-moving-momentum")
def test_momentum_of_gradients_in_a_metric_that_moves_conflicts() -> None:
    """The gradients stay, the metric turns: what the buffer holds was non-conflicting in the metric before."""
    J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    P = [torch.diag(torch.tensor(p, dtype=torch.float64)) for p in ([1.0, 4.0], [4.0, 1.0])]
    d = [J.T @ pg.MGDA().weights(J @ one @ J.T) for one in P]
    assert all((J @ one @ two).min() > 0.0 for one, two in zip(P, d, strict=True))
    assert float((J @ P[1] @ (0.9 * d[0] + d[1]))[1]) == pytest.approx(-1.066, abs=1e-3)


@states("projected")
@pytest.mark.parametrize("name", ["gaussian", "conflicting", "moderately_scaled"])
def test_a_projected_update_never_conflicts(name: str) -> None:
    """Any v: no conflict, not longer, closest of all non-conflicting updates, and unchanged if v is one of them."""
    for seed in range(10):
        J, P, v = FAMILIES[name].make(4, 7, seed), metric(7, seed), random(7, seed=seed)
        u, size = project(v, J, P), square(v, P)
        norms = (J @ P * J).sum(dim=1).sqrt()
        assert float((J @ u / norms).min()) >= -1e-9 * size**0.5
        assert square(u, P) <= size * (1 + ROUNDING)
        assert torch.allclose(project(u, J, P), u, rtol=0.0, atol=1e-9 * float(v.norm()))
        for z in random(20, 7, seed=seed + 1):
            other = project(z, J, P)  # the variational inequality of a projection
            assert float((v - u) @ torch.linalg.solve(P, other - u)) <= 1e-9 * (size + square(other, P))


@states("projected")
def test_projected_adam_never_conflicts() -> None:
    """Real updates of torch's Adam on two quadratics: many conflict; projected in Adam's metric, none does."""
    problem, w = Quadratics.draw(2, 6, 3), random(6, seed=7).requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.05)
    before = after = 0
    for _ in range(200):
        old = w.detach().clone()
        J = problem.jacobian(old)
        w.grad = pg.UPGrad()(J)
        optimizer.step()
        state = optimizer.state[w]
        v, corrected = old - w.detach(), state["exp_avg_sq"] / (1.0 - 0.999 ** float(state["step"]))
        u = project(v, J, torch.diag(1.0 / (corrected.sqrt() + 1e-8)))
        lengths = J.norm(dim=1)
        before += bool((J @ v < -1e-6 * v.norm() * lengths).any())
        after += bool((J @ u < -1e-6 * u.norm() * lengths).any())
        with torch.no_grad():
            w.copy_(old - u)
    assert before > 20
    assert after == 0


@states("not-aligned-projection")
def test_a_projected_update_may_be_orthogonal_to_all_gradients() -> None:
    w, v = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    J = w[None]  # of |w|^2 / 2
    u = project(v, J, torch.eye(2, dtype=torch.float64))
    assert torch.equal(u, v)
    assert float(J @ u) == 0.0
    assert float((w - 0.5 * u).square().sum() / 2.0) == pytest.approx(0.5 + 0.5**3)


@states("projected-momentum")
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rule", NON_CONFLICTING, ids=lambda rule: rule.name)
def test_projected_momentum_converges_without_conflicts(rule: pg.Aggregator, beta: float) -> None:
    """sum |d|_P^2 <= 2 F(w_0) / eta with the step of the theorem, and no update conflicts; beta = 0 is Theorem 2."""
    for m, n, seed in PROBLEMS:
        problem, P = Quadratics.draw(m, n, seed), metric(n, seed)
        L, M = problem.smoothness(P), problem.smoothness(P, torch.ones(m, dtype=torch.float64))
        eta = (1.0 - beta) ** 3 / (2.0 * L * beta + M * (1.0 - beta))
        run = list(steps(problem, rule, P, eta, 100, beta, projected=True))
        assert sum(taken.length for taken, _ in run) <= 2.0 * float(run[0][0].losses.sum()) / eta * (1 + ROUNDING)
        for taken, u in run:
            norms = (taken.J @ P * taken.J).sum(dim=1).sqrt()
            assert float((taken.J @ u / norms).min()) >= -1e-9 * square(u, P) ** 0.5


def test_every_statement_has_a_test() -> None:
    assert set(pg.METRIC_RESULTS) == TESTED
    assert all(label == result.label for label, result in pg.METRIC_RESULTS.items())
    paper = {label for label in pg.METRIC_RESULTS if label.removeprefix("metric:") in pg.RESULTS}
    assert len(paper) == len(pg.RESULTS)
