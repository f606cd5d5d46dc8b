"""The rules with their bounds, and the attacks, that `hostile` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from hostile_clients import CLASSES, CLIENTS, Arrays, network
from torch import Tensor

import paretograd as pg
from paretograd.aggregators.registry import parse_aggregators
from paretograd.federated import (
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MultiKrum,
    Server,
    TrimmedMean,
    TrustedMGDA,
    attacks,
    buffer_names,
)
from paretograd.federated.aggregation import Bound
from paretograd.federated.rules import Rule

BUFFERS = buffer_names(network())
#: The rule of `Server()`, which expects up to three attackers of ten.
DEFAULT = TrustedMGDA.label
#: Number of attackers for which the other robust rules are configured.
TOLD = 2


@dataclass(frozen=True)
class Case:
    """A rule with a bound.

    Attributes:
        rule: its name in the tables.
        make: creates the rule from the numbers of examples that clients claim, which only FedAvg uses.
        promised: whether one attacker in ten may cost it at most a tenth of its accuracy.
    """

    rule: str
    bound: Bound
    make: Callable[[Sequence[float]], Rule]
    promised: bool = False

    @property
    def label(self) -> str:
        """Return the rule and its bound as text."""
        return f"{self.rule}, {self.bound}"


def _believing(claims: Sequence[float]) -> Rule:
    """FedAvg: the mean, weighted by the claimed examples; clients whose replies are dropped come last."""

    def mean(updates: Tensor) -> Tensor:
        weights = torch.tensor(claims[: len(updates)], dtype=updates.dtype)
        return (weights / weights.sum()) @ updates

    return mean


def _capped(cap: float) -> Callable[[Sequence[float]], Rule]:
    return lambda claims: pg.CappedMGDA(cap=cap)


def _named(written: str) -> Callable[[Sequence[float]], Rule]:
    return lambda claims: parse_aggregators(written, seed=0)[0]


CAPS = (0.1, 0.15, 0.2)
#: Starred variants, and a schedule that draws one of four rules in each round.
MORE = ("upgrad*", "dualproj*", "nash-mtl*", "mas-rand")


def _of_the_library() -> dict[str, Callable[[Sequence[float]], Rule]]:
    """Return all registered rules by label, in order; a starred variant follows its rule."""
    found: dict[str, Callable[[Sequence[float]], Rule]] = {}
    for name in pg.names():
        if name == "capped-mgda":  # the cap is part of the name
            found |= {f"Capped MGDA, C = {cap}": _capped(cap) for cap in CAPS}
            continue
        for written in (name, *(more for more in MORE if more == f"{name}*")):
            found[pg.get(written).label] = _named(written)
    return found | {pg.get(more).label: _named(more) for more in MORE if not more.endswith("*")}


def rules(told: int) -> dict[str, Callable[[Sequence[float]], Rule]]:
    """Return all rules by label, the default of the server first.

    Args:
        told: number of attackers for which the Byzantine-robust baselines are configured.
    """
    return {
        DEFAULT: lambda claims: TrustedMGDA(),
        **_of_the_library(),
        "Krum": lambda claims: Krum(told),
        "Multi-Krum": lambda claims: MultiKrum(told),
        "Coordinate median": lambda claims: CoordinateMedian(),
        "Trimmed mean": lambda claims: TrimmedMean(told),
        "Geometric median": lambda claims: GeometricMedian(),
    }


RULES = rules(TOLD)


def _cases(bound: Bound) -> list[Case]:
    promised = bound != "none"
    kept = (DEFAULT, *(f"Capped MGDA, C = {cap}" for cap in CAPS))
    return [Case(rule, bound, make, promised and rule in kept) for rule, make in RULES.items()]


CASES: tuple[Case, ...] = (
    *_cases("clip"),
    *_cases("normalize"),
    Case("FedAvg by claimed examples", "none", _believing),
    *_cases("none"),
)


class Seen(NamedTuple):
    """What the attackers know in a round: the global model, all honest replies, their own ones, and the server."""

    model: Arrays
    honest: list[Arrays]
    own: list[Arrays]
    generator: torch.Generator
    server: Server


#: Returns the attackers' actual replies; a client that is missing does not reply.
Act = Callable[[Seen], list[Arrays]]


@dataclass(frozen=True)
class Attack:
    """Behaviour of the last ``attackers`` clients.

    Attributes:
        act: returns what they send.
        labels: maps their labels to those that they train on.
        claim: changes the metrics that they report, like `huge_examples`.
    """

    attackers: int = 1
    act: Act = field(default=lambda seen: seen.own)
    labels: Callable[[Tensor], Tensor] = field(default=lambda labels: labels)
    claim: Callable[[dict[str, float]], dict[str, float]] = field(default=dict)

    def claims(self, examples: float) -> list[float]:
        """Return the claimed numbers of examples, in the order of the clients."""
        claimed = self.claim({"num-examples": examples})["num-examples"]
        return [examples] * (CLIENTS - self.attackers) + [claimed] * self.attackers


def on_updates(attack: Callable[[Tensor, Seen], Tensor]) -> Act:
    """Return an attack on the update matrix, by attackers who know what the honest clients send."""

    def act(seen: Seen) -> list[Arrays]:
        names = [name for name in seen.model if name not in BUFFERS]
        start = _flat(seen.model, names)
        updates = torch.stack([start - _flat(reply, names) for reply in seen.honest])
        rows = attack(updates, seen)[len(updates) :]
        return [reply | _arrays(seen.model, names, start - row) for reply, row in zip(seen.own, rows, strict=True)]

    return act


def _on_updates(attack: Callable[[Tensor, torch.Generator], Tensor]) -> Act:
    """Return an attack on the update matrix that does not depend on the server."""
    return on_updates(lambda updates, seen: attack(updates, seen.generator))


def _flat(arrays: Arrays, names: list[str]) -> Tensor:
    return torch.from_numpy(np.concatenate([arrays[name].reshape(-1) for name in names])).double()


def _arrays(like: Arrays, names: list[str], values: Tensor) -> Arrays:
    parts = values.float().numpy()
    ends = np.cumsum([like[name].size for name in names])
    return {name: part.reshape(like[name].shape) for name, part in zip(names, np.split(parts, ends[:-1]), strict=True)}


def _statistics(seen: Seen) -> list[Arrays]:
    """Send honest parameters with absurdly large running statistics of BatchNorm."""
    model = seen.model
    huge = {name: np.full_like(model[name], 1e30 if model[name].dtype.kind == "f" else 2**62) for name in BUFFERS}
    return [reply | huge for reply in seen.own]


ATTACKS: dict[str, Attack] = {
    "none": Attack(attackers=0),
    "sign flip": Attack(act=_on_updates(attacks.ON_UPDATES["sign-flip"])),
    "sign flip, literal noise": Attack(act=_on_updates(attacks.ON_UPDATES["sign-flip-literal"])),
    "zero": Attack(act=_on_updates(attacks.ON_UPDATES["zero"])),
    "opposite": Attack(act=_on_updates(attacks.ON_UPDATES["collude"])),
    "scaled": Attack(act=_on_updates(attacks.ON_UPDATES["scaled"])),
    "label flip": Attack(labels=lambda labels: attacks.flip_labels(labels, CLASSES)),
    "huge num-examples": Attack(act=_on_updates(attacks.ON_UPDATES["sign-flip"]), claim=attacks.huge_examples),
    "statistics": Attack(act=_statistics),
    "NaN": Attack(act=_on_updates(attacks.ON_UPDATES["nan"])),
    "wrong shape": Attack(act=lambda seen: [attacks.wrong_shape(r) for r in seen.own]),
    "wrong keys": Attack(act=lambda seen: [attacks.wrong_keys(r) for r in seen.own]),
    "two collude": Attack(
        attackers=2, act=_on_updates(lambda updates, generator: attacks.colluding(updates, generator, 2))
    ),
    "two collude, to the bound": Attack(
        attackers=2,
        act=_on_updates(lambda updates, generator: attacks.colluding(updates, generator, 2, factor=1e3)),
    ),
}
