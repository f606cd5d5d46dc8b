"""Everything that a problem declares is true: objectives, Jacobian, constants, bounds, Pareto set and front."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize, nnls
from support.problem_cases import CASES, Case
from torch import Tensor

import paretograd as pg
from paretograd.problems import dominates, non_dominated
from paretograd.problems.zdt import ZDT3_PIECES

FRONTS = [case for case in CASES if case.front is not None]
SMOOTH = [case for case in CASES if not case.name.startswith("zdt") or case.name == "zdt2"]
ROUGH = [case for case in CASES if case not in SMOOTH]
CLOSED = [case for case in CASES if case.name in ("vlmop2", "fonseca", "omnitest", "quadratic")]


def made(case: Case) -> pg.Problem:
    return pg.problem(case.name, **case.parameters)


def box(problem: pg.Problem) -> tuple[Tensor, Tensor]:
    """The box to sample from, where the problem has none [-3, 3]."""
    return problem.lower.nan_to_num(neginf=-3.0), problem.upper.nan_to_num(posinf=3.0)


def uniform(problem: pg.Problem, count: int, seed: int = 0) -> Tensor:
    lower, upper = box(problem)
    draws = torch.rand(count, problem.n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lower + (upper - lower) * draws


def mixed(problem: pg.Problem, count: int, seed: int = 0) -> Tensor:
    """Uniform points of which some coordinates, or all, are moved to the ends or the middle: extremes live there."""
    generator = torch.Generator().manual_seed(seed)
    lower, upper = box(problem)
    special = torch.stack([lower, upper, 0.5 * (lower + upper)])
    pick = special.gather(0, torch.randint(3, (count, problem.n), generator=generator))
    share = torch.rand(count, 1, generator=generator)
    moved = torch.rand(count, problem.n, generator=generator) < share
    return torch.where(moved, pick, uniform(problem, count, seed + 1))


def hessians(problem: pg.Problem, points: Tensor) -> Tensor:
    return torch.vmap(torch.func.jacrev(torch.func.jacrev(problem.objectives)))(points)


@pytest.mark.parametrize("case", [case for case in CASES if case.value is not None], ids=str)
def test_objectives_are_those_of_the_literature(case: Case) -> None:
    problem = made(case)
    points = torch.cat([mixed(problem, 200), problem.pareto_set(20)])
    expected = torch.tensor([case.value(point) for point in points.tolist()], dtype=torch.float64)
    torch.testing.assert_close(problem(points), expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jacobian_is_the_derivative(case: Case) -> None:
    """Against autograd of single losses, and for closed forms against the objectives' own graph."""
    problem = made(case)
    points = uniform(problem, 6)
    losses, jacobian = problem.jacobian(points)
    expected = torch.stack([torch.autograd.functional.jacobian(problem.objectives, point) for point in points])
    torch.testing.assert_close(losses, problem(points))
    torch.testing.assert_close(jacobian, expected, rtol=1e-12, atol=1e-12)
    assert (problem.closed_jacobian is not None) == (case in CLOSED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_front_points_are_in_the_box_and_spread(case: Case) -> None:
    problem = made(case)
    points, front = problem.pareto_set(200), problem.pareto_front(200)
    assert points.shape == (200, problem.n)
    assert points.dtype == front.dtype == torch.float64
    assert torch.equal(front, problem(points))
    assert problem.inside(points).all()
    assert problem.pareto_set(1).shape == (1, problem.n)
    if problem.m > 1:
        assert len(torch.unique(front, dim=0)) > 150


@pytest.mark.parametrize("case", FRONTS, ids=str)
def test_front_satisfies_the_equation_of_its_paper(case: Case) -> None:
    front = made(case).pareto_front(300)
    worst = max(abs(case.front(point)) for point in front.tolist())
    assert worst < 1e-7  # the square roots of f near 0 double the number of lost digits


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_feasible_point_dominates_the_front(case: Case) -> None:
    """Neither random ones nor neighbours of the Pareto set."""
    problem = made(case)
    pareto = problem.pareto_set(60)
    lower, upper = box(problem)
    noise = torch.randn(40, *pareto.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sizes = 10.0 ** -torch.arange(40.0).remainder(6).reshape(-1, 1, 1)
    near = (pareto + sizes * noise * (upper - lower)).clamp(problem.lower, problem.upper).flatten(0, 1)
    candidates = problem(torch.cat([mixed(problem, 3000), near]))
    front = problem(pareto)
    slack = 1e-12 * (1.0 + front.abs())
    assert not dominates(candidates.unsqueeze(0), (front - slack).unsqueeze(1)).any()
    assert non_dominated(front).all()


GRIDS = [
    ("vlmop1", {"n": 2}, 121),
    ("vlmop2", {"n": 2}, 201),
    ("fonseca", {"n": 2}, 401),
    ("omnitest", {"n": 2}, 241),
    *((name, {"n": 2}, 501) for name in ("zdt1", "zdt2", "zdt3", "zdt4", "zdt6")),
    *((name, {"m": 2, "n": 2}, 401) for name in ("dtlz1", "dtlz2", "dtlz3", "dtlz4", "maf1")),
    *((name, {"m": 3, "n": 3}, 41) for name in ("dtlz1", "dtlz2", "maf1")),
]


@pytest.mark.parametrize(("name", "parameters", "steps"), GRIDS)
def test_front_is_all_that_a_grid_search_finds(name: str, parameters: dict[str, int], steps: int) -> None:
    """Brute force: every non-dominated point of a grid lies by the declared front, and the front by such points."""
    problem = pg.problem(name, **parameters)
    axes = [torch.linspace(float(a), float(b), steps, dtype=torch.float64) for a, b in zip(*box(problem), strict=True)]
    losses = problem(torch.cartesian_prod(*axes))
    # Rounded: a cosine of pi / 2 that is not quite zero would tell points apart that weakly dominate each other.
    found = losses[non_dominated(losses.round(decimals=9))]
    front = problem.pareto_front(3000)
    apart = torch.cdist(found[torch.linspace(0, len(found) - 1, 1000).long()], front)
    assert apart.min(1).values.max() < 0.05
    # On the grid, the hundredth powers of DTLZ4 are far apart.
    assert apart.min(0).values.max() < (0.2 if name == "dtlz4" else 0.05)


def test_pieces_of_zdt3() -> None:
    """Each piece ends in a minimum of h, and the next begins where h comes back to that value."""

    def h(x: float) -> float:
        return 1 - np.sqrt(x) - x * np.sin(10 * np.pi * x)

    def slope(x: float) -> float:
        return -0.5 / np.sqrt(x) - np.sin(10 * np.pi * x) - 10 * np.pi * x * np.cos(10 * np.pi * x)

    for begin, end in ZDT3_PIECES:
        assert brentq(slope, end - 0.01, end + 0.01, xtol=1e-15) == pytest.approx(end, abs=1e-13)
        assert slope(end - 0.01) < 0 < slope(end + 0.01)
        assert begin < end
    for (_, end), (begin, _) in itertools.pairwise(ZDT3_PIECES):
        assert brentq(lambda x, end=end: h(x) - h(end), begin - 0.02, begin + 0.01, xtol=1e-15) == pytest.approx(
            begin, abs=1e-13
        )
    assert pg.problem("zdt3").least[1] == pytest.approx(h(ZDT3_PIECES[-1][1]), abs=1e-14)


@pytest.mark.parametrize("case", [case for case in CASES if case.interior], ids=str)
def test_interior_points_of_the_pareto_set_are_stationary(case: Case) -> None:
    problem = made(case)
    points = problem.pareto_set(22)[1:-1]
    _, jacobian = problem.jacobian(points)
    gammas = pg.stationarity(torch.stack([pg.gramian(J) for J in jacobian]))
    sizes = jacobian.norm(dim=-1).amax(-1)
    # A Gramian resolves gamma to the square root of rounding. Near 1 a derivative of y^100 cancels in its last digits.
    assert (gammas <= 1e-7 * sizes + 1e-9).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "zdt6"], ids=str)
