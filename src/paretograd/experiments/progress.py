"""What a study tells while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta


class Watch:
    """Told what happens; this one does nothing with it. The command line draws bars."""

    def begin(self, labels: Sequence[str], steps: int) -> None:
        """A study begins: its methods, and how many steps each of them takes at most."""

    def method(self, label: str, resumed_at: int) -> None:
        """A method begins, or goes on after this many steps."""

    def steps(self, taken: int, running: int, gamma: float) -> None:
        """Where the method stands: steps, runs that have not stopped, and the largest gamma among them."""

    def losses(self, means: Sequence[float]) -> None:
        """Means of the losses over the runs that have not stopped; a study may tell them before `steps`."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def finished(self, label: str, before: bool) -> None:
        """A method is done, or was done before."""


class Pace:
    """How long the rest takes, if no run stops before its last step and steps stay as quick as they are."""

    def __init__(self) -> None:
        self._most, self._left, self._taken, self._first, self._begun = 0, 0, 0, 0, 0.0

    def begin(self, methods: int, steps: int) -> None:
        """A study begins, with this many methods and steps for each."""
        self._most, self._left = steps, methods

    def method(self, resumed_at: int) -> None:
        """A method begins, or goes on after this many steps."""
        self._first = self._taken = resumed_at
        self._begun = time.monotonic()

    def steps(self, taken: int) -> None:
        """Where the method stands."""
        self._taken = taken

    def finished(self) -> None:
        """A method is done."""
        self._left -= 1
        self._taken = self._first = 0

    @property
    def seconds_per_step(self) -> float | None:
        """Of the method at work, in this session; None before its first step."""
        taken = self._taken - self._first
        return (time.monotonic() - self._begun) / taken if taken > 0 else None

    def left_here(self) -> str:
        """``0:01:20`` for the method at work; nothing before its first step."""
        return self._in_words(self._most - self._taken)

    def left_in_all(self) -> str:
        """The same for this and all methods after it."""
        return self._in_words(self._most * self._left - self._taken) if self._left else ""

    def _in_words(self, steps: int) -> str:
        pace = self.seconds_per_step
        return "" if pace is None else str(timedelta(seconds=round(pace * steps)))
