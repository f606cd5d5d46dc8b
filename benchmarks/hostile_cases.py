"""What `hostile` runs: the rules with their bounds, and attacks as what the last clients send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hostile_clients import CLASSES, CLIENTS, Arrays, network
from torch import Tensor

import paretograd as pg
from paretograd.aggregators.registry import parse_aggregators
from paretograd.federated import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean, attacks, buffer_names
from paretograd.federated.aggregation import Bound, Rule

BUFFERS = buffer_names(network())
#: What rules that ask for it are told about the number of attackers.
TOLD = 2


@dataclass(frozen=True)
class Case:
    """A rule with a bound.

    Attributes:
        rule: its name in the tables.
        make: the rule, from the numbers of examples that clients claim, which only FedAvg believes.
        promised: whether one attacker in ten must not cost it more than a tenth of its accuracy.
    """

    rule: str
    bound: Bound
    make: Callable[[Sequence[float]], Rule]
    promised: bool = False

    @property
    def label(self) -> str:
        """The rule and its bound."""
        return f"{self.rule}, {self.bound}"


def _believing(claims: Sequence[float]) -> Rule:
    """FedAvg: the mean, weighted by what clients claim; those whose replies are dropped come last."""

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
    """All rules of the registry in its order, by label; a star comes behind the rule that it is of."""
    found: dict[str, Callable[[Sequence[float]], Rule]] = {}
    for name in pg.names():
        if name == "capped-mgda":  # the cap is part of the name
            found |= {f"Capped MGDA, C = {cap}": _capped(cap) for cap in CAPS}
            continue
        for written in (name, *(more for more in MORE if more == f"{name}*")):
            found[pg.get(written).label] = _named(written)
    return found | {pg.get(more).label: _named(more) for more in MORE if not more.endswith("*")}


RULES: dict[str, Callable[[Sequence[float]], Rule]] = {
    **_of_the_library(),
    "Krum": lambda claims: Krum(TOLD),
    "Multi-Krum": lambda claims: MultiKrum(TOLD),
    "Coordinate median": lambda claims: CoordinateMedian(),
    "Trimmed mean": lambda claims: TrimmedMean(TOLD),
    "Geometric median": lambda claims: GeometricMedian(),
}


def _cases(bound: Bound) -> list[Case]:
    promised = bound != "none"
    return [Case(rule, bound, make, promised and rule.startswith("Capped")) for rule, make in RULES.items()]


CASES: tuple[Case, ...] = (
    *_cases("clip"),
    *_cases("normalize"),
    Case("FedAvg by claimed examples", "none", _believing),
    *_cases("none"),
)

#: From the global model, the honest replies, the attackers' own honest ones and a generator to the attackers' replies.
Act = Callable[[Arrays, list[Arrays], list[Arrays], torch.Generator], list[Arrays]]


@dataclass(frozen=True)
class Attack:
    """What the last ``attackers`` clients do.

    Attributes:
        heading: of its column.
        act: what they send.
        labels: what they learn from, in place of their labels.
        claim: numbers of examples that they claim to have, as `huge_examples` changes them.
    """

    heading: str
    attackers: int = 1
    act: Act = field(default=lambda model, honest, own, generator: own)
    labels: Callable[[Tensor], Tensor] = field(default=lambda labels: labels)
    claim: Callable[[dict[str, float]], dict[str, float]] = field(default=dict)

    def claims(self, examples: float) -> list[float]:
        """Numbers of examples in the order of the clients."""
        claimed = self.claim({"num-examples": examples})["num-examples"]
        return [examples] * (CLIENTS - self.attackers) + [claimed] * self.attackers


def _on_updates(attack: Callable[[Tensor, torch.Generator], Tensor]) -> Act:
    """An attack on the update matrix, by attackers who know what the honest clients send."""

    def act(model: Arrays, honest: list[Arrays], own: list[Arrays], generator: torch.Generator) -> list[Arrays]:
        names = [name for name in model if name not in BUFFERS]
        start = _flat(model, names)
        rows = attack(torch.stack([start - _flat(reply, names) for reply in honest]), generator)[len(honest) :]
        return [reply | _arrays(model, names, start - row) for reply, row in zip(own, rows, strict=True)]

    return act


def _flat(arrays: Arrays, names: list[str]) -> Tensor:
    return torch.from_numpy(np.concatenate([arrays[name].reshape(-1) for name in names])).double()


def _arrays(like: Arrays, names: list[str], values: Tensor) -> Arrays:
    parts = values.float().numpy()
    ends = np.cumsum([like[name].size for name in names])
    return {name: part.reshape(like[name].shape) for name, part in zip(names, np.split(parts, ends[:-1]), strict=True)}


def _statistics(model: Arrays, honest: list[Arrays], own: list[Arrays], generator: torch.Generator) -> list[Arrays]:
    """Honest parameters, and running statistics of BatchNorm that are out of all proportion."""
    huge = {name: np.full_like(model[name], 1e30 if model[name].dtype.kind == "f" else 2**62) for name in BUFFERS}
    return [reply | huge for reply in own]


ATTACKS: dict[str, Attack] = {
    "none": Attack("no attack", attackers=0),
    "sign flip": Attack("sign flip", act=_on_updates(attacks.ON_UPDATES["sign-flip"])),
    "sign flip, literal noise": Attack("literal noise", act=_on_updates(attacks.ON_UPDATES["sign-flip-literal"])),
    "zero": Attack("zero", act=_on_updates(attacks.ON_UPDATES["zero"])),
    "opposite": Attack("opposite", act=_on_updates(attacks.ON_UPDATES["collude"])),
    "scaled": Attack("scaled", act=_on_updates(attacks.ON_UPDATES["scaled"])),
    "label flip": Attack("labels", labels=lambda labels: attacks.flip_labels(labels, CLASSES)),
    "huge num-examples": Attack(
        "examples", act=_on_updates(attacks.ON_UPDATES["sign-flip"]), claim=attacks.huge_examples
    ),
    "statistics": Attack("statistics", act=_statistics),
    "NaN": Attack("NaN", act=_on_updates(attacks.ON_UPDATES["nan"])),
    "wrong shape": Attack("shape", act=lambda model, honest, own, generator: [attacks.wrong_shape(r) for r in own]),
    "wrong keys": Attack("keys", act=lambda model, honest, own, generator: [attacks.wrong_keys(r) for r in own]),
    "two collude": Attack(
        "two collude", attackers=2, act=_on_updates(lambda updates, generator: attacks.colluding(updates, generator, 2))
    ),
}
