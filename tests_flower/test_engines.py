"""The example app for real: simulated by `flwr run`, and deployed with TLS and node authentication.

Both run the same attack, and both must end with the weights that the app gives without an engine. What came out is read
from the files that the server writes: `flwr run` exits with 0 even if the server crashed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, free_port, make_certificates, make_node_key, wait_for_port
from in_process import APP, run_in_process

NODES, ROUNDS = 5, 2
#: Of five clients the last sends its update with the sign flipped, one NaN, and one an array that is too short. Two
#: honest ones and the first attacker are left, so the cap must be close to 1/3.
ATTACK = {"attacks": "sign-flip nan shape", "rule": "capped-mgda(eps=0.9)", "num-rounds": ROUNDS}


class Outcome:
    """What a run left in its folder."""

    def __init__(self, folder: Path, printed: str) -> None:
        path = folder / "results.json"
        assert path.exists(), f"no results; the run printed\n{printed}"
        self.rounds = json.loads(path.read_text(encoding="utf-8"))
        self.printed = printed
        with np.load(folder / "model.npz") as arrays:
            self.model = dict(arrays)


def run_config(results: Path) -> str:
    values = {**ATTACK, "results": str(results), "min-nodes": NODES}
    return " ".join(f"{name}={value!r}" for name, value in values.items())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("plain")
    run_in_process(folder, NODES, **ATTACK)
    return Outcome(folder, "")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("simulated")
    with Engine(folder) as engine:
        # As a user runs it: `flwr run` starts a SuperLink, which it leaves behind. Only the ports are others.
        engine.environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(free_port())
        engine.environment["FLWR_LOCAL_CONTROL_API_PORT"] = str(free_port())
        engine.connect(address=":local:")
        nodes = f"num-supernodes={NODES} client-resources-num-cpus=1"
        command = ["flwr", "run", str(APP), "test", "--stream", "--federation-config", nodes]
        printed = engine.call(*command, "--run-config", run_config(folder / "results"), timeout=180)
        assert engine.running()
        yield Outcome(folder / "results", printed)
    assert not engine.running()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Engine]]:
    folder = tmp_path_factory.mktemp("deployed")
    with Engine(folder) as engine:
        paths, port = make_certificates(folder), free_port()
        address, ca = f"127.0.0.1:{port}", str(paths["ca"])
        tls = ["--ssl-certfile", str(paths["server"]), "--ssl-keyfile", str(paths["key"]), "--ssl-ca-certfile", ca]
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
        wait_for_port(port, engine.start("superlink", *command, *tls))
        engine.connect(address=address, root_certificates=ca)

        def supernode(name: str, partition: int, *access: str) -> None:
            own = ["--host", "127.0.0.1", "--port", str(free_port())]
            config = f"partition-id={partition} num-partitions={NODES}"
            engine.start(name, "flower-supernode", "--superlink", address, *own, "--node-config", config, *access)

        keys = [make_node_key(folder, f"node-{k}") for k in range(NODES)]
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda pair: engine.call("flwr", "supernode", "register", str(pair[1]), "test"), keys))
        assert all("registered" in printed for printed in said), said
        for k, (private, _) in enumerate(keys):
            supernode(f"supernode-{k}", k, "--root-certificates", ca, "--auth-supernode-private-key", str(private))
        stranger, _ = make_node_key(folder, "stranger")
        supernode("stranger", 0, "--root-certificates", ca, "--auth-supernode-private-key", str(stranger))
        supernode("keyless", 0, "--root-certificates", ca)
        supernode("plaintext", 0, "--insecure", "--max-retries", "1")
        command = ["flwr", "run", str(APP), "test", "--stream", "--run-config", run_config(folder / "results")]
        printed = engine.call(*command, timeout=240)
        yield Outcome(folder / "results", printed), engine
    assert not engine.running()


def same_weights(found: Outcome, wanted: Outcome) -> None:
    """Nodes have other numbers in every run, and so rows another order, which changes the last digits."""
    assert set(found.model) == set(wanted.model)
    for name, array in wanted.model.items():
        assert np.allclose(found.model[name], array, rtol=1e-3, atol=1e-4), name


def survived(found: Outcome) -> None:
    """NaN and the wrong shape are dropped in every round, the same two nodes; the model is finite, and better."""
    train, evaluate, test = (found.rounds[phase] for phase in ("train", "evaluate", "test"))
    assert len(train) == len(evaluate) == ROUNDS
    for rounds, dropped in ((train, 2), (evaluate, 1)):
        nodes = [record["mo/dropped-nodes"] for record in rounds.values()]
        assert nodes == [nodes[0]] * ROUNDS
        assert len(nodes[0]) == dropped
        assert all(record["mo/valid"] == NODES - dropped for record in rounds.values())
    assert all(np.isfinite(array).all() for array in found.model.values())
    assert test[str(ROUNDS)]["accuracy"] > test["0"]["accuracy"]


def test_without_an_engine(plain: Outcome) -> None:
    survived(plain)


def test_simulated(simulated: Outcome, plain: Outcome) -> None:
    survived(simulated)
    same_weights(simulated, plain)
    for node in simulated.rounds["train"]["1"]["mo/dropped-nodes"]:
        assert f"the reply of node {node} is not used: " in simulated.printed


def test_deployed(deployed: tuple[Outcome, Engine], plain: Outcome, simulated: Outcome) -> None:
    """The same app, unchanged."""
    outcome, _ = deployed
    survived(outcome)
    same_weights(outcome, plain)
    same_weights(outcome, simulated)


@pytest.mark.parametrize("name", ["stranger", "keyless", "plaintext"])
def test_who_is_not_registered_is_refused(deployed: tuple[Outcome, Engine], name: str) -> None:
    _, engine = deployed
    printed = engine.log(name)
    assert "Connection attempt failed" in printed
    assert "Receiving" not in printed
    assert "Receiving" in engine.log("supernode-0")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Also when a test fails: a child that went off into a session of its own is found by its mark."""
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    parent = f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True)"
    engine = Engine(tmp_path)

    def fails() -> None:
        with engine:
            engine.start("parent", "python", "-c", parent).wait()
            assert len(engine.running()) == 1
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fails()
    assert not engine.running()
