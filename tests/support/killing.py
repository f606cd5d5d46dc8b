"""Calls that end as a killed process does, at a moment that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
