"""Attacking clients: apply the configured attacks of paretograd to what an honest client would send."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import Tensor

from paretograd.federated import attacks
from robust_app.task import CLASSES, Net

Arrays = dict[str, Tensor]


def attackers(context: Context) -> dict[int, str]:
    """Return the attack of each hostile client: ``3:nan`` is client 3, other words count from the last client."""
    clients, found = int(context.node_config["num-partitions"]), {}
    last = clients
    for word in str(context.run_config["attacks"]).split():
        client, _, name = word.rpartition(":")
        if name not in attacks.names() or not (client or "0").isdecimal():
            raise ValueError(f"attacks={word!r}: use {', '.join(attacks.names())}, or 3:nan for client 3")
        if not client:
            last -= 1
        number = int(client or last)
        if not 0 <= number < clients:
            raise ValueError(f"attacks={word!r}: there is no client {number}, only 0 to {clients - 1}")
        found[number] = name
    return found


def source(client: int, crew: dict[int, str]) -> int:
    """Return the client whose images to train on: the client itself, or the first colluder for all colluders."""
    if crew.get(client) != "collude":
        return client
    return min(number for number, name in crew.items() if name == "collude")


def learned(labels: Tensor, attack: str) -> Tensor:
    """Return the labels that a client trains on."""
    return attacks.ON_LABELS[attack](labels, CLASSES) if attack in attacks.ON_LABELS else labels


def sent(model: Arrays, before: Arrays, attack: str, seed: int) -> Arrays:
    """Return the arrays that a client with this honest model sends."""
    if attack in attacks.ON_ARRAYS:
        return attacks.ON_ARRAYS[attack](model)
    if attack not in attacks.ON_UPDATES:
        return model
    # An update is the global model minus the client's. The attack appends a row to it, which is sent instead.
    names = [name for name, _ in Net().named_parameters()]
    update = torch.cat([(before[name] - model[name]).flatten() for name in names])[None]
    row = attacks.ON_UPDATES[attack](update, torch.Generator().manual_seed(seed))[-1]
    parts = row.split([before[name].numel() for name in names])
    return model | {name: before[name] - part.view_as(before[name]) for name, part in zip(names, parts, strict=True)}


def claimed(metrics: dict[str, float], attack: str) -> dict[str, float]:
    """Return the metrics that a client sends after training."""
    return attacks.ON_METRICS[attack](metrics) if attack in attacks.ON_METRICS else metrics
