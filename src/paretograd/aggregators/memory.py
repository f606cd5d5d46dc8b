"""What a rule keeps from one step to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from paretograd.errors import ParameterError

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """The values that a rule keeps, one for each call of a step.

    The k-th call of a step goes on from the k-th call of the step before. So each parameter group has its own value,
    and so has each Gramian of a batch. A step that fails changes nothing, and a call outside any step is one of its
    own: enter `step` around `recall` and `keep`.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Value] = {}
        self._new: dict[int, Value] | None = None  # of the step in progress, if any
        self._part = 0

    @property
    def in_step(self) -> bool:
        """True inside a step."""
        return self._new is not None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Join all calls inside into one step."""
        if self._new is not None:
            yield
            return
        self._new, self._part = {}, 0
        try:
            yield
            self._kept |= self._new
        finally:
            self._new = None

    def turn_to(self, part: int) -> None:
        """Let the next call of this step go on from this call of the step before, and those after it in turn."""
        self._part = part

    def recall(self) -> Value | None:
        """Return what the same call of the step before kept; None if there was none."""
        return self._kept.get(self._part)

    def keep(self, value: Value | None) -> None:
        """Keep a value for the next step, or leave the old one with None. The next call of this step is another one."""
        assert self._new is not None, "enter a step first"
        if value is not None:
            self._new[self._part] = value
        self._part += 1

    def state_dict(self) -> dict[str, Value]:
        """Return the values of the last step by the number of the call, as text."""
        return {str(part): value for part, value in sorted(self._kept.items())}

    def load(self, values: Mapping[str, Value]) -> None:
        """Replace all values by those of a `state_dict`."""
        self._kept = {int(part): value for part, value in values.items()}


def check_count(label: str, known: int, m: int) -> None:
    """Raise if a step has another number of objectives than the steps before."""
    if known != m:
        raise ParameterError(
            f"{label} keeps numbers for m={known} objectives from the steps before, and this step has m={m}; "
            "use a new rule if the objectives changed"
        )


def check_keys(label: str, state: Mapping[str, Any], keys: set[str]) -> None:
    """Raise unless a state has these keys."""
    if set(state) != keys:
        raise ParameterError(f"{label} loads what its state_dict returned; got a state with {sorted(state)}")
