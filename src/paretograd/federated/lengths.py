"""`Lengths`: a bound on the lengths of updates that remembers earlier rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paretograd.errors import InputError
from paretograd.federated.trust import hostile_among

#: Updates shorter than this, whose squares lose precision in float64, count as zero.
ZERO = 1e-140

#: Rounds after which a length is forgotten: those of honest clients change as training goes on.
_KEPT = 20

#: Probability that a sample of clients contains more hostile ones than the bound allows for.
_RISK = 1e-3


class Lengths:
    """The latest length of each client's update, and the bound that follows from them.

    The bound is the median over all known clients. After a few rounds with some of the clients, most of the known ones
    may be hostile. The bound is therefore at most the length of some honest update, except with a probability of 0.001
    for a random sample.

    Args:
        attackers: number or share of hostile clients.
    """

    def __init__(self, attackers: float) -> None:
        self._attackers = attackers
        self._round = 0
        self._known: dict[int, tuple[float, int]] = {}

    def limit(self, found: Mapping[int, float], clients: int) -> float | None:
        """Return the bound for a round; None if all known updates are zero.

        If all known clients may be hostile, no length can be trusted: the lengths are kept for the next rounds, and an
        `InputError` says so.

        Args:
            found: lengths of this round's updates, by node.
            clients: number of clients of which this round's are a random sample; 0 if all were asked.
        """
        recent = {node: length for node, (length, when) in self._known.items() if self._round - when < _KEPT}
        lengths = sorted(length for length in (recent | dict(found)).values() if length > ZERO)
        if not lengths:
            return None
        known = len(lengths)
        clients = max(clients, known)
        hostile = most_hostile(clients, min(hostile_among(self._attackers, clients), clients), known)
        if hostile >= known:
            self.remember(found)
            raise InputError(
                f"the lengths of {known} of {clients} clients are known, and with attackers={self._attackers:g} all "
                "of these may be hostile. Sample more clients in a round"
            )
        return lengths[min((known + 1) // 2, known - hostile) - 1]

    def remember(self, found: Mapping[int, float]) -> None:
        """Keep the lengths of a round whose result was used."""
        self._round += 1
        self._known |= {node: (length, self._round) for node, length in found.items() if length > ZERO}
        self._known = {node: kept for node, kept in self._known.items() if self._round - kept[1] < _KEPT}

    def clear(self) -> None:
        """Forget all rounds."""
        self._round, self._known = 0, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in plain numbers."""
        return {"round": self._round, "known": [[node, *kept] for node, kept in sorted(self._known.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, after all of it has been checked."""
        try:
            number, known = state["round"], state["known"]
            kept = {node: (float(length), when) for node, length, when in known}
            whole = all(type(value) is int for value in (number, *kept, *(when for _, when in kept.values())))
            good = whole and all(ZERO < length < math.inf and 0 < when <= number for length, when in kept.values())
        except (KeyError, TypeError, ValueError):
            good = False
        if not good:
            raise InputError("the state's lengths are not those of `Server.state_dict`: a round, and lengths by node")
        self._round, self._known = number, kept


def most_hostile(clients: int, hostile: int, known: int) -> int:
    """Return the number of hostile clients that a random sample exceeds with a probability of at most 0.001.

    Args:
        clients: number of all clients.
        hostile: number of hostile ones among them.
        known: size of the sample.
    """
    ways, beyond = math.comb(clients, known), 0
    for count in range(min(hostile, known), 0, -1):
        beyond += math.comb(hostile, count) * math.comb(clients - hostile, known - count)
        if beyond > _RISK * ways:
            return count
    return 0
