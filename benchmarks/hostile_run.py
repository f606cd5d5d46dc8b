"""Federated training under attack: all rules of a table side by side, each on its own server."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hostile_cases import ATTACKS, BUFFERS, CASES, Attack, Case, Seen
from hostile_clients import CLIENTS, Arrays, Data, accuracies, drawn_digits, initial, train

from paretograd.federated import Server


@dataclass
class Outcome:
    """Result of one rule under one attack with one seed.

    Attributes:
        accuracy: accuracy of the final global model on held-out images.
        hostile_dropped, honest_dropped: numbers of replies that the server dropped.
        still: number of rounds in which the model stayed unchanged.
        finite: whether every global model was finite.
        error: the exception that the server raised, as text.
    """

    rule: str
    bound: str
    attack: str
    seed: int
    promised: bool
    accuracy: float = 0.0
    hostile_dropped: int = 0
    honest_dropped: int = 0
    still: int = 0
    finite: bool = True
    error: str | None = None
    model: Arrays = field(default_factory=dict, repr=False)


def run(attack: str, seed: int, rounds: int, labels: Sequence[str]) -> list[Outcome]:
    """Train with the rules that have these labels, for one attack and seed, on the digits of the example app."""
    cases = [case for case in CASES if case.label in labels]
    return compete(drawn_digits(seed), attack, ATTACKS[attack], cases, seed, rounds)


def compete(data: Data, name: str, attack: Attack, cases: Sequence[Case], seed: int, rounds: int) -> list[Outcome]:
    """Train with all cases on the same data under the same attack, which the outcomes call by this name."""
    torch.set_num_threads(1)
    targets = data.labels.clone()
    if attack.attackers:
        targets[-attack.attackers :] = attack.labels(targets[-attack.attackers :])
    claims = attack.claims(data.images.shape[1])
    servers = [Server(case.make(claims), bound=case.bound, averaged=BUFFERS) for case in cases]
    outcomes = [_outcome(case, name, seed) for case in cases]
    for number in range(rounds):
        pass_seed = 1000 * seed + number
        models = [outcome.model for outcome in outcomes]
        replies = train(models, data.images, targets.expand(len(cases), -1, -1), pass_seed)
        for server, outcome, sent in zip(servers, outcomes, replies, strict=True):
            _round(server, outcome, attack, sent, pass_seed)
    found = accuracies([outcome.model for outcome in outcomes], data.test_images, data.test_labels)
    for outcome, accuracy in zip(outcomes, found, strict=True):
        outcome.accuracy, outcome.model = accuracy, {}
    return outcomes


def _outcome(case: Case, attack: str, seed: int) -> Outcome:
    return Outcome(case.rule, case.bound, attack, seed, case.promised, model=initial(seed))


def _round(server: Server, outcome: Outcome, attack: Attack, sent: list[Arrays], seed: int) -> None:
    """Let the attackers replace their replies, and step the server with all replies."""
    honest = CLIENTS - attack.attackers
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UserWarning)  # one per dropped reply; these are counted below
        generator = torch.Generator().manual_seed(seed)
        spoiled = attack.act(Seen(outcome.model, sent[:honest], sent[honest:], generator, server))
        try:
            found = server.step(outcome.model, dict(enumerate([*sent[:honest], *spoiled])), asked=CLIENTS)
        except Exception as error:  # noqa: BLE001  a crash is a result
            outcome.error = f"{type(error).__name__}: {error}"
            return
    outcome.model = found.model
    outcome.hostile_dropped += sum(node >= honest for node, _ in found.dropped)
    outcome.honest_dropped += sum(node < honest for node, _ in found.dropped)
    outcome.still += not found.moved
    outcome.finite &= all(bool(np.isfinite(array).all()) for array in found.model.values())
