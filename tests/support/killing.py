"""Calls that end as a killed process does, at a moment that a test chooses."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from paretograd.experiments import Watch


class Killed(BaseException):
    """Nothing in the library catches it."""


class Moments:
    """Counts moments, before and perhaps after each call of some functions, and raises `Killed` at the fatal one."""

    def __init__(self) -> None:
        self.count, self.fatal = 0, -1

    def deadly(self, function: Callable[..., Any], after: bool = True) -> Callable[..., Any]:
        """The function, with a moment before each call and, if asked for, one after it."""

        def call(*arguments: Any) -> Any:
            self._pass()
            answer = function(*arguments)
            if after:
                self._pass()
            return answer

        return call

    def _pass(self) -> None:
        self.count += 1
        if self.count == self.fatal:
            raise Killed

    def survives(self, run: Callable[[], object], resume: Callable[[], object], fatal: int) -> bool:
        """Run, killed at this moment, and resume; returns whether there was no such moment."""
        self.count, self.fatal = 0, fatal
        try:
            run()
        except Killed:
            self.fatal = -1
            resume()
            return False
        return True

    def one_after_another(
        self, begin: Callable[[int], Callable[..., object]], dense: int, stride: int
    ) -> Iterator[int]:
        """Killed at each of the first moments, then at every few, until there is none left; yields the moment.

        Args:
            begin: the work for a fatal moment; with ``resume=True`` it goes on.
            dense: the last moment before the gaps.
            stride: moments from one to the next after it.
        """
        fatal, alive = 0, False
        while not alive:
            fatal += 1 if fatal < dense else stride
            work = begin(fatal)
            alive = self.survives(work, partial(work, resume=True), fatal)
            yield fatal


class Press(Watch):
    """Presses Ctrl-C once, when a method whose label begins so has taken some steps."""

    def __init__(self, label: str, steps: int, number: int = signal.SIGINT) -> None:
        self.label, self.count, self.number, self.now = label, steps, number, ""

    def method(self, label: str, resumed_at: int) -> None:
        self.now = label

    def steps(self, taken: int, running: int, gamma: float) -> None:
        if self.now.startswith(self.label) and taken >= self.count:
            self.count = 10**9
            os.kill(os.getpid(), self.number)
