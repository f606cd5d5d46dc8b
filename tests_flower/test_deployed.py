"""Hostile clients in a real deployment, whose uploads go through Flower's own programs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from engine import Engine, free_port, wait_for_port

APP = Path(__file__).parent / "hostile_app"
MODES = ["honest", "honest", "honest", "unparsable", "bomb", "spoof", "sleeps"]


def test_clients_that_upload_what_they_should_not(tmp_path: Path) -> None:
    results, port = tmp_path / "results.json", free_port()
    with Engine(tmp_path) as engine:
        address = f"127.0.0.1:{port}"
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        wait_for_port(port, engine.start("superlink", *command))
        engine.connect(address=address, insecure=True)
        for k in range(len(MODES)):
            own = ["--port", str(free_port()), "--node-config", f"partition-id={k} num-partitions={len(MODES)}"]
            engine.start(f"supernode-{k}", "flower-supernode", "--insecure", "--superlink", address, *own)
        config = f"modes='{' '.join(MODES)}' results='{results}'"
        began = time.monotonic()
        printed = engine.call("flwr", "run", str(APP), "test", "--stream", "--run-config", config, timeout=300)
        took = time.monotonic() - began
    assert results.exists(), printed
    found = json.loads(results.read_text(encoding="utf-8"))
    assert len(found["rounds"]) == 2
    for server_round in found["rounds"]:
        # Three honest nodes, and the one that named another as the sender: its own number is known.
        assert len(server_round["used"]) == 4
        assert 424242 not in server_round["used"]
        reasons = sorted(reason.partition(":")[0].rstrip(" 0123456789s") for reason in server_round["dropped"].values())
        assert reasons == [
            "it sent no complete reply within",
            "the reply cannot be read",
            "the reply is refused",
        ]
    # Two steps of a tenth of the way from 0 to 1.
    assert 0.15 < found["mean"] < 0.25
    # The bomb takes 3 GB if Flower unpacks it. A reply has 1 MB.
    assert found["memory"] < 200
    assert took < 200
