"""Schedules: the index of the rule that acts at a step, as a pure function of the step.

A schedule keeps no counter. The caller keeps the step number and asks for the index at that step. Repeated or unordered
queries give the same answers, so a run can stop and resume anywhere, and several callers can share one schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from typing import Any

import numpy as np
import torch

from paretograd.checks import is_whole
from paretograd.errors import ParameterError

#: Number of draws that `Random` makes at once. Changing it changes the draws of every seed.
_BLOCK = 256
#: Numbers that Philox generates per value of its counter.
_PER_COUNT = 4


class Schedule(ABC):
    """An index into a pool for every step, counted from 0."""

    #: Name in the legends of the paper.
    label: str

    @abstractmethod
    def index(self, step: int, size: int) -> int:
        """Return the index of the member that acts at ``step`` in a pool of ``size`` members."""

    def check(self, size: int) -> None:  # noqa: B027 (most schedules fit every pool)
        """Raise if the schedule cannot be used with a pool of ``size`` members."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return plain data that identify this schedule. They do not depend on the step."""

    def load_state_dict(self, state: abc.Mapping[str, Any]) -> None:
        """Raise if the state belongs to another schedule."""
        if dict(state) != self.state_dict():
            raise ParameterError(f"the state belongs to another schedule, {dict(state)}; this one is {self!r}")


class RoundRobin(Schedule):
    """Cyclic order in which each rule acts for n consecutive steps: RR(n) of the paper.

    Args:
        n: number of consecutive steps of each rule, at least 1.
    """

    def __init__(self, n: int = 1) -> None:
        self.n = _whole(n, "n", "the number of consecutive steps of each rule", 1, "RoundRobin(1000) or mas-rr(1000)")
        self.label = f"RR({_in_thousands(self.n)})"

    def index(self, step: int, size: int) -> int:
        return step // self.n % size

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "round-robin", "n": self.n}

    def __repr__(self) -> str:
        return f"RoundRobin({self.n})"


class Random(Schedule):
    """A rule drawn uniformly at random for each step: Rand of the paper.

    The draw of step t depends on the seed and t alone (Philox is a counter-based generator), not on earlier draws. A
    checkpoint therefore needs only the seed and the step number.

    Args:
        seed: a whole number, at least 0; None draws one from torch's global generator.
    """

    label = "Rand"

    def __init__(self, seed: int | None = None) -> None:
        self._given = seed is not None
        self.seed = int(torch.randint(2**62, (), device="cpu").item()) if seed is None else _seed(seed)
        self._block, self._draws = -1, np.empty(0, dtype=np.uint64)

    def index(self, step: int, size: int) -> int:
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            # numpy keeps the raw stream of a bit generator across versions, but not the stream of `integers`.
            generator = np.random.Philox(key=self.seed, counter=block * (_BLOCK // _PER_COUNT))
            self._block, self._draws = block, generator.random_raw(_BLOCK)
        return int(self._draws[place]) * size >> 64  # uniform to within size / 2^64

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "random", "seed": self.seed}

    def load_state_dict(self, state: abc.Mapping[str, Any]) -> None:
        """Restore the seed. Raise if this schedule was constructed with a different one."""
        if self._given or set(state) != {"kind", "seed"} or state["kind"] != "random":
            super().load_state_dict(state)
        else:
            self.seed, self._block = _seed(state["seed"]), -1

    def __repr__(self) -> str:
        return f"Random(seed={self.seed})"


class Sequence(Schedule):
    """A given order, repeated: with ``Sequence([0, 0, 1])`` the first rule acts twice, then the second once.

    Args:
        indices: positions in the pool, counted from 0.
    """

    def __init__(self, indices: abc.Iterable[int]) -> None:
        try:
            listed = list(indices)
        except TypeError:
            listed = []
        if not listed:
            raise ParameterError(f"Sequence takes positions in the pool, such as [0, 0, 1]; got {indices!r}")
        self.indices = [_whole(i, "index", "a position in the pool", 0, "Sequence([0, 0, 1])") for i in listed]
        shown = ", ".join(map(str, self.indices[:8])) + (", ..." if len(self.indices) > 8 else "")
        self.label = f"[{shown}]"

    def index(self, step: int, size: int) -> int:
        return self.indices[step % len(self.indices)]

    def check(self, size: int) -> None:
        if max(self.indices) >= size:
            raise ParameterError(
                f"the sequence holds {max(self.indices)}, but the pool has {size} rules: positions are 0 to {size - 1}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "sequence", "indices": list(self.indices)}

    def __repr__(self) -> str:
        return f"Sequence({self.indices})"


class Custom(Schedule):
    """A user's function from a step to an index. Its return values are validated.

    The state does not identify the function: the user must resume with the same one.
    """

    label = "custom"

    def __init__(self, function: abc.Callable[[int], int]) -> None:
        self.function = function

    def index(self, step: int, size: int) -> int:
        answer: object = self.function(step)
        if not is_whole(answer) or not 0 <= answer < size:
            raise ParameterError(
                f"the schedule returned {answer!r} at step {step}; a position in a pool of {size} rules is a whole "
                f"number from 0 to {size - 1}"
            )
        return int(answer)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "function"}

    def __repr__(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))


def as_schedule(schedule: object) -> Schedule:
    """Return a schedule unchanged, or wrap a user's function ``step -> index``."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) or not callable(schedule):
        raise ParameterError(
            f"schedule={schedule!r}: give RoundRobin(n), Random(seed), Sequence([0, 0, 1]) or a function step -> index"
        )
    return Custom(schedule)


def _whole(value: object, name: str, meaning: str, least: int, example: str) -> int:
    if not is_whole(value) or value < least:
        raise ParameterError(f"{name}={value!r}: {meaning}; give a whole number of at least {least}, as in {example}")
    return int(value)


def _seed(value: object) -> int:
    seed = _whole(value, "seed", "the seed of the draws", 0, "Random(seed=3)")
    if seed >= 2**64:
        raise ParameterError(f"seed={seed}: a seed must be below 2^64")
    return seed


def _in_thousands(n: int) -> str:
    """Format 1000 and 2500 as 1k and 2.5k, as the paper does."""
    return f"{n / 1000:g}k" if n >= 1000 and n % 100 == 0 else str(n)
