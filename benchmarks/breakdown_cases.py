"""The rules, the tasks, and the attacks by any number of clients, that `breakdown` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hostile_cases import BUFFERS, DEFAULT, Act, Attack, Case, Seen, on_updates, rules
from hostile_clients import CLASSES, Arrays, Data, drawn_digits, handwritten_digits
from torch import Tensor

from paretograd.federated import attacks

#: Number of attackers for which the Byzantine-robust baselines are configured; the default rule expects as many.
TOLD = 3
#: Close relatives of other rules: normalized variants, and FairGrad under another name.
LEFT_OUT = ("Nash-MTL*", "UPGrad*", "DualProj*", "PIVRG")

CASES = tuple(
    Case(rule, "clip", make, promised=rule == DEFAULT) for rule, make in rules(TOLD).items() if rule not in LEFT_OUT
)

#: The tasks: the data for a seed, and perhaps for a file with the handwritten digits.
TASKS: dict[str, Callable[[int, Path | None], Data]] = {
    "drawn": lambda seed, file: drawn_digits(seed),
    "handwritten": handwritten_digits,
}

#: Maps a number of attackers to the attack.
ByCount = Callable[[int], Attack]


@dataclass(frozen=True)
class Kind:
    """An attack by any number of clients.

    Attributes:
        text: what the attackers send, for the page.
        source: who proposed it, for the page.
        make: maps the number of attackers to the attack.
        slow: whether it searches, which takes most of the time.
    """

    text: str
    source: str
    make: ByCount
    slow: bool = False


def _rows(attack: Callable[[Tensor, Seen, int], Tensor]) -> ByCount:
    """Return attacks on updates from a function of the honest updates and the number of attackers."""
    return lambda count: Attack("", count, on_updates(lambda updates, seen: attack(updates, seen, count)))


def _replies(act: Act) -> ByCount:
    return lambda count: Attack("", count, act)


def _flipped(count: int) -> Attack:
    return Attack("", count, labels=lambda labels: attacks.flip_labels(labels, CLASSES))


def _sign_flips(updates: Tensor, seen: Seen, count: int) -> Tensor:
    """Each attacker opposes another client."""
    rows = [attacks.sign_flip(updates, target, seen.generator)[-1:] for target in range(count)]
    return torch.cat([updates, *rows])


def _statistics(seen: Seen) -> list[Arrays]:
    """Send honest parameters, and statistics of BatchNorm that change as far as the bound lets them.

    The server bounds each array by the median length of its changes. All entries of an array change in one direction:
    means grow and variances shrink.
    """
    forged = {}
    for name in sorted(BUFFERS):
        start = seen.model[name]
        if start.dtype.kind == "f":
            length = np.median([np.linalg.norm(reply[name] - start) for reply in seen.honest])
            sign = -1.0 if name.endswith("var") else 1.0
            forged[name] = (start + sign * length / start.size**0.5).astype(start.dtype)
    return [reply | forged for reply in seen.own]


def _adaptive(updates: Tensor, seen: Seen, count: int) -> Tensor:
    server = seen.server
    return attacks.adaptive(updates, server.rule, seen.generator, count, bound=server.bound)


KINDS: dict[str, Kind] = {
    "sign flip": Kind(
        "each, minus the update of another honest client, with noise of 0.15 times its length",
        "the paper",
        _rows(_sign_flips),
    ),
    "zero": Kind(
        "the unchanged global model", "", _rows(lambda updates, seen, count: attacks.zero_update(updates, count))
    ),
    "opposite": Kind(
        "minus the mean of the honest updates: inner-product manipulation with factor 1",
        "Xie et al., 2020",
        _rows(lambda updates, seen, count: attacks.scaled_update(updates, -1.0, count)),
    ),
    "to the bound": Kind(
        "-1000 times the mean, which the server shortens to the median length",
        "Xie et al., 2020",
        _rows(lambda updates, seen, count: attacks.scaled_update(updates, -1e3, count)),
    ),
    "small": Kind(
        "-0.1 times the mean",
        "Xie et al., 2020",
        _rows(lambda updates, seen, count: attacks.scaled_update(updates, -0.1, count)),
    ),
    "little": Kind(
        "the mean, less 1.5 standard deviations in each coordinate: a little is enough",
        "Baruch et al., 2019",
        _rows(lambda updates, seen, count: attacks.little_is_enough(updates, count, deviations=1.5)),
    ),
    "min-max": Kind(
        "the mean, less as many standard deviations as keep the distance to each honest update within the largest "
        "distance between two of these",
        "Shejwalkar and Houmansadr, 2021",
        _rows(lambda updates, seen, count: attacks.min_max(updates, count)),
    ),
    "min-sum": Kind(
        "the same for the sum of squared distances",
        "Shejwalkar and Houmansadr, 2021",
        _rows(lambda updates, seen, count: attacks.min_sum(updates, count)),
    ),
    "mimic": Kind(
        "copies of the first client's update",
        "Karimireddy et al., 2022",
        _rows(lambda updates, seen, count: attacks.mimic(updates, 0, count)),
    ),
    "noise": Kind(
        "Gaussian noise, ten times as long as an honest update",
        "",
        _rows(lambda updates, seen, count: attacks.gaussian_noise(updates, seen.generator, count=count)),
    ),
    "labels": Kind("an update trained on labels $9 - c$ instead of $c$", "", _flipped),
    "statistics": Kind(
        "honest parameters, and statistics of BatchNorm that are as far off as the bound lets them be",
        "",
        _replies(_statistics),
    ),
    "silent": Kind("nothing", "", _replies(lambda seen: [])),
    "adaptive": Kind(
        "what turns the rule's direction against the mean most, found by search: the attackers know the rule, the "
        "bound and all honest updates",
        "`attacks.adaptive`",
        _rows(_adaptive),
        slow=True,
    ),
}
