"""A server that writes what it saw: the nodes that it used and dropped, and its memory."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import paretograd as pg
from paretograd.federated import FedPareto, collect

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with all nodes, and write the results of each round."""
    config = context.run_config
    collect._LEAST = 10.0  # instead of 30 seconds for the last nodes of a round
    count, rounds, seen = len(str(config["modes"]).split()), int(config["num-rounds"]), []
    before = _peak()

    class Seeing(FedPareto):
        def aggregate_train(self, server_round: int, replies: object) -> object:
            found = super().aggregate_train(server_round, replies)
            seen.append({"used": self.last.nodes, "dropped": dict(self.last.dropped)})
            return found

    nodes = {"min_train_nodes": count, "min_available_nodes": count}
    strategy = Seeing(pg.CappedMGDA(eps=0.67), patience=0.0, fraction_evaluate=0.0, **nodes)
    arrays = ArrayRecord({"x": Array(np.zeros(1 << 18, dtype=np.float32))})
    result = strategy.start(grid, arrays, num_rounds=rounds)
    found = {"rounds": seen, "mean": float(result.arrays["x"].numpy().mean()), "memory": _peak() - before}
    Path(str(config["results"])).write_text(json.dumps(found), encoding="utf-8")


def _peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
