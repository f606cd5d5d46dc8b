"""Calls that end as a killed process does, at a moment that a test chooses."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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


def results_in(folder: Path) -> dict[str, bytes]:
    """All files of a study but the configuration, which tells when and how long things were done."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "config.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def killed_at_every_write(run: Callable[..., Any], study: object, folder: Path, dense: int, stride: int) -> int:
    """Killed before every rename: whatever is there can be resumed, and comes out the same; returns the last moment.

    Args:
        run: takes a folder, the study, ``checkpoint_every`` and ``resume``, and returns results that know their folder.
        study: what it runs.
        folder: for all that is run.
        dense: see `Moments.one_after_another`.
        stride: likewise.
    """
    undisturbed = results_in(run(folder / "undisturbed", study).folder)
    moments, fatal = Moments(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", moments.deadly(Path.replace, after=False))
        for fatal in moments.one_after_another(
            lambda fatal: partial(run, folder / str(fatal), study, checkpoint_every=0.0), dense, stride
        ):
            assert results_in(folder / str(fatal)) == undisturbed
    return fatal


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
