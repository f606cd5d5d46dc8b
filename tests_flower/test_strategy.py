"""FedPareto on real messages: FedAvg where it should be, and no reply that breaks a round."""

from __future__ import annotations

import io
import itertools
import logging
import pickle
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from grid import Client, Loopback, answer, arrays, content

import paretograd as pg
from paretograd.federated import FedPareto, Krum, Server
from paretograd.federated.baselines import BASELINES

RULES = [pg.Mean(), pg.MGDA(), pg.CappedMGDA(eps=0.5), pg.UPGrad().normalized(), *BASELINES.values()]
START = {"w": np.array([1.0, 2.0, 3.0], dtype=np.float32), "b": np.array(0.5, dtype=np.float32)}
CONFIG = ConfigRecord()


def sent(seed: int) -> dict[str, np.ndarray]:
    """A client's model after training."""
    rng = np.random.default_rng(seed)
    return {name: np.asarray(array - 0.1 * rng.random(array.shape), dtype=np.float32) for name, array in START.items()}


HONEST = {7 * node + 3: content(sent(node), loss=float(node)) for node in range(6)}


def configured(
    strategy: FedAvg, start: dict[str, np.ndarray] = START, number: int = 1, nodes: Iterable[int] = HONEST
) -> FedAvg:
    """The round is under way."""
    grid = Loopback(dict.fromkeys(nodes, lambda *_: None))
    messages = list(strategy.configure_train(number, arrays(start), ConfigRecord(), grid))
    assert len(messages) == len(grid.clients)
    return strategy


def aggregated(strategy: FedAvg, replies: dict[int, RecordDict | Error]) -> tuple[dict[str, np.ndarray], MetricRecord]:
    under_way = configured(strategy, nodes=HONEST | replies)
    record, metrics = under_way.aggregate_train(1, [answer(node, found) for node, found in replies.items()])
    assert record is not None
    assert metrics is not None
    return {name: array.numpy() for name, array in record.items()}, metrics


def equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return set(found) == set(wanted) and all(
        np.array_equal(found[name], wanted[name]) and found[name].shape == wanted[name].shape for name in wanted
    )


# ---- what FedAvg does ------------------------------------------------------------------------------------------------


def test_the_mean_is_fedavg() -> None:
    found, metrics = aggregated(FedPareto(pg.Mean(), bound="none"), HONEST)
    wanted, _ = aggregated(FedAvg(), HONEST)
    assert all(np.allclose(found[name], wanted[name], atol=1e-7) for name in START)
    assert metrics["loss"] == 2.5


def test_the_server_step_is_that_of_fedavgm() -> None:
    ours = FedPareto(pg.Mean(), bound="none", lr=0.5, momentum=0.9)
    theirs = FedAvgM(server_learning_rate=0.5, server_momentum=0.9)
    current = {name: array.astype(np.float64) for name, array in START.items()}
    models = [current, current]
    for number in range(1, 5):
        replies = [
            content({name: np.asarray(array + 0.1 * node * number) for name, array in current.items()})
            for node in range(3)
        ]
        for k, strategy in enumerate((ours, theirs)):
            configured(strategy, models[k], number, range(3))
            record, _ = strategy.aggregate_train(number, [answer(node, found) for node, found in enumerate(replies)])
            models[k] = {name: array.numpy() for name, array in record.items()}
        assert all(np.allclose(models[0][name], models[1][name], rtol=1e-12) for name in START)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_the_server_alone_gives_the_same(rule: object) -> None:
    found, metrics = aggregated(FedPareto(rule), HONEST)
    wanted = Server(rule).step(START, {node: sent((node - 3) // 7) for node in HONEST})
    assert equal(found, wanted.model)
    assert metrics["mo/valid"] == 6.0
    # Baselines have no weights, which is NaN.
    assert np.array_equal(metrics["mo/weight/3"], wanted.weights[0], equal_nan=True)


def test_the_order_of_arrival_changes_no_bit() -> None:
    want, wanted = aggregated(FedPareto(pg.CappedMGDA(eps=0.5)), HONEST)
    for order in itertools.islice(itertools.permutations(HONEST), 0, 720, 97):
        found, metrics = aggregated(FedPareto(pg.CappedMGDA(eps=0.5)), {node: HONEST[node] for node in order})
        assert equal(found, want)
        assert dict(metrics) == dict(wanted)


# ---- replies that are no models --------------------------------------------------------------------------------------


def raw(data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    """Bytes of the client's choice where an array should be."""
    record = arrays(sent(0))
    record["w"] = Array("float32", (3,), stype, data)
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10, "loss": 1.0})})


