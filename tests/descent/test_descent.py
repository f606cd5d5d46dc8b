"""The descent loop: the paper's iteration counts, batches that equal single runs, step sizes, stops, resuming."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trajectories import same
from torch import Tensor

import paretograd as pg
from paretograd.descent import Aligned, Armijo, Constant, DescentWarning, Monotone, Smooth, StepSize, Stop
from paretograd.descent.directions import closed_form, closed_form_applies
from paretograd.descent.evaluation import shortest_weights
from paretograd.disk import read_arrays, write_arrays

SEEDS = (24, 42, 48, 100, 123)


def custom(function: object, n: int = 2, box: float = math.inf, **known: object) -> pg.Problem:
    """A problem of two objectives for a test."""
    bound = torch.full((n,), box)
    return pg.Problem(
        name="custom", label="Custom", objectives=function, m=2, lower=-bound, upper=bound, least=(0.0, 0.0), **known
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "published"), [("mgda", 7417), ("upgrad", 4043), ("dualproj", 4975), ("nash-mtl", 1053)]
)
def test_the_paper_s_iterations_on_vlmop2(rule: str, published: int, dtype: torch.dtype) -> None:
    """Seed 100, lr 0.001: iterations to gamma < 0.01 within 0.5% of the published ones, in either precision."""
    run = pg.descend(
        pg.problem("vlmop2", n=4), pg.get(rule), lr=0.001, steps=10_000, seeds=(100,), stop_gamma=0.01, dtype=dtype
    )
    assert run.iterations_to(0.01)[0] == pytest.approx(published, rel=0.005)
    assert run.reasons == (Stop.GAMMA,)
    if rule == "nash-mtl":
        assert run.norms == pytest.approx(1.0, rel=1e-12)


STARRED = ("mgda", "upgrad*", "dualproj*", "nash-mtl*", "mas-rr(10)")


def late_rate(rule: str, **options: object) -> float:
    """By how much log gamma falls per step, between 1e-3 and 1e-5."""
    run = pg.descend(pg.problem("vlmop2"), pg.get(rule), lr=0.05, steps=2000, stop_gamma=1e-5, **options)  # type: ignore[arg-type]
    gamma = run.gamma[: run.lengths[0] + 1, 0]
    late = np.log(gamma[(gamma < 1e-3) & (gamma > 1e-5)])
    return float(late[0] - late[-1]) / (len(late) - 1)


def test_starred_methods_have_similar_asymptotic_rates() -> None:
    """As the paper says of figure vlmop2_100; what is left of the difference is where on the front they arrive."""
    rates = [late_rate(rule, seeds=(100,)) for rule in STARRED]
    assert max(rates) < 1.35 * min(rates)
    assert late_rate("upgrad", seeds=(100,)) > 1.8 * late_rate("upgrad*", seeds=(100,))


def test_starred_methods_have_the_same_rate_at_the_same_point_of_the_front() -> None:
    near = pg.problem("vlmop2").pareto_set(21)[8] + torch.tensor([1.0, -1.0, 1.0, -1.0]) * 1e-3  # type: ignore[misc]
    rates = [late_rate(rule, starts=near[None]) for rule in STARRED]
    assert max(rates) == pytest.approx(min(rates), rel=1e-3)


CASES = [
    ("vlmop2", {}, 0.05),
    ("omnitest", {}, 0.05),
    ("zdt1", {"n": 5}, 0.01),
    ("dtlz2", {"m": 3}, 0.05),
    ("vlmop2", {}, Armijo()),
    ("quadratic", {"m": 2}, Aligned()),
    ("quadratic", {"m": 3}, Aligned()),
]


@pytest.mark.parametrize("rule", ["mgda", "upgrad", "nash-mtl*", "cagrad", "mas-rr(7)"])
@pytest.mark.parametrize(("name", "parameters", "lr"), CASES, ids=lambda value: repr(value))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_in_a_batch_is_the_run_alone(
    name: str, parameters: dict[str, int], lr: float | StepSize, rule: str, dtype: torch.dtype
) -> None:
    problem = pg.problem(name, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DescentWarning)  # some of them leave their box
        together = pg.descend(problem, pg.get(rule), lr, 60, seeds=SEEDS, stop_gamma=0.03, dtype=dtype)
        for number, seed in enumerate(SEEDS):
            alone = pg.descend(problem, pg.get(rule), lr, 60, seeds=(seed,), stop_gamma=0.03, dtype=dtype)
            assert same(together.run(number), alone), seed
    assert together.seeds == SEEDS


def test_a_random_rule_draws_for_every_run_and_again_the_same() -> None:
    problem = pg.problem("quadratic")
    starts = torch.zeros(2, 4)
    first, again = (pg.descend(problem, pg.RGW(seed=3), 0.1, 20, starts=starts) for _ in range(2))
    assert same(first, again)
    assert not np.array_equal(first.weights[:, 0], first.weights[:, 1])


@pytest.mark.parametrize("rule", ["mean", "upgrad", "dualproj", "nash-mtl", "upgrad*", "dualproj*", "nash-mtl*"])
def test_closed_forms_for_two_objectives_agree_with_the_solvers(rule: str) -> None:
    aggregator, draw = pg.get(rule), np.random.default_rng(0)
    closed = closed_form(aggregator)
    assert closed is not None
    count = 0
    for _ in range(300):
        J = draw.standard_normal((2, draw.integers(1, 5))) * 10.0 ** draw.integers(-9, 9, size=(2, 1))
        G, lengths = (J @ J.T)[None], np.linalg.norm(J, axis=1)[None]
        if closed_form_applies(G, lengths)[0]:
            expected = aggregator._outcome(G[0], 2e-16).weights @ J
            assert np.linalg.norm(closed(G, lengths)[0] @ J - expected) <= 1e-10 * np.linalg.norm(expected)
            count += 1
    assert count > 200


def test_gamma_of_two_gradients_is_that_of_the_solver() -> None:
    draw = np.random.default_rng(1)
    J = draw.standard_normal((200, 2, 3)) * 10.0 ** draw.integers(-6, 6, size=(200, 2, 1))
    J[0, 1] = J[0, 0]
    J[1, 1] = -J[1, 0]
    J[2, 0] = 0.0
    G = J @ J.transpose(0, 2, 1)
    w = shortest_weights(J, G)
    found = np.linalg.norm((w[:, None] @ J)[:, 0], axis=1)
    expected = pg.stationarity(torch.from_numpy(G)).numpy()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-7 * np.linalg.norm(J[1, 0]))
    assert ((w >= 0) & (w <= 1)).all()
    assert w.sum(axis=1) == pytest.approx(1.0)


def test_what_is_recorded_is_what_happened() -> None:
    """Losses, gradients and gamma at the points; weights of the rule there; points that follow from the steps."""
    problem, rule = pg.problem("quadratic", m=3), pg.UPGrad()
    run = pg.descend(problem, rule, 0.1, 10, seeds=(0, 1))
    points = torch.from_numpy(run.points)
    losses, J = problem.jacobian(points)
    assert run.losses == pytest.approx(losses.numpy(), rel=1e-12)
    assert run.gradient_norms == pytest.approx(J[:-1].norm(dim=-1).numpy(), rel=1e-12)
    assert run.gamma == pytest.approx(pg.stationarity(J @ J.mT).numpy(), rel=1e-9)
    assert run.weights == pytest.approx(rule.weights((J @ J.mT)[:-1]).numpy(), rel=1e-9)
    d = (torch.from_numpy(run.weights).unsqueeze(-2) @ J[:-1]).squeeze(-2)
    assert run.norms == pytest.approx(d.norm(dim=-1).numpy(), rel=1e-12)
    assert run.slopes == pytest.approx((J[:-1] @ d.unsqueeze(-1)).squeeze(-1).numpy(), rel=1e-9, abs=1e-12)
    assert run.points[1:] == pytest.approx((points[:-1] - 0.1 * d).numpy(), rel=1e-12)
    assert not run.conflicts.any()
    assert run.alignment == pytest.approx(run.slopes.sum(-1) / run.norms**2)
    assert run.finals == pytest.approx(run.losses[-1])


def test_armijo_decreases_every_objective_enough() -> None:
    problem = pg.problem("vlmop2")
    run = pg.descend(problem, pg.UPGrad(), Armijo(start=4.0, sigma=0.3), 30, seeds=SEEDS, stop_gamma=1e-5)
    bound = run.losses[:-1] - 0.3 * run.step_sizes[..., None] * run.slopes
    taken = ~np.isnan(run.step_sizes)
    assert (run.losses[1:] <= bound)[taken].all()
    assert len(np.unique(run.step_sizes[taken])) > 1


def test_armijo_says_when_no_step_is_good_enough() -> None:
    run = pg.descend(pg.problem("quadratic"), pg.Mean(), Armijo(halvings=20), 500, seeds=(0,))
    assert run.reasons == (Stop.NO_STEP,)  # the mean gives one objective up in the end
    assert run.lengths[0] < 500


def test_step_sizes_of_the_theorems() -> None:
    problem = pg.problem("quadratic", m=3)
    L = problem.smoothness
    assert L is not None
    options = {"steps": 20, "seeds": (0, 1), "stop_gamma": 1e-3}
    smooth = pg.descend(problem, pg.UPGrad(), Smooth(), **options)  # type: ignore[arg-type]
    assert smooth.step_sizes[smooth.step_sizes > 0.0] == pytest.approx(1.0 / (3.0 * L))
    mean = pg.descend(problem, pg.Mean(), Smooth(), **options)  # type: ignore[arg-type]
    assert mean.step_sizes[mean.step_sizes > 0.0] == pytest.approx(1.0 / L)
    nash = pg.descend(problem, pg.NashMTL(), Smooth(), **options)  # type: ignore[arg-type]
    assert (nash.step_sizes * nash.weights.sum(-1))[nash.step_sizes > 0.0] == pytest.approx(1.0 / (3.0 * L))
    aligned = pg.descend(problem, pg.UPGrad(), Aligned(surrogate_smoothness=2.0), **options)  # type: ignore[arg-type]
    assert aligned.step_sizes == pytest.approx(aligned.slopes.sum(-1) / (2.0 * aligned.norms**2), nan_ok=True)
    monotone = pg.descend(problem, pg.UPGrad(), Monotone(), **options)  # type: ignore[arg-type]
    assert monotone.step_sizes == pytest.approx(monotone.slopes.min(-1) / (L * monotone.norms**2), nan_ok=True)
    assert (np.diff(monotone.losses, axis=0)[~np.isnan(monotone.step_sizes)] <= 0.0).all()


def test_steps_that_no_theorem_gives() -> None:
    with pytest.raises(pg.ParameterError, match="no theorem gives RGW"):
        pg.descend(pg.problem("vlmop2"), pg.RGW(), Smooth(), 5)
    with pytest.raises(pg.ParameterError, match="needs the smoothness constant"):
        pg.descend(pg.problem("zdt1"), pg.MGDA(), Monotone(), 5)
    run = pg.descend(pg.problem("vlmop2"), pg.RGW(seed=0), Monotone(), 100, seeds=(0,))
    assert run.reasons == (Stop.NO_STEP,)
    for wrong in (0.0, -1.0, math.inf, math.nan, "fast", True):
        with pytest.raises(pg.ParameterError):
            Constant(wrong)  # type: ignore[arg-type]
    for keywords in ({"sigma": 1.0}, {"sigma": 0.0}, {"halvings": -1}, {"halvings": 1.5}, {"start": -1.0}):
        with pytest.raises(pg.ParameterError):
            Armijo(**keywords)  # type: ignore[arg-type]


def test_stop_rules() -> None:
    problem = pg.problem("vlmop2")
    run = pg.descend(problem, pg.MGDA(), 0.1, 400, seeds=SEEDS, stop_gamma=0.01)
    for number, length in enumerate(run.lengths):
        gamma = run.gamma[:, number]
        assert gamma[length] < 0.01 <= gamma[:length].min()
        assert np.isnan(gamma[length + 1 :]).all()
        assert np.isnan(run.norms[length:, number]).all()
    assert np.array_equal(run.iterations_to(0.01), run.lengths)
    assert (run.iterations_to(1e-9) == -1).all()
    short = pg.descend(problem, pg.UPGrad(), 0.1, 400, seeds=SEEDS, stop_norm=0.05)
    assert set(short.reasons) == {Stop.NORM}
    assert np.nanmin(short.norms) >= 0.05
    assert pg.descend(problem, pg.MGDA(), 0.1, 3, seeds=(0,)).reasons == (Stop.STEPS,)
    still = pg.descend(problem, pg.MGDA(), 0.1, 0, seeds=(0,))
    assert still.gamma.shape == (1, 1)
    assert still.norms.shape == (0, 1)
    long = pg.descend(problem, pg.UPGrad(), 0.3, 5000, seeds=(0,))
    assert long.reasons == (Stop.STATIONARY,)
    optimum = problem.pareto_set(3)  # type: ignore[misc]
    assert pg.descend(problem, pg.NashMTL(), 0.1, 9, starts=optimum).reasons == (Stop.STATIONARY,) * 3


def roots(points: Tensor) -> Tensor:
    """Not finite below 0."""
    return torch.stack([points.sum(-1) - points.log().sum(-1), points.sqrt().sum(-1) + 1.0], -1)


def test_a_run_that_meets_nan_stops_at_its_last_good_point_and_others_go_on() -> None:
    problem = custom(roots)
    starts = torch.tensor([[0.5, 0.5], [100.0, 100.0], [-1.0, 1.0]])
    run = pg.descend(problem, pg.Mean(), 4.0, 30, starts=starts)
    assert run.reasons[0] is run.reasons[2] is Stop.NOT_FINITE
    assert run.lengths[2] == 0
    assert np.isnan(run.gamma[0, 2])
    assert 0 < run.lengths[0] < run.lengths[1] == 30
    for number in (0, 1):
        assert np.isfinite(run.run(number).losses).all()
        assert np.isfinite(run.run(number).points).all()


def test_a_step_to_infinity_is_not_taken() -> None:
    run = pg.descend(pg.problem("quadratic"), pg.Mean(), 1e300, 10, seeds=(0, 1))
    assert set(run.reasons) == {Stop.NOT_FINITE}
    assert np.isfinite(run.losses[0]).all()


def test_a_run_that_leaves_its_box_says_so_once() -> None:
    problem = custom(lambda points: torch.stack([points.sum(-1), 2.0 * points.sum(-1)], -1), box=1.0)
    with pytest.warns(DescentWarning, match="run 0 left the box of custom at step 3") as caught:
        run = pg.descend(problem, pg.Mean(), 0.25, 9, starts=[[0.0, 0.0], [0.0, 0.0]])
    assert len(caught) == 1
    assert run.left_box.tolist() == [3, 3]
    assert run.lengths.tolist() == [9, 9]
    assert (run.left_box[0] == pg.descend(pg.problem("vlmop2"), pg.Mean(), 0.01, 9).left_box) == [False]


RULES = {
    "upgrad": pg.UPGrad,
    "mas-rand": lambda: pg.get("mas-rand", seed=5),
    "mas-rr": lambda: pg.get("mas-rr(7)"),
    "rgw": lambda: pg.RGW(seed=1),
    "pcgrad": lambda: pg.PCGrad(order="shuffled", seed=1),
    "mixed": lambda: pg.Mixed([pg.RGW(seed=2), pg.MGDA()], pg.Random(3)),
    "pivrg*": lambda: pg.PIVRG([1.0, 2.0, 3.0]).normalized(),
}


def begin(rule: str) -> pg.Descent:
    return pg.Descent(pg.problem("quadratic", m=3), RULES[rule](), 0.05, 120, seeds=SEEDS, stop_gamma=0.02)


@cache
def uninterrupted(rule: str) -> pg.Trajectory:
    whole = begin(rule)
    assert whole.advance(10**6) == whole.step
    assert whole.trajectory().reasons.count(Stop.RUNNING) == 0
    return whole.trajectory()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stop", [0, 13, 40, 300])
def test_resuming_from_a_file_is_bit_identical(rule: str, stop: int, tmp_path: Path) -> None:
    first, second = begin(rule), begin(rule)
    first.advance(stop)
    path = write_arrays(tmp_path / "state.npz", first.state_dict(), overwrite=False)
    second.load_state_dict(read_arrays(path))
    assert same(second.trajectory(), first.trajectory())
    while not second.done:
        second.advance(11)
    assert same(second.trajectory(), uninterrupted(rule))


def test_a_state_holds_plain_data_and_fits_its_own_descent_only() -> None:
    problem = pg.problem("vlmop2")
    descent = pg.Descent(problem, pg.RGW(seed=0), 0.1, 20, seeds=(0, 1))
    descent.advance(5)
    state = descent.state_dict()
    assert all(isinstance(value, (int, str, np.ndarray)) for value in state.values())
    others = [
        pg.Descent(problem, pg.UPGrad(), 0.1, 20, seeds=(0, 1)),
        pg.Descent(problem, pg.RGW(seed=0), 0.2, 20, seeds=(0, 1)),
        pg.Descent(problem, pg.RGW(seed=0), 0.1, 20, seeds=(0, 2)),
        pg.Descent(pg.problem("vlmop2", n=3), pg.RGW(seed=0), 0.1, 20, seeds=(0, 1)),
    ]
    for other in others:
        before = other.trajectory()
        with pytest.raises(pg.ParameterError, match="another descent"):
            other.load_state_dict(state)
        assert same(other.trajectory(), before)
    moved = pg.Descent(problem, pg.RGW(seed=0), 0.1, 20, seeds=(0, 1), starts=torch.zeros(2, 4))
    with pytest.raises(pg.ParameterError, match="other starts"):
        moved.load_state_dict(state)
    with pytest.raises(pg.InputError, match="missing or unknown"):
        descent.load_state_dict({"step": 1})
    with pytest.raises(pg.InputError, match="format"):
        descent.load_state_dict(state | {"format": 99})
    with pytest.raises(pg.ShapeError, match="losses"):
        descent.load_state_dict(state | {"losses": state["losses"][:-1]})


class Interrupting(pg.MGDA):
    """MGDA that presses Ctrl-C at its third call."""

    calls = 0

    def _outcome(self, G: np.ndarray, eps: float) -> object:  # type: ignore[override]
        self.calls += 1
        if self.calls == 3:
            signal.raise_signal(signal.SIGINT)
        return super()._outcome(G, eps)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread()
    or signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
    reason="Ctrl-C belongs to another",
)
def test_ctrl_c_ends_after_the_step_under_way() -> None:
    problem = pg.problem("quadratic", m=3)
    with pytest.warns(DescentWarning, match="interrupted after 3 of at most 50 steps"):
        run = pg.descend(problem, Interrupting(), 0.1, 50, seeds=(0,))
    assert run.reasons == (Stop.INTERRUPTED,)
    assert run.lengths.tolist() == [3]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    descent = pg.Descent(problem, Interrupting(), 0.1, 50, seeds=(0,))
    with pytest.raises(KeyboardInterrupt):
        descent.advance(50)
    descent.advance(50)  # it can go on
    assert descent.trajectory().lengths.tolist() == [50]


def test_a_rule_that_fails_leaves_the_descent_as_it_was() -> None:
    class Failing(pg.MGDA):
        def _outcome(self, G: np.ndarray, eps: float) -> object:  # type: ignore[override]
            raise pg.ParameterError("no")

    rule = pg.Mixed([pg.Mean(), Failing()], pg.RoundRobin(4))
    descent = pg.Descent(pg.problem("quadratic", m=3), rule, 0.1, 50)
    with pytest.raises(pg.ParameterError, match="no"):
        descent.advance(50)
    assert descent.step == rule.position == 4


def test_progress_shows_a_bar_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    problem = pg.problem("vlmop2")
    plain_run = pg.descend(problem, pg.UPGrad(), 0.1, 120, seeds=SEEDS, stop_gamma=0.01)
    assert same(plain_run, pg.descend(problem, pg.UPGrad(), 0.1, 120, seeds=SEEDS, stop_gamma=0.01, progress=True))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"steps": -1}, pg.ParameterError),
        ({"steps": 2.5}, pg.ParameterError),
        ({"lr": 0.0}, pg.ParameterError),
        ({"seeds": ()}, pg.ParameterError),
        ({"seeds": (0.5,)}, pg.ParameterError),
        ({"stop_gamma": -1.0}, pg.ParameterError),
        ({"stop_norm": math.nan}, pg.ParameterError),
        ({"dtype": torch.float16}, pg.DTypeError),
        ({"starts": torch.zeros(2, 3)}, pg.ShapeError),
        ({"starts": torch.zeros(0, 4)}, pg.ShapeError),
        ({"starts": torch.full((1, 4), math.nan)}, pg.InputError),
        ({"starts": "here"}, pg.InputError),
        ({"starts": torch.zeros(2, 4), "seeds": (1, 2, 3)}, pg.ShapeError),
    ],
)
def test_wrong_arguments(keywords: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        pg.descend(pg.problem("vlmop2"), pg.MGDA(), **{"lr": 0.1, "steps": 5} | keywords)  # type: ignore[arg-type]
