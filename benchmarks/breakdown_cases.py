"""The rules, the tasks, and the attacks by any number of clients, that `breakdown` runs."""

from __future__ import annotations

from collections.abc import Callable
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


def _rows(attack: Callable[[Tensor, Seen, int], Tensor]) -> ByCount:
    """Return attacks on updates from a function of the honest updates and the number of attackers."""
    return lambda count: Attack(count, on_updates(lambda updates, seen: attack(updates, seen, count)))


def _replies(act: Act) -> ByCount:
    return lambda count: Attack(count, act)


def _flipped(count: int) -> Attack:
    return Attack(count, labels=lambda labels: attacks.flip_labels(labels, CLASSES))


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


#: The attacks by name. The page describes them.
ATTACKS: dict[str, ByCount] = {
    "sign flip": _rows(_sign_flips),
    "zero": _rows(lambda updates, seen, count: attacks.zero_update(updates, count)),
    "opposite": _rows(lambda updates, seen, count: attacks.scaled_update(updates, -1.0, count)),
    "to the bound": _rows(lambda updates, seen, count: attacks.scaled_update(updates, -1e3, count)),
    "small": _rows(lambda updates, seen, count: attacks.scaled_update(updates, -0.1, count)),
    "little": _rows(lambda updates, seen, count: attacks.little_is_enough(updates, count, deviations=1.5)),
    "min-max": _rows(lambda updates, seen, count: attacks.min_max(updates, count)),
    "min-sum": _rows(lambda updates, seen, count: attacks.min_sum(updates, count)),
    "mimic": _rows(lambda updates, seen, count: attacks.mimic(updates, 0, count)),
    "noise": _rows(lambda updates, seen, count: attacks.gaussian_noise(updates, seen.generator, count=count)),
    "labels": _flipped,
    "statistics": _replies(_statistics),
    "silent": _replies(lambda seen: []),
    "adaptive": _rows(_adaptive),
}
#: The attack that searches, which takes half of the time.
SLOW = "adaptive"