def test_points_of_the_pareto_set_satisfy_the_conditions_of_the_box(case: Case) -> None:
    """Weights w on the simplex and multipliers >= 0 of the active bounds with J'w = lower's - upper's (KKT).

    Not for ZDT6, which has no gradient on its Pareto set.
    """
    problem = made(case)
    points = problem.pareto_set(14)[1:-1]
    _, jacobian = problem.jacobian(points)
    for x, J in zip(points, jacobian, strict=True):
        scaled = (J / J.norm().clamp(min=1e-6)).numpy()
        low, high = (x <= problem.lower).numpy(), (x >= problem.upper).numpy()
        columns = np.hstack([scaled.T, -np.eye(problem.n)[:, low], np.eye(problem.n)[:, high]])
        total = np.r_[np.ones(problem.m), np.zeros(columns.shape[1] - problem.m)]
        _, residual = nnls(np.vstack([columns, total]), np.r_[np.zeros(problem.n), 1.0])
        assert residual < 1e-8


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_smoothness_constant_holds_and_is_not_far_off(case: Case) -> None:
    problem = made(case)
    points = torch.cat([mixed(problem, 1500), problem.pareto_set(20)])
    limit = problem.smoothness * (1 + 1e-12)
    norms = torch.linalg.matrix_norm(hessians(problem, points), 2)
    assert norms.max() <= limit
    assert norms.max() >= case.tight * problem.smoothness
    _, here = problem.jacobian(points)
    for other in (points.roll(1, 0), (points + 1e-3).clamp(problem.lower, problem.upper)):
        _, there = problem.jacobian(other)
        steps = (points - other).norm(dim=-1, keepdim=True)
        assert ((here - there).norm(dim=-1) <= limit * steps + 1e-12 * here.norm(dim=-1)).all()


