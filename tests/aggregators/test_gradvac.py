"""GradVac: its targets over several steps, its state, and how often it conflicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import references as ref
from support.families import FAMILIES
from torch import Tensor

import paretograd as pg


def gaussian(m: int, n: int, seed: int) -> Tensor:
    return FAMILIES["gaussian"].make(m, n, seed)


@pytest.mark.parametrize("order", ["given", "shuffled"])
def test_steps_follow_the_papers_loop(order: str) -> None:
    """Ten steps of gradients that drift, some of them zero, against one pair after the other on the rows."""
    rule = pg.GradVac(beta=0.3, order=order, seed=5 if order == "shuffled" else None)  # type: ignore[arg-type]
    rng, targets = np.random.default_rng(5), np.zeros((4, 4))
    base = gaussian(4, 6, 0)
    for step in range(10):
        J = base + 0.5 * gaussian(4, 6, step)
        if step == 6:
            J[2] = 0.0
        live = np.flatnonzero(J.norm(dim=1).numpy())
        orders = None
        if order == "shuffled":
            drawn = live[rng.random((len(live), len(live))).argsort(axis=1)]
            orders = [drawn[list(live).index(k)] if k in live else [] for k in range(4)]
        wanted, targets = ref.gradvac(J.numpy(), targets, 0.3, orders)
        assert np.linalg.norm(rule(J).numpy() - wanted) <= 1e-12 * np.linalg.norm(wanted)
        found = rule.targets()
        assert found is not None
        assert np.abs(found - targets).max() <= 1e-13
    assert (targets[~np.eye(4, dtype=bool)] != 0.0).all()


def test_the_default_target_moves_slowly() -> None:
    """By a hundredth of the first cosine, as in the paper's experiments."""
    J = gaussian(2, 5, 0)
    rule = pg.GradVac(order="given")
    rule(J)
    found = rule.targets()
    assert found is not None
    assert found[0, 1] == pytest.approx(0.01 * float(torch.nn.functional.cosine_similarity(J[:1], J[1:])), rel=1e-12)


def test_the_first_step_is_that_of_pcgrad() -> None:
    for seed in range(10):
        J = gaussian(5, 7, seed)
        assert torch.allclose(pg.GradVac(order="given")(J), pg.PCGrad(reduction="sum")(J), rtol=1e-12)
        shuffled = pg.PCGrad("shuffled", "sum", seed=seed)(J)
        assert torch.allclose(pg.GradVac(seed=seed)(J), shuffled, rtol=1e-12)


def test_a_turned_gradient_has_the_target_cosine() -> None:
    for seed in range(20):
        J = gaussian(2, 5, seed)
        J[1] *= 1e-9  # the direction is the first gradient, turned
        d = pg.GradVac(target=0.7, order="given")(J)
        before, after = (float(v @ J[1] / v.norm() / J[1].norm()) for v in (J[0], d))
        assert after == pytest.approx(max(0.7, before), abs=1e-7)


def test_a_whole_number_is_a_target() -> None:
    J = gaussian(3, 4, 0)
    assert torch.equal(pg.GradVac(target=1, order="given")(J), pg.GradVac(target=1.0, order="given")(J))


@pytest.mark.parametrize("target", [0.0, 0.3, 0.6, 0.9])
def test_two_gradients_conflict_more_often_the_higher_the_target(target: float) -> None:
    """In the plane, if one gradient is far longer: at angles beyond 90 degrees plus that of the target."""
    rng, count, conflicts = np.random.default_rng(0), 4000, 0
    rule = pg.GradVac(beta=0.0, target=target, order="given")
    for _ in range(count):
        J = torch.from_numpy(rng.standard_normal((2, 2)) * [[1e6], [1.0]])
        conflicts += bool((J @ rule(J) / J.norm(dim=1)).min() < -1e-6 * J.norm())
    share = math.asin(target) / math.pi
    assert abs(conflicts / count - share) <= 4.0 * math.sqrt(share * (1.0 - share) / count)


@pytest.mark.parametrize("target", [0.3, 0.6, 0.9])
def test_shares_of_conflicts_for_lengths_over_some_decades(target: float) -> None:
    rng, count, conflicts = np.random.default_rng(0), 2000, 0
    rule = pg.GradVac(beta=0.0, target=target, order="given")
    for _ in range(count):
        J = torch.from_numpy(rng.standard_normal((2, 2)) * 10.0 ** rng.uniform(-3, 3, (2, 1)))
        d = rule(J)
        conflicts += bool((J @ d / J.norm(dim=1) / d.norm()).min() < -1e-9)
    # Two standard deviations are 0.02.
    assert conflicts / count == pytest.approx({0.3: 0.08, 0.6: 0.18, 0.9: 0.30}[target], abs=0.025)


