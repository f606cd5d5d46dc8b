"""What clients decide about a round besides their updates: how many there are, their buffers, and the words in logs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.federated import Krum, Server, TrimmedMean, buffer_names
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
    with pytest.warns(UserWarning, match="the mean is used"):
        found = Server(pg.CappedMGDA(cap=0.1)).step(model(), replies(9))
    assert same(found.model, Server(pg.Mean()).step(model(), replies(9)).model)


def test_a_rule_that_needs_more_updates_leaves_the_model_alone() -> None:
    """A function says how many it needs, but not how it could do with fewer."""
    server = Server(lambda updates: Krum(2)(updates))
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
    with pytest.warns(UserWarning, match="rejected, since it would be broken: weight holds NaN, infinity"):
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


def test_buffers_move_by_the_median_whatever_the_rule() -> None:
    found = Server(pg.MGDA(), bound="none", averaged=BUFFERS).step(model(), replies(5)).model
    for name in BUFFERS[:2]:
        wanted = np.median([reply[name].astype(np.float64) for reply in replies(5).values()], axis=0)
        assert np.allclose(found[name], wanted, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_minority_cannot_wreck_the_buffers(count: int) -> None:
    """Each entry stays within the changes of honest clients, however many arrays share a length."""
    honest = replies(10 - count)
    hostile = {
        "bn.running_mean": np.full(3, 1e30, dtype=np.float32),
        "bn.num_batches_tracked": np.array(2**62),
    }
    sent = honest | {10 + node: reply(10 + node, **hostile) for node in range(count)}
    found = Server(averaged=BUFFERS).step(model(), sent).model
    for name in BUFFERS[:2]:
        values = np.stack([reply[name] for reply in honest.values()] + [model()[name]])
        assert (found[name] >= values.min(axis=0) - 1e-6).all()
        assert (found[name] <= values.max(axis=0) + 1e-6).all()
    assert found["bn.num_batches_tracked"] == 8


def test_the_statistics_of_one_layer_do_not_pay_for_another() -> None:
    """One length for all buffers let a client spend what is usual in a layer on another, whose numbers are small."""
    start = {"w": np.zeros(3), "a.running_mean": np.zeros(4), "b.running_mean": np.zeros(4)}
    sent = {
        node: {"w": np.ones(3), "a.running_mean": np.full(4, 100.0 + node), "b.running_mean": np.full(4, 0.01 * node)}
        for node in range(1, 10)
    }
    sent[10] = start | {"w": np.ones(3), "b.running_mean": np.full(4, 100.0)}
    found = Server().step(start, sent).model
    assert np.abs(found["b.running_mean"]).max() <= 0.09


def test_a_negative_variance_is_dropped() -> None:
    hostile = reply(1, **{"bn.running_var": np.array([1, -1e-3, 1], dtype=np.float32)})
    assert "negative variance" in str(fault(model(), hostile))


def test_buffer_names() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    net.register_buffer("scratch", torch.zeros(1), persistent=False)
    assert buffer_names(net) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert buffer_names(torch.nn.Linear(2, 3)) == set()


def test_a_variance_that_a_rule_makes_negative_is_not_taken() -> None:
    """Where nothing is averaged running variances are moved like parameters, and a long step takes them below zero."""
    small = {node: reply(node, **{"bn.running_var": np.full(3, 0.1, dtype=np.float32)}) for node in range(4)}
    with pytest.warns(UserWarning, match=r"broken: bn\.running_var holds a negative variance"):
        found = Server(pg.Mean(), lr=2.0, averaged=()).step(model(), small)
    assert not found.moved
    assert same(found.model, model())
    assert Server(pg.Mean(), lr=2.0, averaged=BUFFERS).step(model(), small).moved
    assert Server(pg.Mean(), lr=2.0).step(model(), small).moved


def test_running_statistics_are_averaged_unless_something_else_is_named() -> None:
    default = Server(pg.MGDA()).step(model(), replies(5))
    assert same(default.model, Server(pg.MGDA(), averaged=BUFFERS).step(model(), replies(5)).model)
    nothing = Server(pg.MGDA(), averaged=()).step(model(), replies(5))
    assert not same(default.model, nothing.model)
    # Lengths are those of what is aggregated.
    assert all(more > less for more, less in zip(nothing.norms, default.norms, strict=True))
    with pytest.raises(pg.ParameterError, match=r"averaged='bn': a list of names is needed, such as \['bn'\]"):
        Server(pg.MGDA(), averaged="bn")


@pytest.mark.parametrize("averaged", [None, ()])
def test_momentum_is_dropped_with_a_round_that_is_not_taken(averaged: tuple[str, ...] | None) -> None:
    """Else a velocity that makes a variance negative once would do so in every later round."""
    server = Server(pg.Mean(), momentum=0.9, averaged=averaged)
    current, moved = {"w": np.zeros(3, "f4"), "bn.running_var": np.full(2, 5.0, "f4")}, []
    for _ in range(12):
        sent = {"w": current["w"] - np.float32(0.1), "bn.running_var": np.float32(0.5) * current["bn.running_var"]}
        with warnings.catch_warnings(action="ignore"):
            found = server.step(current, dict.fromkeys(range(4), sent))
        current = found.model
        moved.append(found.moved)
    assert all(moved) if averaged is None else sum(moved) >= 6
    assert not any(first is second is False for first, second in pairwise(moved))


def test_a_negative_variance_by_another_name_is_dropped_where_it_is_averaged() -> None:
    """Keras calls it moving_variance. A mean that happens to be zero so far may be negative."""
    names = ("bn/moving_variance:0", "bn/moving_mean:0", "variational/bias")
    start = {"w": np.zeros(3), **{name: np.zeros(2) for name in names}}
    sent = {node: {name: array + 0.1 * (node + 1) for name, array in start.items()} for node in range(4)}
    server = Server(pg.Mean(), averaged=names)
    with pytest.warns(UserWarning, match="node 4 is not used: bn/moving_variance:0 holds a negative variance"):
        found = server.step(start, sent | {4: sent[0] | {names[0]: np.array([0.1, -0.1])}})
    assert found.nodes == (0, 1, 2, 3)
    for name in names[1:]:
        assert len(server.step(start, sent | {4: sent[0] | {name: np.full(2, -0.1)}}).nodes) == 5
    # Whatever it is, it is no variance if it is negative already; and what is aggregated may be anything.
    assert (
        len(server.step(start | {names[0]: np.full(2, -0.1)}, sent | {4: sent[0] | {names[0]: -np.ones(2)}}).nodes) == 5
    )
    assert len(Server(pg.Mean(), averaged=()).step(start, sent | {4: sent[0] | {names[0]: -np.ones(2)}}).nodes) == 5


def numbered(*arrays: np.ndarray) -> dict[str, np.ndarray]:
    return {str(number): array for number, array in enumerate(arrays)}


@pytest.mark.parametrize("rule", [pg.Mean(), pg.CappedMGDA(eps=0.67)], ids=lambda rule: rule.label)
def test_no_client_makes_a_variance_negative_whatever_its_name(rule: pg.Aggregator) -> None:
    """Lists of arrays have numbers for names, so that nothing tells which is a variance."""
    start = numbered(np.zeros(4), np.zeros(3), np.array([4.0, 4.0, 1e-3]))
    sent = {
        node: numbered(np.full(4, 0.1 * node), np.full(3, -0.1), np.array([4.1, 3.9, 1.1e-3])) for node in range(1, 10)
    }
    hostile = sent | {0: numbered(np.zeros(4), np.full(3, -1e6), np.array([4.0, 4.0, -1e6]))}
    found = Server(rule, averaged=("1", "2")).step(start, hostile)
    assert found.moved
    assert len(found.nodes) == 10
    assert found.model["2"][2] == 1.1e-3  # what most say
    assert (found.model["1"] < 0.0).all()  # of a mean this is no matter


def test_numbered_arrays_ask_for_names_once() -> None:
    start, sent = numbered(np.zeros(4)), {0: numbered(np.ones(4))}
    server = Server(pg.Mean())
    with pytest.warns(UserWarning, match=r"the arrays are numbered.*name them in averaged="):
        server.step(start, sent)
    with warnings.catch_warnings(action="error"):
        server.step(start, sent)
        Server(pg.Mean(), averaged=()).step(start, sent)


def test_a_constant_that_is_infinite_stays() -> None:
    """Such as a mask of attention: no client may change it, and nothing is computed with it."""
    mask = np.triu(np.full((3, 3), -np.inf, dtype=np.float32), 1)
    start = {"w": np.zeros(3), "mask": mask, "scale": np.array([1.0, 1e308])}
    sent = {node: start | {"w": np.ones(3), "scale": np.array([2.0, 1e308])} for node in range(4)}
    server = Server(pg.CappedMGDA(eps=0.67), averaged=("mask", "scale"), bound="none")
    found = server.step(start, sent)
    assert found.moved
    assert found.model["mask"].tobytes() == mask.tobytes()
    assert found.model["scale"].tolist() == [2.0, 1e308]
    for wrong in (np.zeros_like(mask), np.full_like(mask, -np.inf), np.full_like(mask, np.nan), -mask):
        with pytest.warns(UserWarning, match="node 9 is not used: mask "):
            assert len(server.step(start, sent | {9: sent[0] | {"mask": wrong}}).nodes) == 4
    with pytest.raises(pg.InputError, match=r"mask holds NaN, infinity.*name it in averaged=; buffer_names finds"):
        Server(pg.Mean()).step(start, sent)
    with pytest.raises(pg.InputError, match="mask holds NaN"):
        server.step(start | {"mask": np.full_like(mask, np.nan)}, sent)


def test_an_empty_buffer_is_no_matter() -> None:
    net = torch.nn.Linear(2, 2)
    net.register_buffer("cache", torch.empty(0))
    start = {name: array.numpy() for name, array in net.state_dict().items()}
    assert Server(pg.Mean(), averaged=buffer_names(net)).step(start, {1: start, 2: start}).moved


def test_a_parameter_with_the_name_of_a_variance_may_be_negative() -> None:
    start = {"log_running_var": np.array([-1.0, 1.0])}
    assert Server(pg.Mean(), averaged=()).step(start, {0: {"log_running_var": np.zeros(2)}}).moved


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
    for wrong, what in (
        (torch.nn.Linear(2, 3).state_dict(), "a mapping whose 'weight' is a Tensor"),
        ({"w": [1.0]}, "a mapping whose 'w' is a list"),
        ([np.ones(2)], "a list"),
    ):
        with pytest.raises(pg.InputError, match=f"the global model is {what}.*numpy arrays by their names"):
            Server(pg.Mean()).step(wrong, {})
    with pytest.warns(UserWarning, match="node 3 is not used: w is a Tensor and not a numpy array of numbers"):
        Server(pg.Mean()).step({"w": np.ones(2)}, {3: {"w": torch.ones(2)}, 4: {"w": np.ones(2)}, 5: {"w": np.ones(2)}})
    for averaged in (BUFFERS, [*BUFFERS, "weight", "scale"]):
        arrays = {name: array for name, array in model().items() if name in averaged}
        with pytest.raises(pg.InputError, match="no parameters"):
            Server(pg.Mean(), averaged=averaged).step(arrays, {})


def test_updates_for_which_a_rule_has_no_answer_leave_the_model_alone() -> None:
    def picky(updates: torch.Tensor) -> torch.Tensor:
        raise pg.NotAGramianError("these updates are beyond me")

    with pytest.warns(UserWarning, match="leaves the model unchanged: these updates are beyond me"):
        found = Server(picky).step(model(), replies(3))
    assert not found.moved
    assert same(found.model, model())


@pytest.mark.parametrize("answer", [KeyError("w"), RuntimeError("no"), None, torch.zeros(3), torch.zeros(2, 7)])
def test_a_function_that_fails_leaves_the_model_alone(answer: object) -> None:
    def rule(updates: torch.Tensor) -> torch.Tensor:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    said = type(answer).__name__ if isinstance(answer, Exception) else r"a tensor of shape \(7,\) is needed"
    with pytest.warns(UserWarning, match=f"leaves the model unchanged: .*{said}"):
        found = Server(rule).step(model(), replies(3))
    assert not found.moved
    assert same(found.model, model())


def test_a_function_may_answer_in_any_precision() -> None:
    learned = torch.ones((), requires_grad=True)
    found = Server(lambda updates: learned * updates.mean(dim=0).float()).step(model(), replies(3))
    assert found.moved
    assert np.allclose(found.model["weight"], Server(pg.Mean()).step(model(), replies(3)).model["weight"], atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("mgda", r"rule='mgda' is a name: give the rule itself, pg\.get\('mgda'\)"),
        (pg.MGDA, r"rule=MGDA is a class: give an instance, MGDA\(\.\.\.\)"),
        (Krum, r"rule=Krum is a class"),
        (3, "rule=3: give a rule of the library, such as pg.MGDA"),
        (pg.STCH(mu=0.1), r"rule=STCH\(mu=0\.1\) sees losses, and the server has none"),
        (pg.TrimmedMean(), r"rule=TrimmedMean\(.*\) needs rows, .* pass rule\.__call__, a function of all updates"),
        (pg.DBMTL(), r"rule=DBMTL\(.*\) needs losses and rows, .* give another rule"),
        (pg.CRMOGM(pg.GradNorm()), r"needs losses, .* give another rule"),
        (pg.MoDo(), r"rule=MoDo\(.*\) needs batches, .* give another rule"),
    ],
)
def test_what_is_no_rule_for_a_server_is_refused_at_once(rule: object, message: str) -> None:
    with pytest.raises(pg.ParameterError, match=message):
        Server(rule)  # type: ignore[arg-type]


def test_a_rule_of_rows_can_be_passed_as_a_function() -> None:
    found = Server(pg.TrimmedMean(1).__call__).step(model(), replies(5))
    wanted = Server(TrimmedMean(1)).step(model(), replies(5))
    assert found.moved
    assert np.allclose(found.model["weight"], wanted.model["weight"], rtol=1e-6)  # of float32 arrays


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