def claims(shape: str) -> bytes:
    """An .npy file whose header claims a shape, and that holds nothing."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def zipped() -> bytes:
    np.savez(buffer := io.BytesIO(), w=np.ones(3, dtype=np.float32))
    return buffer.getvalue()


def hostile() -> dict[str, RecordDict | Error]:
    good = sent(0)
    two = RecordDict({"arrays": arrays(good), "more": arrays(good), "metrics": MetricRecord({"num-examples": 1})})
    return {
        "an error": Error(code=0, reason="out of memory\nround 1: all is well"),
        "nothing": RecordDict(),
        "no arrays": RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
        "two records": two,
        "empty arrays": content({}),
        "lacks b": content({"w": good["w"]}),
        "adds one": content(good | {"backdoor": np.ones(2)}),
        "shape": content(good | {"w": np.ones((3, 1), dtype=np.float32)}),
        "dtype": content(good | {"w": np.ones(3)}),
        "float16": content(good | {"w": good["w"].astype(np.float16)}),
        "integers": content(good | {"w": good["w"].astype(np.int32)}),
        "complex": content(good | {"w": good["w"].astype(np.complex64)}),
        "no dimensions": content(good | {"w": np.array(1, dtype=np.float32)}),
        "many dimensions": content(good | {"w": np.ones((1,) * 30, dtype=np.float32)}),
        "bfloat16": raw(torch.ones(3, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()),
        "many arrays": content(good | {str(number): np.ones(1) for number in range(500)}),
        "byte order": content(good | {"w": np.ones(3, dtype=">f4")}),
        "text": content(good | {"w": np.array(["a", "b", "c"])}),
        "NaN": content(good | {"w": np.array([1, np.nan, 1], dtype=np.float32)}),
        "infinity": content(good | {"b": np.array(-np.inf, dtype=np.float32)}),
        "too large": content(good | {"w": np.ones(10**5, dtype=np.float32)}),
        "no bytes": raw(b""),
        "garbage": raw(b"not an array"),
        "pickle": raw(pickle.dumps([1.0, 2.0, 3.0])),
        "zip": raw(zipped()),
        "broken zip": raw(b"PK\x03\x04"),
        "a shape beyond memory": raw(claims("(1000000000000000,)")),
        "a negative shape": raw(claims("(-3,)")),
        "another format": raw(b"", "torch.Tensor"),
    }


@pytest.mark.parametrize("attack", hostile())
@pytest.mark.parametrize("rule", [pg.CappedMGDA(eps=0.5), Krum(1)], ids=lambda rule: rule.label)
def test_a_bad_reply_is_dropped_and_named(rule: object, attack: str, caplog: pytest.LogCaptureFixture) -> None:
    want, _ = aggregated(FedPareto(rule), HONEST)
    strategy = FedPareto(rule)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found, metrics = aggregated(strategy, HONEST | {21: hostile()[attack]})
    assert equal(found, want)
    assert metrics["mo/dropped-nodes"] == [21]
    assert [node for node, _ in strategy.last.dropped] == [21]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("round 1, training: the reply of node 21 is not used: ")
    assert "\n" not in warning


def test_every_round_warns_again(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedPareto(pg.Mean())
    for _ in range(3):
        aggregated(strategy, HONEST | {21: hostile()["NaN"]})
    assert sum("node 21" in record.getMessage() for record in caplog.records) == 3


def test_a_node_that_replies_twice_is_dropped() -> None:
    strategy, want = configured(FedPareto(pg.Mean()), nodes=[*HONEST, 21]), aggregated(FedPareto(pg.Mean()), HONEST)[0]
    replies = [answer(node, found) for node, found in HONEST.items()]
    twice = [answer(21, content(sent(8))), answer(21, content(sent(9)))]
    for both in (twice, twice[::-1]):
        record, metrics = strategy.aggregate_train(1, [both[0], *replies, both[1]])
        assert equal({name: array.numpy() for name, array in record.items()}, want)
        assert metrics["mo/dropped-nodes"] == [21]


def test_too_few_replies_leave_the_model_alone(caplog: pytest.LogCaptureFixture) -> None:
    few = dict(itertools.islice(HONEST.items(), 2))
    for replies in (few, {}, few | {21: hostile()["NaN"]}):
        found, metrics = aggregated(FedPareto(pg.Mean(), min_valid=3), replies)
        assert equal(found, START)
        assert metrics["mo/valid"] == 0.0
    assert "the model stays unchanged" in caplog.text


def test_buffers_move_by_the_median() -> None:
    found, _ = aggregated(FedPareto(pg.MGDA(), bound="none", averaged=["b"]), HONEST)
    assert np.isclose(found["b"], np.median([sent(node)["b"] for node in range(6)]), atol=1e-7)


def test_running_statistics_are_not_aggregated_by_default() -> None:
    start = {"w": START["w"], "bn.running_var": np.ones(3, dtype=np.float32)}
    found = {node: {name: np.float32(0.1 * (node + 1)) * array for name, array in start.items()} for node in range(6)}
    strategy = configured(FedPareto(pg.MGDA(), bound="none"), start, nodes=found)
    record, _ = strategy.aggregate_train(1, [answer(node, content(arrays)) for node, arrays in found.items()])
    assert np.allclose(record["bn.running_var"].numpy(), 0.35, atol=1e-6)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def measured(**metrics: float | list[float]) -> RecordDict:
    return RecordDict({"metrics": MetricRecord(metrics)})


def bad_metrics() -> dict[str, RecordDict | Error]:
    return {
        "an error": Error(code=0, reason="gone"),
        "nothing": RecordDict(),
        "two records": RecordDict({"a": MetricRecord({"loss": 1.0}), "b": MetricRecord({"loss": 1.0})}),
        "other names": measured(**{"num-examples": 10, "los": 1.0, "curve": [1.0, 2.0]}),
        "a list": measured(**{"num-examples": 10, "loss": [1.0], "curve": [1.0, 2.0]}),
        "a longer list": measured(**{"num-examples": 10, "loss": 1.0, "curve": [1.0, 2.0, 3.0]}),
        "NaN": measured(**{"num-examples": 10, "loss": float("nan"), "curve": [1.0, 2.0]}),
        "infinity": measured(**{"num-examples": 10, "loss": 1.0, "curve": [1.0, float("inf")]}),
        "beyond floats": measured(**{"num-examples": 10**400, "loss": 1.0, "curve": [1.0, 2.0]}),
        "the server's name": measured(**{"num-examples": 10, "loss": 1.0, "curve": [1.0, 2.0], "mo/valid": 1.0}),
        "fewer than none": measured(**{"num-examples": -10, "loss": 1.0, "curve": [1.0, 2.0]}),
    }


@pytest.mark.parametrize("attack", bad_metrics())
@pytest.mark.parametrize("weighted", [False, True])
def test_bad_metrics_are_left_out_and_named(attack: str, weighted: bool, caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedPareto(pg.Mean(), evaluate_metrics_aggr_fn=aggregate_metricrecords if weighted else None)
    good = {
        node: measured(**{"num-examples": 10, "loss": float(node), "curve": [1.0, float(node)]}) for node in (1, 2, 6)
    }
    messages = [answer(node, found) for node, found in (good | {4: bad_metrics()[attack]}).items()]
    found = strategy.aggregate_evaluate(2, messages)
    assert found["loss"] == pytest.approx(3.0)
    assert found["curve"] == pytest.approx([1.0, 3.0])
    assert found["mo/dropped-nodes"] == [4]
    assert "round 2, evaluation: the metrics of node 4 are not used: " in caplog.text


def test_no_client_speaks_for_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Where honest clients send no metrics, those of a hostile one are all that there are."""
    silent = {node: RecordDict({"arrays": arrays(sent(node)), "metrics": MetricRecord()}) for node in range(6)}
    forged = content(sent(6), **{"mo/weight/77": 1.0, "mo/gamma": 0.0})
    _, metrics = aggregated(FedPareto(pg.Mean()), silent | {21: forged})
    assert "mo/weight/77" not in metrics
    assert "mo/weight/21" in metrics
    assert "the metrics of node 21 are not used: the metric 'mo/" in caplog.text
    found = FedPareto(pg.Mean()).aggregate_evaluate(1, [answer(21, measured(**{"mo/valid": 1e9}))])
    assert found is None


