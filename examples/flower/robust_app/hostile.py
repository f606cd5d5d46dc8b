"""Clients that attack, as the configuration asks for: `attacks` of paretograd, on what an honest client would send."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import Tensor

from paretograd.federated import attacks
from robust_app.task import CLASSES, Net

Arrays = dict[str, Tensor]


def attackers(context: Context) -> dict[int, str]:
    """Attacks by client. ``3:nan`` is client 3's; words without a number are the last clients', from the end."""
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
    """Whose images a client learns from: its own, but colluders agree on those of the first of them."""
    if crew.get(client) != "collude":
        return client
    return min(number for number, name in crew.items() if name == "collude")


def learned(labels: Tensor, attack: str) -> Tensor:
    """Labels that a client learns."""
    return attacks.ON_LABELS[attack](labels, CLASSES) if attack in attacks.ON_LABELS else labels


def sent(model: Arrays, before: Arrays, attack: str, seed: int) -> Arrays:
    """Arrays that a client sends, whose honest model this would be."""
    if attack in attacks.ON_ARRAYS:
        return attacks.ON_ARRAYS[attack](model)
    if attack not in attacks.ON_UPDATES:
        return model
    # An update is the global model minus the client's. This one becomes the row that the attack adds to it.
    names = [name for name, _ in Net().named_parameters()]
    update = torch.cat([(before[name] - model[name]).flatten() for name in names])[None]
    row = attacks.ON_UPDATES[attack](update, torch.Generator().manual_seed(seed))[-1]
    parts = row.split([before[name].numel() for name in names])
    return model | {name: before[name] - part.view_as(before[name]) for name, part in zip(names, parts, strict=True)}


def claimed(metrics: dict[str, float], attack: str) -> dict[str, float]:
    """Metrics that a client sends after training."""
    return attacks.ON_METRICS[attack](metrics) if attack in attacks.ON_METRICS else metrics
