"""The server: a FedAvg app with another strategy, which saves its results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

import paretograd as pg
from paretograd.federated import FedPareto, buffer_names
from paretograd.federated.baselines import BASELINES
from robust_app.task import Net, evaluate, held_out, initial

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and save the results if a folder is given."""
    torch.set_num_threads(1)
    config, net = context.run_config, initial()
    name, nodes = str(config["rule"]), int(config["min-nodes"])
    rule = BASELINES.get(name) or (pg.get(name) if name else None)
    strategy = FedPareto(
        rule,
        attackers=float(config["attackers"]),
        bound=str(config["bound"]),
        lr=float(config["server-lr"]),
        momentum=float(config["server-momentum"]),
        min_valid=int(config["min-valid"]) or None,
        averaged=buffer_names(net),
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid, ArrayRecord(net.state_dict()), num_rounds=int(config["num-rounds"]), evaluate_fn=evaluated
    )
    if config["results"]:
        write(result, Path(str(config["results"])))


def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on held-out images."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = evaluate(net, *held_out())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


def write(result: Result, folder: Path) -> None:
    """Write ``model.npz``, then ``results.json``, whose presence marks success."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "model.npz", **{name: array.numpy() for name, array in result.arrays.items()})
    phases = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "test": result.evaluate_metrics_serverapp,
    }
    found = {
        phase: {number: {name: known(value) for name, value in record.items()} for number, record in rounds.items()}
        for phase, rounds in phases.items()
    }
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (folder / "results.json").write_text(text, encoding="utf-8")


def known(value: float | list[float]) -> float | list[float] | None:
    """Replace NaN with None for JSON: some rules have no weights."""
    return None if isinstance(value, float) and math.isnan(value) else value
