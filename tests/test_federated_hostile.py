"""What clients decide about a round besides their updates: how many there are, their buffers, and the words in logs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.federated import Krum, Server, buffer_names
from paretograd.federated.replies import fault, shown

Arrays = dict[str, np.ndarray]


def model() -> Arrays:
    return {
        "weight": np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3),
        "scale": np.array(1.0, dtype=np.float32),
        "bn.running_mean": np.zeros(3, dtype=np.float32),
        "bn.running_var": np.ones(3, dtype=np.float32),
        "bn.num_batches_tracked": np.array(7),
    }


BUFFERS = ["bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]


def reply(seed: int, **changed: np.ndarray) -> Arrays:
    rng = np.random.default_rng(seed)
    found = {
        name: np.asarray(array + 0.1 * np.abs(rng.normal(size=array.shape)), dtype=array.dtype)
        for name, array in model().items()
    }
    return found | {"bn.num_batches_tracked": np.array(8)} | changed


def replies(count: int) -> dict[int, Arrays]:
    return {node: reply(node) for node in range(count)}


def same(found: Arrays, wanted: Arrays) -> bool:
    return all(np.array_equal(found[name], wanted[name]) for name in wanted)


# ---- how many reply --------------------------------------------------------------------------------------------------


def test_a_cap_below_1_over_m_becomes_the_mean() -> None:
    """Ten clients allow a cap of 0.1; if one drops out, or sends NaN, the nine that are left do not."""
    with pytest.warns(UserWarning, match="the mean is taken"):
        found = Server(pg.CappedMGDA(cap=0.1)).step(model(), replies(9))
    assert same(found.model, Server(pg.Mean()).step(model(), replies(9)).model)


def test_a_rule_that_needs_more_updates_leaves_the_model_alone() -> None:
    server = Server(Krum(2))
    with pytest.warns(UserWarning, match="m >= 7"):
        found = server.step(model(), replies(6))
    assert not found.moved
    assert same(found.model, model())
    assert server.step(model(), replies(7)).moved


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_a_step_beyond_the_range_of_the_model_is_not_taken() -> None:
    """Each number is finite, and what momentum makes of them is not."""
    server, current = Server(pg.Mean(), lr=2.0, momentum=0.9, bound="none"), model()
    far = {0: reply(0, weight=np.full((2, 3), 3e38, dtype=np.float32))}
    with pytest.warns(UserWarning, match="not taken, since it would be broken: weight holds NaN, infinity"):
        found = server.step(current, far)
    assert not found.moved
    assert same(found.model, current)
    state = server.state_dict()["velocity"]
    assert state is None


def test_scalars_stay_arrays() -> None:
    found = Server(pg.Mean(), averaged=BUFFERS).step(model(), replies(3)).model
    for name, array in model().items():
        assert isinstance(found[name], np.ndarray)
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)


# ---- buffers ---------------------------------------------------------------------------------------------------------


def test_buffers_are_averaged_whatever_the_rule() -> None:
    found = Server(pg.MGDA(), bound="none", averaged=BUFFERS).step(model(), replies(5)).model
    for name in BUFFERS[:2]:
        wanted = np.mean([reply[name].astype(np.float64) for reply in replies(5).values()], axis=0)
        assert np.allclose(found[name], wanted, atol=1e-6)


def test_one_client_cannot_wreck_the_buffers() -> None:
    """Far beyond what others send, a buffer counts as much as an honest one; a count of batches not at all."""
    hostile = {
        "bn.running_mean": np.full(3, 1e30, dtype=np.float32),
        "bn.num_batches_tracked": np.array(2**62),
    }
    found = Server(pg.CappedMGDA(eps=0.5), averaged=BUFFERS).step(model(), replies(9) | {9: reply(9, **hostile)}).model
    honest = max(float(np.linalg.norm(reply["bn.running_mean"])) for reply in replies(9).values())
    assert float(np.linalg.norm(found["bn.running_mean"])) <= 1.1 * honest
    assert float(found["bn.running_var"].min()) > 0.0
    assert found["bn.num_batches_tracked"] == 8


def test_a_negative_variance_is_dropped() -> None:
    hostile = reply(1, **{"bn.running_var": np.array([1, -1e-3, 1], dtype=np.float32)})
    assert "negative variance" in str(fault(model(), hostile))


def test_buffer_names() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    net.register_buffer("scratch", torch.zeros(1), persistent=False)
    assert buffer_names(net) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert buffer_names(torch.nn.Linear(2, 3)) == set()


def test_a_variance_that_a_rule_makes_negative_is_not_taken() -> None:
    """Without `averaged` running variances are moved like parameters, and a long step takes them below zero."""
    small = {node: reply(node, **{"bn.running_var": np.full(3, 0.1, dtype=np.float32)}) for node in range(4)}
    with pytest.warns(UserWarning, match=r"broken: bn\.running_var holds a negative variance"):
        found = Server(pg.Mean(), lr=2.0).step(model(), small)
    assert not found.moved
    assert same(found.model, model())
    assert Server(pg.Mean(), lr=2.0, averaged=BUFFERS).step(model(), small).moved


# ---- words -----------------------------------------------------------------------------------------------------------


def test_a_clients_words_stay_on_one_line() -> None:
    name = "x\nWARNING: all is well" + "y" * 100
    reason = fault(model(), reply(0, **{name: np.ones(1)}))
    assert "\n" not in str(reason)
    assert len(str(reason)) < 150
    assert shown("a\x1b[2Jb") == r"'a\x1b[2Jb'"


def test_a_model_that_cannot_be_trained_is_an_error() -> None:
    """It is the server's own, so that no client can cause it."""
    with pytest.raises(pg.InputError, match="cannot be trained: weight holds NaN"):
        Server(pg.Mean()).step(model() | {"weight": np.full((2, 3), np.nan, dtype=np.float32)}, replies(3))
    for averaged in (BUFFERS, [*BUFFERS, "weight", "scale"]):
        arrays = {name: array for name, array in model().items() if name in averaged}
        with pytest.raises(pg.InputError, match="no parameters"):
            Server(pg.Mean(), averaged=averaged).step(arrays, {})


def test_updates_for_which_a_rule_has_no_answer_leave_the_model_alone() -> None:
    def picky(updates: torch.Tensor) -> torch.Tensor:
        raise pg.NotAGramianError("these updates are beyond me")

    with pytest.warns(UserWarning, match="leaves the model as it is: these updates are beyond me"):
        found = Server(picky).step(model(), replies(3))
    assert not found.moved
    assert same(found.model, model())


def test_a_bound_must_be_known() -> None:
    with pytest.raises(pg.ParameterError, match="normalize"):
        Server(pg.Mean(), bound="median")


# ---- without Flower --------------------------------------------------------------------------------------------------


def test_without_flower_only_the_strategy_is_missing() -> None:
    code = """
import sys
sys.modules["flwr"] = None
import paretograd.federated
try:
    paretograd.federated.FedPareto
except paretograd.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'paretograd[flower]'" in done.stdout


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="FedAverage"):
        _ = pg.federated.FedAverage
