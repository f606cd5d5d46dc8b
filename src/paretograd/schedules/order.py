"""Which member of a pool acts at a step: a pure function of the step, so that a run can stop and go on anywhere.

No schedule counts. Who uses one keeps the number of the step, and asks for the index at that step; asking twice, or
out of order, gives the same answers. Several users may share one schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from typing import Any

import numpy as np
import torch

from paretograd.errors import ParameterError

#: Draws that `Random` makes at once; part of what a seed stands for.
_BLOCK = 256
#: Numbers that Philox makes from one value of its counter.
_PER_COUNT = 4


class Schedule(ABC):
    """An index into a pool for every step, counted from 0."""

    #: How the paper's legends write it.
    label: str

    @abstractmethod
    def index(self, step: int, size: int) -> int:
        """The member of a pool of this size that acts at a step."""

    def check(self, size: int) -> None:  # noqa: B027 (most schedules fit every pool)
        """Raise if a pool of this size does not fit the schedule."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What tells this schedule from others, as plain data; nothing in it depends on a step."""

    def load_state_dict(self, state: abc.Mapping[str, Any]) -> None:
        """Raise unless the state is that of this schedule."""
        if dict(state) != self.state_dict():
            raise ParameterError(f"the state is that of another schedule, {dict(state)}; this one is {self!r}")


class RoundRobin(Schedule):
    """Each rule for n steps, then the next, and after the last the first again: RR(n) of the paper.

    Args:
        n: for how many steps in a row each rule acts, at least 1.
    """

    def __init__(self, n: int = 1) -> None:
        self.n = _whole(n, "n", "the steps in a row of each rule", 1, "RoundRobin(1000) or mas-rr(1000)")
        self.label = f"RR({_in_thousands(self.n)})"

    def index(self, step: int, size: int) -> int:
        return step // self.n % size

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "round-robin", "n": self.n}

    def __repr__(self) -> str:
        return f"RoundRobin({self.n})"


class Random(Schedule):
    """A rule drawn anew at each step, all with the same probability: Rand of the paper.

    The draw of step t is a function of the seed and t alone (Philox, a generator that counts), whatever was drawn
    before, so that nothing but the seed and the number of the step needs to be kept.

    Args:
        seed: a whole number, at least 0; None takes one from torch's global generator.
    """

    label = "Rand"

    def __init__(self, seed: int | None = None) -> None:
        self._given = seed is not None
        self.seed = int(torch.randint(2**62, (), device="cpu").item()) if seed is None else _seed(seed)
        self._block, self._draws = -1, np.empty(0, dtype=np.uint64)

    def index(self, step: int, size: int) -> int:
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            # The raw stream of a bit generator stays the same in all versions of numpy; that of `integers` need not.
            generator = np.random.Philox(key=self.seed, counter=block * (_BLOCK // _PER_COUNT))
            self._block, self._draws = block, generator.random_raw(_BLOCK)
        return int(self._draws[place]) * size >> 64  # uniform to within size / 2^64

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "random", "seed": self.seed}

    def load_state_dict(self, state: abc.Mapping[str, Any]) -> None:
        """Take over the seed, unless this schedule was given another one."""
        if self._given or set(state) != {"kind", "seed"} or state["kind"] != "random":
            super().load_state_dict(state)
        else:
            self.seed, self._block = _seed(state["seed"]), -1

    def __repr__(self) -> str:
        return f"Random(seed={self.seed})"


class Sequence(Schedule):
    """A given order, again and again: ``Sequence([0, 0, 1])`` lets the first rule act twice, then the second once.

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
    """A user's function from a step to an index, whose answers are checked.

    Its state cannot tell one function from another: resuming with the same function is the user's part.
    """

    label = "custom"

    def __init__(self, function: abc.Callable[[int], int]) -> None:
        self.function = function

    def index(self, step: int, size: int) -> int:
        answer: object = self.function(step)
        if isinstance(answer, bool) or not isinstance(answer, (int, np.integer)) or not 0 <= answer < size:
            raise ParameterError(
                f"the schedule answered {answer!r} at step {step}; a position in a pool of {size} rules is a whole "
                f"number from 0 to {size - 1}"
            )
        return int(answer)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "function"}

    def __repr__(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))


def as_schedule(schedule: object) -> Schedule:
    """A schedule as it is, or a user's function ``step -> index`` as one."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) or not callable(schedule):
        raise ParameterError(
            f"schedule={schedule!r}: give RoundRobin(n), Random(seed), Sequence([0, 0, 1]) or a function step -> index"
        )
    return Custom(schedule)


def _whole(value: object, name: str, meaning: str, least: int, example: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ParameterError(f"{name}={value!r}: {meaning}; give a whole number of at least {least}, as in {example}")
    return int(value)


def _seed(value: object) -> int:
    seed = _whole(value, "seed", "where the draws start", 0, "Random(seed=3)")
    if seed >= 2**64:
        raise ParameterError(f"seed={seed}: a seed lies below 2^64")
    return seed


def _in_thousands(n: int) -> str:
    """1k and 2.5k, as the paper writes 1000 and 2500."""
    return f"{n / 1000:g}k" if n >= 1000 and n % 100 == 0 else str(n)
