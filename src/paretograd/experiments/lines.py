"""Progress of a study as plain lines, for a machine without a terminal or the extra of the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from paretograd.experiments.progress import Pace, Watch

#: Seconds between two lines.
_EVERY = 10.0


class Lines(Watch):
    """Writes a line every few seconds, and one for every method that is done.

    Args:
        write: is given each line, without its end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._pace = write, Pace()
        self._labels: Sequence[str] = ()
        self._label, self._losses, self._step = "", "", 0
        self._place, self._most, self._last = 0, 0, 0.0

    def begin(self, labels: Sequence[str], steps: int) -> None:
        self._labels, self._most = labels, steps
        self._pace.begin(len(labels), steps)

    def method(self, label: str, resumed_at: int) -> None:
        self._label, self._step, self._last = label, resumed_at, time.monotonic()
        self._pace.method(resumed_at)
        self._write(f"{self._head()}: " + (f"goes on after step {resumed_at:,}" if resumed_at else "begins"))

    def losses(self, means: Sequence[float]) -> None:
        self._losses = " ".join(f"{loss:.5f}" for loss in means)

    def steps(self, taken: int, running: int, gamma: float) -> None:
        self._step = taken
        self._pace.steps(taken)
        if running and time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            runs = f"{running} run{'' if running == 1 else 's'}"
            where = f"step {taken:,} of {self._most:,}, {runs}, losses {self._losses}, gamma {gamma:.5f}"
            left = f"at most {self._pace.left_here()} left, {self._pace.left_in_all()} for all"
            self._write(f"{self._head()}: {where}, {self._speed()}, {left}")

    def note(self, text: str) -> None:
        self._write(f"note: {text}")

    def finished(self, label: str, before: bool) -> None:
        self._label = label
        self._write(
            f"{self._head()}: " + ("was done before" if before else f"done, {self._step:,} steps, {self._speed()}")
        )
        self._place += 1
        self._pace.finished()

    def _head(self) -> str:
        return f"[{self._place + 1}/{len(self._labels)}] {self._label}"

    def _speed(self) -> str:
        pace = self._pace.seconds_per_step
        return "no step" if pace is None else f"{1e3 * pace:.1f} ms a step"
