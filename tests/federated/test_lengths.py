"""Bounds on lengths that remember earlier rounds: rounds with some of the clients, most of them hostile."""

from __future__ import annotations

import json
import warnings
from itertools import combinations

import numpy as np
import pytest

import paretograd as pg
from paretograd.federated import Server
from paretograd.federated.lengths import Lengths, most_hostile

TARGET = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(("clients", "hostile"), [(10, 3), (12, 0), (9, 4), (11, 5)])
def test_samples_rarely_have_more_hostile_clients(clients: int, hostile: int) -> None:
    """Counted over all samples of a few clients."""
    for known in range(1, clients + 1):
        counts = [sum(member < hostile for member in sample) for sample in combinations(range(clients), known)]
        found = most_hostile(clients, hostile, known)
        assert np.mean([count > found for count in counts]) <= 1e-3
        assert found == 0 or np.mean([count >= found for count in counts]) > 1e-3


def test_many_clients_need_few_rounds() -> None:
    """Of 40 of a thousand clients, most are honest, so that their median bounds the lengths."""
    assert 40 - most_hostile(1000, 300, 40) >= 15
    assert 100 - most_hostile(1000, 300, 100) >= 50


def distance(sizes: float, evil: set[int], seed: int, **options: object) -> float:
    """Return the relative distance to the honest target after 20 rounds, in which some of ten clients take part."""
    rng, server = np.random.default_rng(seed), Server(pg.CappedMGDA(eps=0.67), **options)  # type: ignore[arg-type]
    x = np.zeros(200)
    for _ in range(20):
        sample = rng.choice(10, size=int(10 * sizes), replace=False)
        sent = {
            int(k): {"x": np.full(200, 1e30)}
            if k in evil
            else {"x": x + 0.3 * (TARGET + 0.3 * np.random.default_rng(k).normal(size=200) - x)}
            for k in sample
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the lengths of [23] of 10 clients are known")
            x = server.step({"x": x}, sent, clients=10).model["x"]
    return float(np.linalg.norm(x - TARGET) / np.linalg.norm(TARGET))


@pytest.mark.parametrize("share", [0.5, 0.3, 0.2])
def test_two_attackers_that_are_most_of_a_sample_do_not_own_the_model(share: float) -> None:
    """By the median of the sample alone, the model was lost in most runs.

    With two clients a round, both are hostile at times, and if that is the first round, it is not used.
    """
    found = [distance(share, {8, 9}, seed) for seed in range(20)]
    assert max(found) < 1.5
    assert float(np.median(found)) < 0.5


def test_the_bound_is_the_median_of_all_known_clients() -> None:
    lengths = Lengths(0.3)
    first = {node: 1.0 + 0.1 * node for node in range(10)}
    assert lengths.limit(first, 10) == 1.4  # the lower median, as without memory
    lengths.remember(first)
    later = {0: 1e30, 1: 1e30, 2: 1.2}
    assert lengths.limit(later, 10) == 1.6
    assert Lengths(0.0).limit(later, 10) == 1e30  # nobody is hostile: the median
    assert Lengths(0.3).limit(later, 0) == 1e30  # all were asked, and most replied alike
    assert Lengths(0.3).limit(later | {3: 1e30}, 10) == 1.2  # nothing else is known: the shortest
    with pytest.raises(pg.InputError, match="all of these may be hostile"):
        Lengths(0.3).limit(later, 10)
    assert Lengths(0.3).limit({0: 0.0}, 10) is None
    for _ in range(20):
        lengths.remember({0: 5.0})
    assert lengths.limit({0: 5.0}, 0) == 5.0  # old lengths are forgotten


def test_a_round_of_clients_that_may_all_be_hostile_is_not_used_but_remembered() -> None:
    server, start = Server(), {"w": np.zeros(2)}
    with pytest.warns(
        UserWarning, match=r"unchanged: the lengths of 2 of 10 clients are known, and with attackers=0\.3"
    ):
        assert not server.step(start, {k: {"w": np.full(2, 1e30)} for k in (0, 1)}, clients=10).moved
    found = server.step(start, {k: {"w": np.ones(2)} for k in (2, 3)}, clients=10)
    assert found.moved
    assert np.abs(found.model["w"]).max() <= 1.0 + 1e-12


def test_lengths_survive_a_checkpoint_and_end_with_a_run() -> None:
    server, sent = Server(pg.Mean()), {node: {"w": np.full(2, float(node))} for node in range(1, 6)}
    server.step({"w": np.zeros(2)}, sent)
    state = server.state_dict()
    assert json.loads(json.dumps(state["lengths"])) == state["lengths"]
    other = Server(pg.Mean())
    other.load_state_dict(state)
    assert other.state_dict()["lengths"] == state["lengths"]
    other.begin()
    assert other.state_dict()["lengths"] == state["lengths"]  # loaded for this run
    other.step({"w": np.zeros(2)}, sent)
    other.begin()
    assert other.state_dict()["lengths"] == {"round": 0, "known": []}


@pytest.mark.parametrize(
    "lengths",
    [
        None,
        {},
        {"round": 1, "known": [[0, -1.0, 1]]},
        {"round": 1, "known": [[0, 1.0, 2]]},
        {"round": "1", "known": []},
    ],
)
def test_other_states_are_refused_and_change_nothing(lengths: object) -> None:
    server = Server(pg.Mean())
    server.step({"w": np.zeros(2)}, {0: {"w": np.ones(2)}})
    before = server.state_dict()["lengths"]
    with pytest.raises(pg.InputError, match=r"lengths are not those of `Server\.state_dict`"):
        server.load_state_dict({"velocity": None, "rule": {}, "lengths": lengths})
    assert server.state_dict()["lengths"] == before


def test_a_round_that_is_not_used_is_not_remembered() -> None:
    server = Server(pg.Mean())
    with pytest.warns(UserWarning, match="quorum"):
        server.step({"w": np.zeros(2)}, {0: {"w": np.ones(2)}}, asked=10)
    assert server.state_dict()["lengths"]["known"] == []
