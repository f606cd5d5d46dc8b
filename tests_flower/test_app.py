"""The example app without an engine: every attack that it knows, and ten clients of which one or a few are hostile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from in_process import CONFIG, Apps, run_in_process

from paretograd.federated import attacks
from paretograd.federated.replies import fault

# ---- what a client sends ---------------------------------------------------------------------------------------------


def replies(words: str, count: int = 4) -> list[RecordDict]:
    """What each client makes of the first model, in the order of their numbers."""
    grid = Apps(count, CONFIG | {"attacks": words})
    from robust_app.task import initial

    content = RecordDict({"arrays": ArrayRecord(initial().state_dict()), "config": ConfigRecord({"server-round": 1})})
    messages = [Message(content, dst_node_id=node, message_type="train") for node in grid.contexts]
    return [grid.reply(message).content for message in messages]


def model(reply: RecordDict) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in reply["arrays"].items()}


def row(reply: RecordDict) -> torch.Tensor:
    """The update of a reply: the first global model minus the client's, parameters alone."""
    from robust_app.task import initial

    net = initial()
    return torch.cat(
        [p.detach().flatten() - torch.from_numpy(model(reply)[n]).flatten() for n, p in net.named_parameters()]
    )


@pytest.fixture(scope="module")
def honest() -> list[RecordDict]:
    return replies("")


@pytest.mark.parametrize("attack", attacks.names())
def test_an_attack_is_the_chosen_clients_alone(attack: str, honest: list[RecordDict]) -> None:
    found = replies(f"1:{attack}")
    for client in (0, 2, 3):
        assert found[client]["arrays"] == honest[client]["arrays"]
        assert dict(found[client]["metrics"]) == dict(honest[client]["metrics"])
    changed = found[1]["arrays"] != honest[1]["arrays"]
    assert changed == (attack != "boast")
    assert (found[1]["metrics"]["num-examples"] > 10**9) == (attack == "boast")
    reason = fault(model(honest[1]), model(found[1]))
    assert (reason is not None) == (attack in ("nan", "shape", "keys"))
    if attack in ("sign-flip", "collude"):
        cosine = torch.cosine_similarity(row(found[1]), row(honest[1]), dim=0)
        assert float(cosine) < -0.98
    if attack == "zero":
        assert float(row(found[1]).norm()) == 0.0
    if attack == "scaled":
        assert float(row(found[1]).norm()) == pytest.approx(1e3 * float(row(honest[1]).norm()), rel=1e-3)


def test_colluders_agree(honest: list[RecordDict]) -> None:
    found = [row(reply) for reply in replies("2:collude collude")]
    assert torch.allclose(found[0], row(honest[0]))
    for client in (2, 3):
        assert float(torch.cosine_similarity(found[client], row(honest[2]), dim=0)) < -0.999
    assert not torch.equal(found[2], found[3])


def test_an_unknown_attack_is_an_error() -> None:
    for words in ("magic", "x:nan", "nan 2:magic"):
        with pytest.raises(Exception, match="use sign-flip, "):
            replies(words)


def test_an_attack_by_nobody_is_an_error() -> None:
    """Else a run without any attack would look like one that survived it."""
    for words in ("12:nan", "nan " * 5):
        with pytest.raises(Exception, match=r"there is no client .* only 0 to 3"):
            replies(words)


# ---- whole runs ------------------------------------------------------------------------------------------------------


def accuracy(folder: Path, **config: object) -> float:
    run_in_process(folder, 10, **{"num-rounds": 10, **config})
    with np.load(folder / "model.npz") as arrays:
        assert all(np.isfinite(array).all() for array in arrays.values())
    rounds = json.loads((folder / "results.json").read_text(encoding="utf-8"))["test"]
    return rounds[max(rounds, key=int)]["accuracy"]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy(tmp_path_factory.mktemp("unharmed"))


@pytest.mark.parametrize(
    "words", ["sign-flip", "4:zero", "scaled", "label-flip", "collude collude collude", "nan shape 0:keys 1:boast"]
)
def test_hostile_clients_cost_little(words: str, unharmed: float, tmp_path: Path) -> None:
    """One that moves the model, three of ten that collude, or several that are dropped."""
    assert unharmed > 0.95
    assert accuracy(tmp_path, attacks=words) > 0.9 * unharmed


def test_two_colluders_cost_more(unharmed: float, tmp_path: Path) -> None:
    """With a cap close to the mean's; see the tables in docs/hostile.md."""
    assert accuracy(tmp_path, attacks="collude collude", rule="capped-mgda(cap=0.15)") > 0.8 * unharmed


def test_the_mean_without_a_bound_is_lost(tmp_path: Path) -> None:
    """FedAvg's rule: one scaled update ends the training, though not the server."""
    assert accuracy(tmp_path, attacks="scaled", rule="mean", bound="none") < 0.3


def test_results_are_json_where_a_rule_has_no_weights(tmp_path: Path) -> None:
    run_in_process(tmp_path, 4, **{"num-rounds": 1, "rule": "Median"})

    def refuse(token: str) -> None:
        raise AssertionError(token)

    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert None in found["train"]["1"].values()


def test_mgda_without_a_cap_stalls(tmp_path: Path) -> None:
    assert accuracy(tmp_path, attacks="zero", rule="mgda") < 0.3