def test_a_huge_number_of_examples_buys_no_influence() -> None:
    boast = content(sent(6), loss=50.0)
    boast["metrics"]["num-examples"] = 10**15
    modest = content(sent(6), loss=50.0)
    found, metrics = aggregated(FedPareto(pg.Mean()), HONEST | {21: boast})
    want, wanted = aggregated(FedPareto(pg.Mean()), HONEST | {21: modest})
    assert equal(found, want)
    assert dict(metrics) == dict(wanted)
    assert metrics["loss/median"] == 3.0


def test_metrics_in_training_do_not_decide_about_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """They are for people: a client whose loss is NaN keeps its vote if its model is finite."""
    odd = content(sent(6), loss=float("nan"))
    found, metrics = aggregated(FedPareto(pg.Mean()), HONEST | {21: odd})
    want, _ = aggregated(FedPareto(pg.Mean()), HONEST | {21: content(sent(6), loss=1.0)})
    assert equal(found, want)
    assert metrics["loss"] == 2.5
    assert "the metrics of node 21 are not used" in caplog.text


def test_a_median_that_clients_report_is_theirs() -> None:
    contents = {node: measured(loss=float(node), **{"loss/median": 7.0}) for node in range(3)}
    found = dict(FedPareto(pg.Mean()).aggregate_evaluate(1, [answer(*pair) for pair in contents.items()]))
    assert (found["loss"], found["loss/median"], found["loss/median/median"]) == (1.0, 7.0, 7.0)