def test_gradients_of_one_length_do_not_conflict_in_pairs() -> None:
    """Both are turned alike, so that d is along their bisector."""
    rule = pg.GradVac(beta=0.0, target=0.9, order="given")
    for seed in range(50):
        J = gaussian(2, 2, seed)
        J /= J.norm(dim=1, keepdim=True)
        assert (J @ rule(J)).min() >= -1e-12


def test_opposite_gradients_vanish_and_keep_their_targets() -> None:
    """A gradient that the first one it meets removes has no cosine with the next."""
    J = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    rule = pg.GradVac(beta=0.5, target=0.6, order="given")
    # The third alone is left. It is turned to (0.75, 1), and back from there.
    assert torch.allclose(rule(J), torch.tensor([-0.75, 1.0], dtype=torch.float64), atol=1e-14)
    found = rule.targets()
    assert found is not None
    assert found[0, 1] == pytest.approx(-0.2)  # half of 0.6 and half of -1
    assert found[0, 2] == pytest.approx(0.6)


def test_targets_of_one_are_within_reach() -> None:
    """A target of 1 asks for infinite weights; the rule stops where the Gramian no longer resolves the angle."""
    J = gaussian(3, 4, 0)
    w = pg.GradVac(beta=0.0, target=1.0, order="given").weights(pg.gramian(J))
    assert torch.isfinite(w).all()
    assert (w >= 1.0).all()


def test_every_parameter_group_has_targets_of_its_own() -> None:
    x, y = (torch.randn(3, generator=torch.Generator().manual_seed(s), requires_grad=True) for s in (0, 1))
    A, B = gaussian(2, 3, 0).float(), gaussian(2, 3, 1).float()
    rule = pg.GradVac(beta=1.0, order="given")
    for _ in range(2):
        pg.backward([A[k] @ x + B[k] @ y for k in range(2)], rule, [[x], [y]])
    for part, rows in enumerate((A, B)):
        found = rule.targets(part)
        assert found is not None
        cosine = float(torch.nn.functional.cosine_similarity(rows[:1], rows[1:]))
        assert found[0, 1] == pytest.approx(cosine, abs=1e-6)
    assert rule.targets(2) is None


def test_a_failed_step_changes_nothing() -> None:
    rule = pg.GradVac(seed=0)
    rule(gaussian(3, 4, 0))
    before = rule.state_dict()
    good = pg.gramian(gaussian(3, 4, 1))
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights(torch.stack([good, torch.nan * good]))
    assert rule.state_dict() == before
    with pytest.raises(pg.ParameterError, match="m=3 objectives from the steps before, and this step has m=4"):
        rule(gaussian(4, 5, 0))
    assert rule.state_dict() == before


def test_wrong_states_are_refused() -> None:
    rule = pg.GradVac(seed=0)
    rule(gaussian(3, 4, 0))
    state = rule.state_dict()
    with pytest.raises(pg.ParameterError, match="another order than 'given'"):
        pg.GradVac(order="given").load_state_dict(state)
    for targets in ([[2.0]], [[0.0, 0.0]], [0.0]):
        with pytest.raises(pg.ParameterError, match="a matrix of cosines"):
            rule.load_state_dict(state | {"targets": {"0": targets}})
    with pytest.raises(pg.ParameterError, match="loads what its state_dict returned"):
        rule.load_state_dict({})
    assert rule.state_dict() == state


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"beta": 1.5}, "beta=1.5"),
        ({"target": 2}, "target=2"),
        ({"order": "random"}, "order='random'"),
        ({"reduction": "max"}, "reduction='max'"),
    ],
)
def test_wrong_parameters(given: dict[str, object], words: str) -> None:
    with pytest.raises(pg.ParameterError, match=words):
        pg.GradVac(**given)  # type: ignore[arg-type]


def test_runs_that_stop_leave_their_targets_alone() -> None:
    """Runs of a batch that end at different steps: each goes on as it does alone."""
    problem = pg.problem("quadratic", m=3)
    starts = torch.tensor([1.0, 3.0, 2.0, 8.0], dtype=torch.float64)[:, None] * gaussian(4, problem.n, 0)

    def run(points: Tensor) -> pg.Trajectory:
        return pg.descend(problem, pg.GradVac(order="given"), 0.02, 60, starts=points, stop_gamma=0.3)

    together = run(starts)
    assert len(set(together.lengths.tolist())) > 2
    for k in range(4):
        alone = run(starts[k : k + 1])
        length = int(alone.lengths[0])
        assert int(together.lengths[k]) == length
        assert np.array_equal(together.weights[:length, k], alone.weights[:length, 0])
