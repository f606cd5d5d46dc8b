"""The federated server: order never matters, no hostile reply gets through; robust rules against slow references."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import paretograd as pg
from paretograd.aggregators import coordinates
from paretograd.federated import (
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MultiKrum,
    Server,
    TrimmedMean,
    attacks,
    combine_updates,
)
from paretograd.federated.baselines import BASELINES, geometric_median_weights

RULES = [pg.Mean(), pg.MGDA(), pg.CappedMGDA(eps=0.5), pg.UPGrad().normalized(), *BASELINES.values()]


def drawn(m: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "weight": rng.normal(size=(3, 4)).astype(np.float32),
        "bias": rng.normal(size=3).astype(np.float32),
        "running_mean": rng.normal(size=3).astype(np.float32),
        "batches": np.array(7),
    }


def replies(count: int, seed: int = 1) -> dict[int, dict[str, np.ndarray]]:
    """Models after a step of training, by the numbers of their nodes."""
    rng, found = np.random.default_rng(seed), {}
    for node in range(count):
        moved = {name: array + 0.1 * rng.normal(size=array.shape).astype(np.float32) for name, array in model().items()}
        found[100 - 7 * node] = moved | {"batches": np.array(8 + node)}
    return found


# ---- combining -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
@pytest.mark.parametrize("bound", ["none", "normalize", "clip"])
def test_rows_in_any_order_give_the_same_direction(rule: object, bound: str) -> None:
    updates = drawn(7, 20)
    want = combine_updates(updates, rule, bound).direction
    for order in itertools.islice(itertools.permutations(range(7)), 0, 5000, 700):
        found = combine_updates(updates[list(order)], rule, bound)
        assert torch.allclose(found.direction, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bound", ["normalize", "clip"])
def test_a_long_update_counts_no_more_than_the_median(bound: str) -> None:
    updates = drawn(9, 30)
    updates[4] *= 1e12
    found = combine_updates(updates, pg.Mean(), bound)
    assert float((found.weights * found.norms).max()) <= float(found.norms.median()) / 9 * (1 + 1e-12)
    assert float(found.direction.norm()) <= float(found.norms.median())


def test_weights_are_those_of_the_updates_as_they_came() -> None:
    updates = drawn(5, 12) * torch.tensor([1e-3, 1.0, 1.0, 50.0, 1e6], dtype=torch.float64)[:, None]
    for bound in ("none", "normalize", "clip"):
        found = combine_updates(updates, pg.UPGrad(), bound)
        assert torch.allclose(found.weights @ updates, found.direction, rtol=1e-12, atol=1e-12)


def test_a_zero_update_stops_mgda_and_not_the_capped_rule() -> None:
    updates = attacks.zero_update(drawn(9, 40) + 1.0)
    assert float(combine_updates(updates, pg.MGDA()).direction.norm()) <= 1e-12
    assert float(combine_updates(updates, pg.CappedMGDA(cap=0.2)).direction.norm()) > 0.5


# ---- baselines -------------------------------------------------------------------------------------------------------


def slow_krum(updates: np.ndarray, f: int) -> list[float]:
    m = len(updates)
    scores = []
    for i in range(m):
        apart = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in range(m) if j != i)
        scores.append(sum(apart[: m - f - 2]))
    return scores


@given(m=st.integers(5, 12), n=st.integers(1, 6), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_krum_and_multi_krum(m: int, n: int, seed: int) -> None:
    updates = drawn(m, n, seed)
    scores = slow_krum(updates.numpy(), 1)
    order = np.argsort(scores, kind="stable")
    assert torch.equal(Krum(1)(updates), updates[int(order[0])])
    assert torch.allclose(MultiKrum(1)(updates), updates[order[: m - 1].copy()].mean(dim=0), atol=1e-12)


@given(m=st.integers(3, 12), n=st.integers(1, 6), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_median_and_trimmed_mean(m: int, n: int, seed: int) -> None:
    updates = drawn(m, n, seed)
    assert np.allclose(CoordinateMedian()(updates), np.median(updates.numpy(), axis=0), atol=1e-14)
    want = np.sort(updates.numpy(), axis=0)[1:-1].mean(axis=0)
    assert np.allclose(TrimmedMean(1)(updates), want, atol=1e-14)


@given(m=st.integers(1, 8), n=st.integers(1, 5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_geometric_median(m: int, n: int, seed: int) -> None:
    """No other point has a smaller sum of distances, from whatever start a general minimiser sets out."""
    updates = drawn(m, n, seed).numpy()

    def total(x: np.ndarray) -> float:
        return float(np.linalg.norm(updates - x, axis=1).sum())

    found = GeometricMedian()(torch.from_numpy(updates)).numpy()
    starts = [updates.mean(axis=0), *updates]
    exact = {"xatol": 1e-9, "fatol": 1e-12}
    best = min(minimize(total, start, method="Nelder-Mead", options=exact).fun for start in starts)
    assert total(found) <= best + 1e-6 * (1.0 + best)


def test_geometric_median_of_a_majority_is_the_majority() -> None:
    updates = torch.cat([torch.ones(4, 3), 100.0 * drawn(3, 3).float()]).double()
    weights = torch.from_numpy(geometric_median_weights(pg.gramian(updates).numpy()))
    assert torch.allclose(weights @ updates, torch.ones(3, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("power", [2, 9, 11, 13, 20, 30, 38, 75])
def test_geometric_median_of_a_majority_whatever_another_sends(power: int) -> None:
    """Neither the longest update, nor a small one that it hides among the others."""
    updates = 1.0 + 0.1 * drawn(10, 5)
    updates[0], updates[9] = -3.0, 10.0**power
    found = GeometricMedian()(updates)
    # From very far away only the direction of an update counts, so that more of its length changes nothing.
    far = updates.clone()
    far[9] = 1e9
    assert torch.allclose(found, GeometricMedian()(far), rtol=0.0, atol=0.1 if power == 2 else 1e-6)
    assert 0.8 < float(found.min()) < float(found.max()) < 1.2


def test_medians_of_half_precision_do_not_overflow() -> None:
    rows = torch.full((2, 3), 40000.0, dtype=torch.float16)
    assert torch.equal(CoordinateMedian()(rows), rows[0])
    assert torch.equal(TrimmedMean(0)(rows), rows[0])


def test_many_coordinates_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = drawn(6, 20)
    wanted = CoordinateMedian()(updates), TrimmedMean(1)(updates)
    monkeypatch.setattr(coordinates, "_COLUMNS", 7)
    assert torch.equal(CoordinateMedian()(updates), wanted[0])
    assert torch.equal(TrimmedMean(1)(updates), wanted[1])


def test_too_many_attackers_are_refused() -> None:
    with pytest.raises(pg.ParameterError, match="m >= 7"):
        Krum(2)(drawn(6, 3))
    with pytest.raises(pg.ParameterError, match="at most 1"):
        TrimmedMean(2)(drawn(4, 3))


# ---- attacks ---------------------------------------------------------------------------------------------------------


def test_the_papers_attack_opposes_one_client() -> None:
    updates, generator = drawn(10, 5000), torch.Generator().manual_seed(0)
    attacked = attacks.sign_flip(updates, 3, generator, noise=0.15)
    assert attacked.shape == (11, 5000)
    assert torch.equal(attacked[:10], updates)
    off = attacked[10] + updates[3]
    assert math.isclose(float(off.norm()), 0.15 * float(updates[3].norm()), rel_tol=1e-12)
    literal = attacks.sign_flip(updates, 3, generator, noise=0.01, kind="literal")
    assert math.isclose(float((literal[10] + updates[3]).norm()), 0.01 * math.sqrt(5000), rel_tol=0.1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_no_attack_on_the_matrix_breaks_a_rule(rule: object) -> None:
    updates, generator = drawn(9, 50) + 0.5, torch.Generator().manual_seed(0)
    for attacked in (
        attacks.sign_flip(updates, 0, generator),
        attacks.zero_update(updates, 2),
        attacks.scaled_update(updates, -1e9),
        attacks.scaled_update(updates, 1e-30),
        attacks.colluding(updates, generator, 3),
    ):
        found = combine_updates(attacked, rule, "clip")
        assert torch.isfinite(found.direction).all()
        assert float(found.direction.norm()) <= 3.0 * float(found.norms.median())


# ---- server ----------------------------------------------------------------------------------------------------------


def hostile() -> dict[str, object]:
    good = replies(1)[100]
    return {
        "nothing": None,
        "text": "model",
        "lacks": {name: array for name, array in good.items() if name != "bias"},
        "adds": good | {"backdoor": np.ones(3)},
        "shape": good | {"bias": np.ones((3, 1), dtype=np.float32)},
        "dtype": good | {"bias": np.ones(3)},
        "objects": good | {"bias": np.array([None, 1, "x"], dtype=object)},
        "nan": good | {"bias": np.array([1, np.nan, 1], dtype=np.float32)},
        "infinite": good | {"bias": np.array([1, np.inf, 1], dtype=np.float32)},
    }


@pytest.mark.parametrize("attack", hostile())
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_a_reply_that_is_no_model_is_dropped_and_named(rule: object, attack: str) -> None:
    server, honest = Server(rule, averaged=["running_mean"]), replies(6)
    want = server.step(model(), honest)
    with pytest.warns(UserWarning, match="node 13"):
        found = Server(rule, averaged=["running_mean"]).step(model(), honest | {13: hostile()[attack]})
    assert [node for node, _ in found.dropped] == [13]
    assert all(np.array_equal(found.model[name], want.model[name]) for name in model())
    assert found.nodes == tuple(sorted(honest))


def test_the_order_of_arrival_changes_no_bit() -> None:
    found = replies(8)
    want = Server(pg.CappedMGDA(eps=0.5)).step(model(), found)
    for order in ([7, 3, 1, 0, 2, 6, 5, 4], list(range(7, -1, -1))):
        nodes = list(found)
        shuffled = {nodes[k]: found[nodes[k]] for k in order}
        again = Server(pg.CappedMGDA(eps=0.5)).step(model(), shuffled)
        assert all(np.array_equal(again.model[name], want.model[name]) for name in model())
        assert again[1:] == want[1:]


def test_the_mean_with_lr_1_is_fedavg() -> None:
    found, start = replies(5), model()
    after = Server(pg.Mean(), bound="none", averaged=["running_mean"]).step(start, found)
    for name in ("weight", "bias", "running_mean"):
        center = np.median if name == "running_mean" else np.mean  # no client should own a statistic
        want = center([reply[name].astype(np.float64) for reply in found.values()], axis=0)
        assert np.allclose(after.model[name], want, atol=1e-7)
        assert after.model[name].dtype == start[name].dtype
    assert after.model["batches"] == 10
    assert start["batches"] == 7


def test_momentum_is_that_of_fedopt_and_survives_a_checkpoint() -> None:
    server, current = Server(pg.Mean(), lr=0.5, momentum=0.9, bound="none"), model()
    velocity = 0.0
    for number in range(4):
        found = replies(3, seed=number)
        mean = np.mean([reply["weight"].astype(np.float64) for reply in found.values()], axis=0)
        update = current["weight"].astype(np.float64) - mean
        velocity = 0.9 * velocity + update
        want = current["weight"] - 0.5 * velocity
        if number == 2:
            state, server = server.state_dict(), Server(pg.Mean(), lr=0.5, momentum=0.9, bound="none")
            server.load_state_dict(state)
        current = server.step(current, found).model
        assert np.allclose(current["weight"], want, atol=1e-6)


def test_momentum_belongs_to_one_run_and_one_model() -> None:
    server = Server(pg.Mean(), momentum=0.9)
    first = server.step(model(), replies(4)).model
    server.begin()
    again = server.step(model(), replies(4)).model
    assert all(np.array_equal(again[name], array) for name, array in first.items())
    with pytest.raises(pg.InputError, match=r"with 15 parameters, and this one has 2: call begin\(\)"):
        server.step({"w": np.zeros(2)}, {0: {"w": np.ones(2)}})
    state = server.state_dict()
    other = Server(pg.Mean(), momentum=0.9)
    other.load_state_dict(state)
    other.begin()  # what was loaded is for the run that begins
    assert torch.equal(other.state_dict()["velocity"], state["velocity"])
    for wrong in (
        {},
        {"velocity": None},
        {"velocity": torch.tensor([math.nan]), "rule": {}},
        {"velocity": 1, "rule": {}},
    ):
        with pytest.raises(pg.InputError, match="velocity"):
            other.load_state_dict(wrong)
    assert torch.equal(other.state_dict()["velocity"], state["velocity"])


@pytest.mark.parametrize("bound", ["normalize", "clip"])
@pytest.mark.parametrize("rule", [pg.Mean(), pg.CappedMGDA(eps=0.67)], ids=lambda rule: rule.label)
def test_clients_without_data_do_not_stop_the_others(rule: pg.Aggregator, bound: str) -> None:
    start = {"w": np.zeros(3)}
    sent = dict.fromkeys(range(5), start) | {node: {"w": np.ones(3)} for node in range(5, 9)}
    found = Server(rule, bound=bound).step(start, sent).model["w"]
    assert (found > 0.05).all()
    # One that is far longer than the others counts as one of them.
    hostile = Server(rule, bound=bound).step(start, sent | {9: {"w": np.full(3, -1e9)}}).model["w"]
    assert (np.abs(hostile) <= 1.0).all()


def test_too_few_valid_replies_leave_the_model_alone() -> None:
    server = Server(pg.MGDA(), min_valid=3)
    with pytest.warns(UserWarning, match="NaN"), pytest.warns(UserWarning, match="2 of 3 clients .* quorum is 3"):
        found = server.step(model(), dict(list(replies(2).items())) | {5: hostile()["nan"]})
    assert not found.moved
    assert all(np.array_equal(found.model[name], array) for name, array in model().items())
    assert found.metrics()["valid"] == 0.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lr": 0.0}, "above 0"),
        ({"momentum": 1.0}, "below 1"),
        ({"min_valid": 0}, "at least 1"),
        ({"min_valid": 1.5}, "a whole number"),
    ],
)
def test_wrong_parameters(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(pg.ParameterError, match=message):
        Server(pg.Mean(), **parameters)