@pytest.mark.parametrize("case", ROUGH, ids=str)
def test_without_a_smoothness_constant_the_slope_grows_without_bound(case: Case) -> None:
    problem = made(case)
    assert problem.smoothness is None
    point = problem.start(0, torch.float64)
    steep = slice(1, None) if case.name == "zdt6" else 0
    slopes = []
    for size in (1e-4, 1e-6, 1e-8):
        point[steep] = size
        slopes.append(float(problem.jacobian(point)[1][1, steep].norm()))
    assert slopes[2] > 9 * slopes[1] > 81 * slopes[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convexity(case: Case) -> None:
    """Convex objectives lie below their chords; the others have a Hessian with a negative eigenvalue."""
    problem = made(case)
    if problem.convex:
        a, b = mixed(problem, 3000, seed=1), mixed(problem, 3000, seed=2)
        chord = 0.5 * (problem(a) + problem(b))
        assert (problem(0.5 * (a + b)) <= chord + 1e-12 * chord.abs()).all()
    else:
        eigenvalues = torch.linalg.eigvalsh(hessians(problem, uniform(problem, 200)))
        assert eigenvalues.min() < -1e-3 * eigenvalues.abs().max()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_least_is_a_lower_bound_that_the_front_comes_close_to(case: Case) -> None:
    problem = made(case)
    least = torch.tensor(problem.least, dtype=torch.float64)
    assert (problem(mixed(problem, 5000)) >= least - 1e-12).all()
    nearest = problem.pareto_front(2000).amin(0) - least
    assert (nearest >= -1e-12).all()
    if case.name != "quadratic":
        assert (nearest < (0.01 if problem.m == 2 else 0.05 * problem.m)).all()  # a corner is far in many dimensions


def quadratics() -> list[Case]:
    return [case for case in CASES if case.name == "quadratic"]


@pytest.mark.parametrize("case", quadratics(), ids=str)
def test_quadratics_have_the_spectrum_and_the_angle_asked_for(case: Case) -> None:
    problem = made(case)
    spectrum = case.parameters.get("spectrum", np.logspace(-1, 0, problem.n) if problem.n > 1 else [1.0])
    expected = torch.as_tensor(spectrum, dtype=torch.float64).sort().values.expand(problem.m, problem.n)
    found = torch.linalg.eigvalsh(hessians(problem, torch.zeros(1, problem.n, dtype=torch.float64))[0])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
    _, jacobian = problem.jacobian(torch.zeros(problem.n, dtype=torch.float64))
    torch.testing.assert_close(jacobian.norm(dim=-1), torch.ones(problem.m, dtype=torch.float64))
    if problem.m > 1:
        angle = torch.rad2deg(torch.acos((jacobian @ jacobian.T).clamp(-1.0, 1.0))).max()
        assert float(angle) == pytest.approx(case.parameters.get("angle", 120.0), abs=1e-5)


@pytest.mark.parametrize("case", [case for case in quadratics() if case.parameters.get("n") != 40], ids=str)
def test_quadratic_front_points_cannot_be_improved(case: Case) -> None:
    """A solver that knows nothing of the closed form looks for a point that is better in every objective."""
    problem = made(case)

    def gap(target: np.ndarray, k: int):
        def value(z: np.ndarray) -> float:
            return float(target[k] - problem(torch.from_numpy(z[:-1]))[k] - z[-1])

        def slope(z: np.ndarray) -> np.ndarray:
            return np.r_[-problem.jacobian(torch.from_numpy(z[:-1]))[1][k].numpy(), -1.0]

        return {"type": "ineq", "fun": value, "jac": slope}

    for x, target in zip(problem.pareto_set(5), problem.pareto_front(5).numpy(), strict=True):
        start = np.r_[x.numpy() + 0.1, -1.0]
        up = np.r_[np.zeros(problem.n), -1.0]
        constraints = [gap(target, k) for k in range(problem.m)]
        best = minimize(
            lambda z: -z[-1],
            start,
            jac=lambda z, up=up: up,
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert best.x[-1] < 1e-6 * (1.0 + np.abs(target).max())


def test_isotropic_quadratics_have_the_front_of_two_distances() -> None:
    """With H = h I the objectives are h/2 times squared distances from two centres, so the roots add up."""
    problem = pg.problem("quadratic", n=5, spectrum=[2.0] * 5, angle=100.0)
    distances = problem.pareto_front(50).sqrt().sum(-1)  # h / 2 = 1
    ends = problem.pareto_set(2)
    torch.testing.assert_close(distances, (ends[0] - ends[1]).norm().expand(50))
