"""Clients that fail: how many valid replies a round needs, and rules that need more than there are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.federated import Krum, MultiKrum, Round, Server, TrimmedMean

START = {"w": np.zeros(5)}
BROKEN = {"w": np.full(5, np.nan)}


def sent(node: int) -> dict[str, np.ndarray]:
    return {"w": -1.0 + 0.1 * np.random.default_rng(node).normal(size=5)}


def mixed(valid: int, broken: int) -> dict[int, object]:
    """Replies of honest clients, and of clients that fail, in two ways."""
    failures = [BROKEN, RuntimeError("it sent no reply")]
    honest: dict[int, object] = {node: sent(node) for node in range(valid)}
    return honest | {valid + k: failures[k % 2] for k in range(broken)}


def stepped(server: Server, replies: dict[int, object], **asked: int) -> tuple[Round, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = server.step(START, replies, **asked)
    said = [str(warning.message) for warning in caught]
    return found, [words for words in said if "is not used" not in words]


# ---- the quorum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("valid", "broken", "moves"), [(6, 4, True), (5, 5, False), (3, 2, True), (1, 0, True)])
def test_more_than_half_of_the_clients_must_reply(valid: int, broken: int, moves: bool) -> None:
    found, said = stepped(Server(pg.CappedMGDA(eps=0.67)), mixed(valid, broken))
    assert found.moved is moves
    assert bool(said) is not moves
    assert len(found.dropped) == broken


def test_the_only_clients_that_answer_do_not_own_the_model() -> None:
    """Two attackers of ten while the others fail: the median of their lengths would be their own."""
    evil = {8: {"w": np.full(5, 1e30)}, 9: {"w": np.full(5, 1e30)}}
    found, said = stepped(Server(pg.CappedMGDA(eps=0.67)), evil, asked=10)
    assert not found.moved
    assert np.array_equal(found.model["w"], START["w"])
    assert said == [
        "this round leaves the model unchanged: 2 of 10 clients sent a valid reply, and the quorum is 6 (more than "
        "half of them)"
    ]


def test_a_number_replaces_the_quorum() -> None:
    server = Server(pg.Mean(), min_valid=2)
    assert server.quorum(10) == 2
    assert stepped(server, mixed(2, 8))[0].moved
    found, said = stepped(server, mixed(1, 9))
    assert not found.moved
    assert said[0].endswith("1 of 10 clients sent a valid reply, and the quorum is 2 (min_valid=2)")


@pytest.mark.parametrize(
    "wrong", [{"asked": -1}, {"asked": "ten"}, {"asked": 2.5}, {"clients": -3}, {"clients": None, "asked": True}]
)
def test_numbers_of_clients_are_validated(wrong: dict[str, int]) -> None:
    with pytest.raises(pg.ParameterError, match=r"(asked|clients)=.*: a (whole|real) number"):
        Server().step(START, mixed(3, 0), **wrong)


# ---- rules that need more replies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "fits"), [(Krum(3), Krum(2)), (MultiKrum(3), MultiKrum(2)), (TrimmedMean(4), TrimmedMean(3))]
)
def test_clients_that_fail_do_not_stop_a_rule(rule: Krum | MultiKrum | TrimmedMean, fits: object) -> None:
    """Ten clients are enough for these rules, and the eight that are left are not."""
    server = Server(rule)
    found, said = stepped(server, mixed(8, 2))
    assert found.moved
    wanted, nothing = stepped(Server(fits), mixed(8, 0))
    assert np.array_equal(found.model["w"], wanted.model["w"])
    assert not nothing
    assert len(said) == 1
    assert said[0].startswith(f"attackers={fits.attackers} in this round, for 8 valid replies: ")
    # It is for this round alone.
    assert rule.attackers == fits.attackers + 1
    assert not stepped(server, mixed(10, 0))[1]


def test_a_rule_of_the_library_counts_with_fewer_attackers_as_well() -> None:
    found, _ = stepped(Server(pg.Krum(attackers=3)), mixed(8, 2))
    assert np.array_equal(found.model["w"], stepped(Server(pg.Krum(attackers=2)), mixed(8, 0))[0].model["w"])


def test_a_rule_that_never_fits_leaves_the_model_alone() -> None:
    class Picky:
        attackers = 2

        def __call__(self, updates: torch.Tensor) -> torch.Tensor:
            raise pg.ParameterError(f"not with {self.attackers}")

    found, said = stepped(Server(Picky()), mixed(8, 0))
    assert not found.moved
    assert said == ["this round leaves the model unchanged: not with 2"]