def test_no_metrics_at_all() -> None:
    assert FedPareto(pg.Mean()).aggregate_evaluate(1, []) is None
    assert FedPareto(pg.Mean()).aggregate_evaluate(1, [answer(1, RecordDict())]) is None


def test_no_examples_at_all_leave_the_metrics_out(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's average divides by the number of examples."""
    weighted = {"train_metrics_aggr_fn": aggregate_metricrecords, "evaluate_metrics_aggr_fn": aggregate_metricrecords}
    none = {node: content(sent(node), loss=1.0) for node in range(6)}
    for found in none.values():
        found["metrics"]["num-examples"] = 0
    model, metrics = aggregated(FedPareto(pg.Mean(), **weighted), none)
    assert not equal(model, START)
    assert "loss" not in metrics
    assert metrics["mo/valid"] == 6.0
    assert "round 1, training: metrics are left out, as averaging them failed: ZeroDivisionError" in caplog.text
    messages = [answer(node, measured(**{"num-examples": 0, "loss": 1.0})) for node in (1, 2)]
    found = FedPareto(pg.Mean(), **weighted).aggregate_evaluate(3, messages)
    assert dict(found) == {"mo/valid": 2.0, "mo/dropped": 0.0, "mo/dropped-nodes": []}
    assert "round 3, evaluation: metrics are left out" in caplog.text


# ---- whole runs ------------------------------------------------------------------------------------------------------

TARGETS = np.random.default_rng(0).normal(size=(9, 5)) + 3.0


def honest(target: np.ndarray) -> Client:
    """A client that goes three tenths of the way to its target."""

    def reply(instruction: RecordDict, kind: str) -> RecordDict:
        x = instruction["arrays"]["x"].numpy()
        distance = float(np.linalg.norm(x - target))
        return content({"x": x + 0.3 * (target - x)}, loss=distance) if kind == "train" else measured(loss=distance)

    return reply


def attacker(name: str) -> Client:
    def reply(instruction: RecordDict, kind: str) -> RecordDict | Error | None:
        x = instruction["arrays"]["x"].numpy()
        found = {
            "sign flip": content({"x": x - 0.3 * (TARGETS[0] - x)}, loss=0.0),
            "zero": content({"x": x}, loss=0.0),
            "huge": content({"x": x - 1e90}, loss=0.0),
            "NaN": content({"x": x * np.nan}, loss=float("nan")),
            "shape": content({"x": x[:-1]}, loss=0.0),
            "keys": content({"y": x}, losses=0.0),
            "error": Error(code=0, reason="crash"),
            "silence": None,
        }
        return found[name]

    return reply


@pytest.mark.parametrize("attack", ["sign flip", "zero", "huge", "NaN", "shape", "keys", "error", "silence"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_one_attacker_in_ten(rule: object, attack: str) -> None:
    """No run breaks; capped MGDA comes close to the honest targets, as the mean does without an attacker."""
    clients = {node: honest(target) for node, target in enumerate(TARGETS)}
    grid = Loopback(clients | {50: attacker(attack)})
    start = ArrayRecord({"x": Array(np.zeros(5))})
    result = FedPareto(rule).start(grid, start, num_rounds=20, train_config=CONFIG)
    x = result.arrays["x"].numpy()
    assert np.isfinite(x).all()
    assert len(result.train_metrics_clientapp) == len(result.evaluate_metrics_clientapp) == 20
    if isinstance(rule, pg.CappedMGDA):
        assert np.linalg.norm(x - TARGETS.mean(axis=0)) < 0.25 * np.linalg.norm(TARGETS.mean(axis=0))


def test_the_run_goes_on_as_nodes_leave() -> None:
    """FedAvg would wait for ten nodes for ever; so would the first round."""
    grid = Loopback({node: honest(target) for node, target in enumerate(TARGETS)})
    leave = iter(range(6))

    class Leaving(FedPareto):
        def aggregate_evaluate(self, server_round: int, replies: object) -> MetricRecord | None:
            grid.clients.pop(next(leave))
            return super().aggregate_evaluate(server_round, replies)

    strategy = Leaving(pg.Mean(), min_train_nodes=9, min_evaluate_nodes=9, min_available_nodes=9, min_valid=3)
    result = strategy.start(grid, ArrayRecord({"x": Array(np.zeros(5))}), num_rounds=6)
    counts = [result.train_metrics_clientapp[number]["mo/valid"] for number in range(1, 7)]
    assert counts == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]


def test_a_second_run_begins_anew() -> None:
    """The momentum of the first is not the second's, unless it is loaded; nor is its model's size."""
    grid = Loopback({node: honest(target) for node, target in enumerate(TARGETS)})
    strategy = FedPareto(pg.Mean(), momentum=0.9)
    first, second, third = (
        strategy.start(grid, ArrayRecord({"x": Array(np.zeros(5))}), num_rounds=rounds).arrays["x"].numpy()
        for rounds in (3, 3, 2)
    )
    assert np.array_equal(first, second)
    state = strategy.server.state_dict()
    other = FedPareto(pg.Mean(), momentum=0.9)
    other.server.load_state_dict(state)
    resumed = other.start(grid, ArrayRecord({"x": Array(third)}), num_rounds=1).arrays["x"].numpy()
    assert np.array_equal(resumed, first)


def test_no_training() -> None:
    grid = Loopback({node: honest(target) for node, target in enumerate(TARGETS)})
    result = FedPareto(pg.Mean(), fraction_train=0.0).start(grid, ArrayRecord({"x": Array(np.zeros(5))}), num_rounds=2)
    assert not result.train_metrics_clientapp
    assert len(result.evaluate_metrics_clientapp) == 2


# ---- wrong use -------------------------------------------------------------------------------------------------------


def test_a_broken_global_model_is_refused() -> None:
    grid = Loopback(dict.fromkeys(HONEST, lambda *_: None))
    with pytest.raises(pg.InputError, match="the global model cannot be trained: w holds NaN"):
        FedPareto(pg.Mean()).configure_train(1, arrays({"w": np.array([np.nan])}), ConfigRecord(), grid)


def test_what_is_wrong_with_the_strategy_is_said_before_a_client_trains() -> None:
    for rule in ("mgda", pg.MGDA):
        with pytest.raises(pg.ParameterError, match="give"):
            FedPareto(rule)
    grid = Loopback(dict.fromkeys(HONEST, lambda *_: None))
    with pytest.raises(pg.InputError, match=r"averaged names \['c'\], which the model does not have"):
        FedPareto(pg.Mean(), averaged=["b", "c"]).configure_train(1, arrays(START), ConfigRecord(), grid)


def test_aggregation_needs_a_model() -> None:
    with pytest.raises(pg.InputError, match="configure_train first"):
        FedPareto(pg.Mean()).aggregate_train(1, [])


def test_the_summary_names_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        FedPareto(pg.CappedMGDA(cap=0.2), lr=0.5).summary()
    assert pg.CappedMGDA(cap=0.2).label in caplog.text
    assert "learning rate 0.5" in caplog.text
